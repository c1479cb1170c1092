"""Grades an agent's work on a task, by default in a sandbox that the agent never had access to."""

from contextlib import suppress
from dataclasses import replace

from sandboxkit import (
    CommandError,
    CommandFailedError,
    ConfigurationError,
    Image,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxFileError,
    Session,
    Snapshot,
)
from sandboxkit.images import image_on
from sandboxkit.integrations.rewards import (
    TROUBLE,
    Limits,
    Outcome,
    Phase,
    Verdict,
    grade_in_fresh,
    judge_folder,
    verdict_of,
)
from sandboxkit.integrations.swe._shared import (
    MissingRewardError,
    clean,
    kill_all,
    lay_out,
    run_tests,
)
from sandboxkit.integrations.swe._task import Task
from sandboxkit.options import SpecOptions

_FILES_SECONDS = 900  # to start the sandboxes and to copy artefacts between them


def grade(session: Session, task: Task, agent: Sandbox, *, retries: int = 2) -> Operation[Verdict]:
    """Grade the agent's work and stop its sandbox.

    The task's artefacts are copied to a pristine sandbox of the task's image, where `setup.sh` does
    not run. With `task.in_place` the agent's own sandbox is graded. A `judge.py` runs in a separate
    sandbox (trust "isolated" if it only reads files), a `test.sh` in that of the work (trust "shared").
    """
    return Operation(_grade(session, task, agent, retries))


async def with_image(session: Session, task: Task) -> Task:
    """Return the task with its image built, if that is a Dockerfile's; a build that is there is used."""
    if not isinstance(task.image, Image):
        return task
    options: SpecOptions = {
        "profile": session.sandbox().spec.profile,
        "network": task.build_network,
    }
    if task.build_timeout is not None:
        options["lifetime"] = task.build_timeout
    return replace(task, image=await task.image.build(session.provider_name, **options))


async def _grade(session: Session, task: Task, agent: Sandbox, retries: int) -> Verdict:
    task = await with_image(session, task)
    before: list[MissingRewardError] = []

    async def test(sandbox: Sandbox) -> Verdict:
        if task.judged:
            return await _judged(session, sandbox, task)
        return await _shared(session, sandbox, task, before)

    if task.in_place:
        return await _in_place(session, agent, task)
    if (failure := await _collect(agent, task)) is not None:
        await agent.stop()
        return failure
    return await grade_in_fresh(
        agent,
        task.artefacts,
        lambda: make_sandbox(session, task, tests=True),
        test,
        retries=retries,
        deadline=_FILES_SECONDS + (retries + 1 + task.reward_decides) * task.test_timeout,
    )


async def _collect(agent: Sandbox, task: Task) -> Verdict | None:
    """Make the artefacts in the agent's sandbox; return the verdict if that fails."""
    if task.collect is None:
        return None
    try:
        made = await agent.exec(list(task.collect), cwd=task.workdir, timeout=_FILES_SECONDS)
    except TROUBLE as error:
        return verdict_of(error, Phase.WORKED_IN)
    if made.returncode == 0:
        return None
    detail = f"the work cannot be collected: {ascii(made.stderr.strip()[-300:])[1:-1]}"
    return Verdict(Outcome.FAILED, 0.0, "policy", detail)


def make_sandbox(
    session: Session, task: Task, *, tests: bool = False, snapshot: Snapshot | None = None
) -> Sandbox:
    """Return a sandbox of the task's image, not yet started: for the agent or, with `tests`, for grading.

    With `snapshot` it starts from the task's finished set-up, with the network that applies after that.
    Raises ConfigurationError for a task that asks for more memory or processors than the session has.
    """
    after = task.network or ("none" if task.setup_network is not None else None)
    before = task.setup_network or task.network
    image = task.image
    assert not isinstance(image, Image), "with_image() has not built it"
    limits = {
        "workdir": task.workdir,
        "memory_mb": task.memory_mb,
        "cpus": task.cpus,
        "user": task.test_user if tests else task.user,
        "network": task.test_network if tests else before if snapshot is None else after,
        "env": task.env or None,
        "snapshot": snapshot or (image if isinstance(image, Snapshot) else None),
        "image": image_on(session.provider_name, image) if isinstance(image, str) else None,
    }
    given = {name: value for name, value in limits.items() if value is not None}
    made = session.sandbox(**given)  # type: ignore[arg-type]  # keys of SandboxSpec
    if task.disk_mb is not None:
        with suppress(ConfigurationError):  # its files are limited by the host's disk alone
            made = session.sandbox(disk_mb=task.disk_mb, **given)  # type: ignore[arg-type]  # as above
    for name in ("memory_mb", "cpus", "disk_mb"):
        most, wanted = getattr(session.sandbox().spec, name), getattr(made.spec, name)
        if most is not None and wanted > most:
            raise ConfigurationError(
                f"task {task.id!r} asks for {name}={wanted}; the session's own {name}={most} is the most that it "
                "may have: raise it in Session(...), or leave it out for no limit to what tasks ask"
            )
    return made


