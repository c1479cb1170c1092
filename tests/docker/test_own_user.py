"""Strict containers have a uid of their own each, which they cannot use up for others."""

from dataclasses import replace

import pytest

from sandboxkit import Session
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.docker._container import own_user
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import Box
from tests.host_counts import ATTACKS, VICTIMS

SECONDS = 60


@pytest.mark.anyio
async def test_strict_containers_run_as_different_users(provider: DockerProvider, tag: str) -> None:
    spec = SandboxSpec(tags={"test": tag}, profile="strict")
    found = set()
    for _ in range(2):
        box = Box(provider, await provider.create(spec))
        uid, gid, groups = (await box.run("sh", "-c", "id -u; id -g; id -G"))[1].split()
        assert uid == gid == groups
        assert int(uid) >= 20_000
        found.add(uid)
        assert (await box.run("id", "-u", user="nobody"))[1] == "65534\n"
        await provider.delete(box.id)
    assert len(found) == 2
    named = Box(provider, await provider.create(replace(spec, user="1234:50")))
    assert (await named.run("sh", "-c", "id -u; id -g"))[1] == "1234\n50\n"
    await provider.delete(named.id)


def test_where_the_daemon_maps_users_the_uid_is_a_mapped_one() -> None:
    for option in ("name=userns", "name=rootless"):
        uid = int(own_user(["name=seccomp,profile=builtin", option]).partition(":")[0])
        assert 20_000 <= uid < 60_000
    assert int(own_user(["name=cgroupns"]).partition(":")[0]) >= 1 << 20


@pytest.mark.parametrize("what", ATTACKS)
def test_other_strict_containers_keep_their_full_budget(daemon: None, what: str) -> None:
    with Session("docker", profile="strict") as session:
        attacker = session.sandbox()
        attack = attacker.exec(["python3", "-c", ATTACKS[what]]).result(SECONDS)
        assert int(attack.stdout) > 20, attack.stderr
        victim = session.run(["python3", "-c", VICTIMS[what]]).result(SECONDS)
        assert victim.stdout == "fine\n", victim.stderr
