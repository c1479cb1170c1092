"""Pods that wait in a queue of Kueue: their message, and their end. The pods are those of newer servers."""

from sandboxkit.errors import CapacityError
from sandboxkit.integrations.rewards._boundary import Phase, verdict_of
from sandboxkit.integrations.rewards._verdict import Outcome
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._watch import PodStatus


def test_a_pod_that_its_queue_has_not_admitted_waits_for_room() -> None:
    metadata = {"name": "pod", "labels": {"kueue.x-k8s.io/queue-name": "team-a"}}
    gate = {"name": "kueue.x-k8s.io/admission"}
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    status = {"phase": "Pending", "conditions": [condition]}
    pod = {"metadata": metadata, "spec": {"schedulingGates": [gate]}, "status": status}
    assert (
        _ends.wait_of(PodStatus(pod)) == "pod waits: it is not admitted yet by the queue 'team-a'"
    )
    error = _ends.late_error(PodStatus(pod), [], seconds=5)
    assert isinstance(error, CapacityError)
    assert "queue 'team-a'" in str(error)
    assert "start_timeout" in str(error)
    assert _ends.wait_of(PodStatus({**pod, "spec": {"nodeName": "node"}})) == ""


def test_an_admission_that_is_taken_back_is_an_infrastructure_error() -> None:
    condition = {"type": "TerminationTarget", "status": "True", "message": "Preempted by another"}
    pod = {
        "metadata": {"name": "pod", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {},
        "status": {"phase": "Running", "conditions": [condition]},
    }
    error = _ends.end_error(PodStatus(pod), sandbox_id="pod")
    assert "queue took the admission back (Preempted by another)" in str(error)
    assert not error.by_command
    assert verdict_of(error, Phase.WORKED_IN).outcome is Outcome.INFRA_ERROR
