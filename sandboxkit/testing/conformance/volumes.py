"""Conformance tests for volumes: files in a volume outlive their sandbox, and other files do not."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from sandboxkit import ConfigurationError, Operation, Session, Volume, VolumeError
from sandboxkit.provider import Provider
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, token
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.types import Profile, SandboxSpec

__all__ = ["VolumesConformance"]


class VolumesConformance(Conformance):
    """The option `mounts` with a `Volume`: honoured, or refused before anything is made."""

    @pytest.fixture
    def volume(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volume:
        """A volume that does not exist yet, in a state folder that only this test uses."""
        monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
        return Volume(f"test-{token()[:20]}")

    @pytest.fixture
    def writing(self, volume: Volume) -> Iterator[Provider]:
        """A provider with volumes; the test's volume is removed after the test."""
        provider = self.make_provider()
        try:
            try:
                provider.check(SandboxSpec(mounts={"/cache": volume.source}))
            except ConfigurationError as error:
                pytest.skip(str(error))
            yield provider
            if volume.name in _names(provider):
                _remove(provider, volume.name)
        finally:
            Operation(provider.aclose()).result(DEADLINE)

    def test_volumes_are_honoured_or_refused_before_anything_is_made(
        self, volume: Volume, provider: Provider
    ) -> None:
        refusals: list[str] = []
        try:
            with Session(provider, image=self.image, mounts={"/cache": volume}) as session:
                session.sandbox()
        except ConfigurationError as error:
            refusals.append(str(error))
        assert all("mounts=" in refusal and "/cache" in refusal for refusal in refusals)
        assert volume.name not in _names(provider)

    def test_what_a_sandbox_writes_to_a_volume_another_one_finds_and_changes(
        self, writing: Provider, volume: Volume
    ) -> None:
        script = "set -e; echo $1 >> /cache/seen; mkdir -p /cache/a; echo $1 > /cache/a/$1; cat /cache/seen"
        seen = ""
        with Session(writing, image=self.image, mounts={"/cache": volume}) as session:
            for number, profile in enumerate(2 * get_args(Profile)):
                seen += f"{number}\n"
                argv = ["sh", "-c", script, "sh", str(number)]
                result = session.run(argv, profile=profile).result(DEADLINE)
                assert (result.stdout, result.stderr) == (seen, "")
            removed = session.run(["rm", "-r", "/cache/a", "/cache/seen"]).result(DEADLINE)
            assert removed.returncode == 0, removed.stderr
            assert session.run(["ls", "/cache"]).result(DEADLINE).stdout == ""

    def test_sandboxes_share_a_volume_while_they_run(
        self, writing: Provider, volume: Volume
    ) -> None:
        with Session(writing, image=self.image, mounts={"/cache": volume}) as session:
            one, other = session.sandbox(), session.sandbox()
            one.write_file("/cache/file", b"written").result(DEADLINE)
            assert other.read_file("/cache/file").result(DEADLINE) == b"written"
            other.exec(["sh", "-c", "echo ' more' >> /cache/file"], check=True).result(DEADLINE)
            assert one.read_file("/cache/file").result(DEADLINE) == b"written more\n"

    def test_volumes_of_other_names_are_apart(self, writing: Provider, volume: Volume) -> None:
        other = Volume(f"{volume.name}-b")
        try:
            with Session(writing, image=self.image, mounts={"/cache": volume}) as session:
                session.run(["touch", "/cache/file"], check=True).result(DEADLINE)
                seen = session.run(["ls", "/cache"], mounts={"/cache": other}).result(DEADLINE)
                assert seen.stdout == ""
                none = session.run(["ls", "/cache"], mounts={}).result(DEADLINE)
                assert none.returncode != 0
        finally:
            _remove(writing, other.name)

    def test_a_volume_stays_until_it_is_removed(self, writing: Provider, volume: Volume) -> None:
        with Session(writing, image=self.image, mounts={"/cache": volume}) as session:
            session.run(["touch", "/cache/file"], check=True).result(DEADLINE)
        assert volume.name in _names(writing)
        _remove(writing, volume.name)
        assert volume.name not in _names(writing)
        with Session(writing, image=self.image, mounts={"/cache": volume}) as session:
            assert session.run(["ls", "/cache"]).result(DEADLINE).stdout == ""

    def test_a_volume_in_use_is_not_removed(self, writing: Provider, volume: Volume) -> None:
        with Session(writing, image=self.image, mounts={"/cache": volume}) as session:
            sandbox = session.sandbox()
            sandbox.write_file("/cache/file", b"kept").result(DEADLINE)
            with pytest.raises(VolumeError, match=f"{volume.name}.* in use"):
                _remove(writing, volume.name)
            assert sandbox.read_file("/cache/file").result(DEADLINE) == b"kept"

    def test_removing_a_volume_that_does_not_exist_is_an_error(
        self, writing: Provider, volume: Volume
    ) -> None:
        with pytest.raises(VolumeError, match=f"no volume '{volume.name}'"):
            _remove(writing, volume.name)


def _names(provider: Provider) -> list[str]:
    return Operation(provider.list_volumes()).result(DEADLINE)


def _remove(provider: Provider, name: str) -> None:
    Operation(provider.remove_volume(name)).result(DEADLINE)