async def _judged(session: Session, subject: Sandbox, task: Task) -> Verdict:
    """Grade with `tests/judge.py`, which runs in a separate sandbox."""
    limits = Limits(timeout=task.test_timeout, deadline=_FILES_SECONDS + 2 * task.test_timeout)
    env = await clean(subject, task)
    return await judge_folder(session, subject, task.tests, limits, env=env)


async def _shared(
    session: Session, sandbox: Sandbox, task: Task, before: list[MissingRewardError]
) -> Verdict:
    """Grade with `tests/test.sh`, in a sandbox with the agent's artefacts but none of its processes."""
    try:
        try:
            await lay_out(sandbox, task.tests, task.script)
        except CommandFailedError:
            # A busy host may make it fail once; if the artefacts fill the disk, it fails again.
            await lay_out(sandbox, task.tests, task.script)
    except (SandboxFileError, CommandError) as error:
        await sandbox.stop()  # frees its slot for the control sandbox
        return await _whose(session, task, error)
    return await _tested(session, sandbox, task, before)


async def _tested(
    session: Session, sandbox: Sandbox, task: Task, before: list[MissingRewardError]
) -> Verdict:
    """Run the tests; if they write no reward, decide whether the submission is to blame.

    It is to blame (TAMPERED) if the same tests write a reward in a control sandbox without the
    submission. With a network, a network failure in one sandbox may also be the cause. The first missing
    reward then raises ProviderUnavailableError, so that grading is retried; the second one counts.
    `before` records the first one.
    """
    try:
        return await run_tests(sandbox, task)
    except MissingRewardError as missing:
        await sandbox.stop()
        detail = f"the tests wrote no reward: {missing}"
        if not before:
            if (wrong := await _without_submission(session, task, detail)) is not None:
                return wrong
            before.append(missing)
            if _has_network(sandbox, task):
                raise ProviderUnavailableError(detail) from None
        return Verdict(Outcome.TAMPERED, 0.0, "policy", detail)


def _has_network(sandbox: Sandbox, task: Task) -> bool:
    """Return whether tests in this sandbox could reach a server."""
    if task.changes_network:
        return task.test_network != "none"
    spec = sandbox.spec
    return spec.network == "internet" or bool(spec.egress or spec.native_rules)


async def _without_submission(session: Session, task: Task, detail: str) -> Verdict | None:
    """Run the tests in a sandbox without the submission; return None if they write a reward.

    Otherwise returns a masked verdict whose text begins with `detail`.
    """
    control = make_sandbox(session, task, tests=True)
    try:
        if task.seeds is not None:
            await control.upload(task.seeds, task.workdir)
        await lay_out(control, task.tests, task.script)
        verdict = await run_tests(control, task)
    except MissingRewardError:
        return _masked(f"{detail}; without a submission they wrote none either")
    except TROUBLE as error:
        return verdict_of(error, Phase.STARTED, trust="shared")
    finally:
        await control.stop()
    if verdict.outcome in (Outcome.PASSED, Outcome.FAILED):
        return None
    return _masked(f"{detail}; without a submission: {verdict.detail}")


def _masked(detail: str) -> Verdict:
    return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)


async def _whose(session: Session, task: Task, error: SandboxError) -> Verdict:
    """Return the verdict on `error`, raised when the tests were laid out beside the artefacts.

    The policy is to blame if the tests can be laid out in a sandbox without the artefacts.
    """
    control = make_sandbox(session, task, tests=True)
    try:
        await lay_out(control, task.tests, task.script)
    except (SandboxFileError, CommandError) as ours:
        return verdict_of(ours, Phase.STARTED, trust="shared")
    finally:
        await control.stop()
    return verdict_of(error, Phase.PLACED, trust="shared")


async def _in_place(session: Session, agent: Sandbox, task: Task) -> Verdict:
    try:
        await kill_all(agent)
        if task.changes_network and task.test_network is not None:
            await agent.set_network(task.test_network)
        if task.judged:
            return await _judged(session, agent, task)
        try:
            await lay_out(agent, task.tests, task.script)
        except (SandboxFileError, CommandError) as error:
            verdict = await _whose(session, task, error)
            if verdict.attributable_to != "policy":
                return verdict
            detail = f"the tests cannot be laid out: {error}"
            return Verdict(Outcome.TAMPERED, 0.0, "policy", detail)
        return await _tested(session, agent, task, [])
    except TROUBLE as error:
        return verdict_of(error, Phase.GRADED, trust="shared")
    finally:
        await agent.stop()
