"""A provider that lives long keeps nothing of the sandboxes that are over."""

import concurrent.futures
from collections.abc import Iterator

import pytest

from sandboxkit import Sandbox, SandboxError, Session, _registry
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from tests.docker_here import require_docker

FILLS = ["sh", "-c", "head -c 300000000 /dev/zero | tail -c 300000000 | wc -c"]


def strings(value: object, seen: set[int]) -> Iterator[str]:
    """Every string in an object of ours and in what it holds."""
    if isinstance(value, str):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, dict):
            held = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            held = list(value)
        elif type(value).__module__.startswith("sandboxkit."):
            held = list(getattr(value, "__dict__", {}).values())
        else:
            held = []
        for each in held:
            yield from strings(each, seen)


def use(sandbox: Sandbox, number: int) -> str:
    """Run something in it, which may be its end; stop it in any case."""
    sandbox.start().result(60)
    assert sandbox.id is not None
    try:
        if number % 4 == 0:
            sandbox.exec(FILLS).result(60)
        elif number % 4 == 1:
            running = sandbox.exec(["sleep", "100"])
            sandbox.stop().result(60)
            running.exception(60)
        elif number % 4 == 2:
            with pytest.raises(concurrent.futures.TimeoutError):
                sandbox.exec(["sleep", "100"]).result(0.1)
        else:
            sandbox.exec(["true"]).result(60)
    except SandboxError:
        pass  # it ran out of memory
    finally:
        sandbox.stop().result(60)
    return sandbox.id


@pytest.mark.parametrize("name", ["fake", "local", "docker"])
def test_a_provider_forgets_ended_sandboxes(name: str) -> None:
    if name == "docker":
        require_docker()
    provider: Provider = FakeProvider() if name == "fake" else _registry.load(name)
    memory_mb = None if name == "fake" else 64
    with Session(provider) as session:
        ids = [use(session.sandbox(memory_mb=memory_mb), number) for number in range(8)]
        found = set(strings(provider, set()))
        assert [each for each in ids if any(each in text for text in found)] == []
