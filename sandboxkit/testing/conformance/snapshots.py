"""Conformance tests for snapshots: which data they keep, and that forks share nothing."""

import os
import time
from collections.abc import Iterator
from typing import get_args

from sandboxkit import (
    ConfigurationError,
    Image,
    Operation,
    Sandbox,
    SandboxError,
    Session,
    Snapshot,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import Provider
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, mine, token, until
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.types import Profile, SandboxSpec, SnapshotInfo

__all__ = ["SnapshotsConformance"]

_MAKE = """
import os, sys
os.makedirs("folder/deep")
os.chdir("folder")
def write(name, text):
    with open(name, "w") as file:
        file.write(text)
write("plain", "content")
write("mode", "m"); os.chmod("mode", 0o640)
write("times", "t"); os.utime("times", (1_000_000_000, 1_100_000_000))
write("first", "linked"); os.link("first", "second")
os.symlink("plain", "soft"); os.symlink("/etc/shadow", "outside")
os.mkfifo("pipe")
os.chmod("deep", 0o2755)
write(sys.argv[1], "tmp")
os.mkdir("unreadable"); write("unreadable/inside", "i"); os.chmod("unreadable/inside", 0)
"""
_SHOW = """
import os, sys
os.chdir("folder")
for name in sorted(os.listdir(".")):
    at = os.lstat(name)
    size = os.path.isfile(name) and at.st_size
    print(name, oct(at.st_mode), size, at.st_uid == os.getuid(), name == "times" and at.st_mtime_ns)
first, second = os.stat("first"), os.stat("second")
print(first.st_nlink, first.st_ino == second.st_ino)
print(os.readlink("soft"), os.readlink("outside"), open("plain").read(), open(sys.argv[1]).read())
os.chmod("unreadable/inside", 0o600)
print(open("unreadable/inside").read())
"""
_MAKE_DETAIL = {
    "holes": """
with open("hole", "wb") as file:
    file.truncate(64 << 20); file.seek(32 << 20); file.write(b"middle")
""",
    "nanoseconds": """
open("times", "w").close(); os.utime("times", ns=(10**18 + 123_456_789, 10**18 + 987_654_321))
""",
    "xattrs": """
open("attributes", "w").close(); os.setxattr("attributes", "user.sandboxkit", b"value")
""",
}
_SHOW_DETAIL = {
    "holes": """
file = open("hole", "rb"); file.seek(32 << 20)
print(file.read(7), os.stat("hole").st_size, os.stat("hole").st_blocks * 512 < 8 << 20)
""",
    "nanoseconds": """print(os.stat("times").st_mtime_ns)""",
    "xattrs": """print(os.getxattr("attributes", "user.sandboxkit"))""",
}


class SnapshotsConformance(Conformance):
    """`snapshot()`, `fork()` and the option `snapshot`: honoured, or refused before anything is made."""

    @pytest.fixture
    def taking(self) -> Iterator[Session]:
        """A session of a provider with snapshots; the test's snapshots are removed."""
        yield from self._taking("standard")

    @pytest.fixture(params=get_args(Profile))
    def each(self, request: pytest.FixtureRequest) -> Iterator[Session]:
        """Like `taking`, once for each profile."""
        if request.param not in self.snapshot_profiles:
            pytest.skip(f"{type(self).__name__}.snapshot_profiles lacks {request.param!r}")
        yield from self._taking(request.param)

    def _taking(self, profile: Profile) -> Iterator[Session]:
        provider = self.make_provider()
        mark = {"conformance": token()}
        try:
            try:
                provider.check_snapshot(SandboxSpec(profile=profile), "files")
            except ConfigurationError as error:
                pytest.skip(str(error))
            with Session(provider, image=self.image, tags=mark, profile=profile) as session:
                yield session
            for info in self._stored(provider, mark):
                Operation(provider.delete_snapshot(info.id)).result(DEADLINE)
            assert self._stored(provider, mark) == []
        finally:
            Operation(provider.aclose()).result(DEADLINE)

    def _stored(self, provider: Provider, tags: dict[str, str]) -> list[SnapshotInfo]:
        async def listed() -> list[SnapshotInfo]:
            return [info async for info in provider.list_snapshots(tags)]

        return Operation(listed()).result(DEADLINE)

    def _of(self, session: Session) -> list[SnapshotInfo]:
        return self._stored(session._provider, {"conformance": session._spec.tags["conformance"]})

    def test_snapshots_are_taken_or_refused_before_anything_is_made(
        self, provider: Provider
    ) -> None:
        with Session(provider, image=self.image, tags={"conformance": token()}) as session:
            if not _takes(provider):
                with pytest.raises(ConfigurationError, match="snapshot"):
                    session.sandbox().snapshot()
                with pytest.raises(ConfigurationError, match="snapshot"):
                    session.sandbox().fork(2)
                with pytest.raises(ConfigurationError, match="snapshot"):
                    session.sandbox(snapshot="snapshot-0123456789abcdef")
            assert mine(session) == []

    def test_a_kind_is_never_replaced_by_another(self, taking: Session) -> None:
        sandbox = taking.sandbox()
        try:
            taking._provider.check_snapshot(SandboxSpec(), "memory")
        except ConfigurationError:
            with pytest.raises(ConfigurationError, match="memory"):
                sandbox.snapshot(kind="memory")
            assert sandbox.id is None
            return
        ticks = "while :; do date +%s%N > tick; sleep 0.1; done >/dev/null 2>&1 &"
        sandbox.exec(["sh", "-c", ticks], check=True).result(DEADLINE)
        snapshot = sandbox.snapshot(kind="memory").result(DEADLINE)
        assert snapshot.kind == "memory"
        with taking.sandbox(snapshot=snapshot) as other:
            until(lambda: _has(other, "tick"), "the program writes")
            first = other.read_file("/workspace/tick").result(DEADLINE)
            until(
                lambda: other.read_file("/workspace/tick").result(DEADLINE) not in (b"", first),
                "the program runs in the other sandbox",
            )

    def test_files_are_kept_as_they_were(self, each: Session) -> None:
        with each.sandbox() as sandbox:
            sandbox.exec(["python3", "-c", _MAKE, "/tmp/in-tmp"], check=True).result(DEADLINE)
            shown = (
                sandbox.exec(["python3", "-c", _SHOW, "/tmp/in-tmp"], check=True)
                .result(DEADLINE)
                .stdout
            )
            sandbox.exec(["chmod", "0", "/workspace/folder/unreadable/inside"]).result(DEADLINE)
            snapshot = sandbox.snapshot("base").result(DEADLINE)
            sandbox.exec(["rm", "-r", "/workspace/folder"], check=True).result(DEADLINE)
        with each.sandbox(snapshot=snapshot) as other:
            seen = other.exec(["python3", "-c", _SHOW, "/tmp/in-tmp"]).result(DEADLINE)
            assert seen.stdout == shown, seen.stderr
            assert "2 True" in seen.stdout

    @pytest.mark.parametrize("detail", sorted(_MAKE_DETAIL))
    def test_the_details_of_files_are_kept(self, taking: Session, detail: str) -> None:
        if detail in self.snapshots_lose:
            pytest.skip(f"{type(self).__name__}.snapshots_lose names {detail!r}")
        make, show = (f"import os\n{code[detail]}" for code in (_MAKE_DETAIL, _SHOW_DETAIL))
        with taking.sandbox() as sandbox:
            made = sandbox.exec(["python3", "-c", f"{make}\n{show}"]).result(DEADLINE)
            if detail == "xattrs" and made.returncode:
                pytest.skip(made.stderr)
            snapshot = sandbox.snapshot().result(DEADLINE)
        with taking.sandbox(snapshot=snapshot) as other:
            seen = other.exec(["python3", "-c", f"import os\n{show}"]).result(DEADLINE)
            assert (made.returncode, seen.stdout) == (0, made.stdout), seen.stderr

    def test_every_file_can_be_changed_in_a_fork(self, each: Session) -> None:
        change = "cd folder && echo more >> plain && rm first && mv deep moved && mkdir deep"
        with each.sandbox() as sandbox:
            sandbox.exec(["python3", "-c", _MAKE, "/tmp/in-tmp"], check=True).result(DEADLINE)
            snapshot = sandbox.snapshot().result(DEADLINE)
        with each.sandbox(snapshot=snapshot.id) as other:
            other.exec(["sh", "-c", change], check=True).result(DEADLINE)
            other.write_file("/workspace/folder/new", b"new").result(DEADLINE)
        with each.sandbox(snapshot=snapshot.id) as third:
            seen = third.exec(["ls", "/workspace/folder"]).result(DEADLINE).stdout.split()
            assert {"first", "deep"} <= set(seen)
            assert not {"moved", "new"} & set(seen)
            assert third.read_file("/workspace/folder/plain").result(DEADLINE) == b"content"

    def test_deletions_are_kept_through_a_chain_of_snapshots(self, each: Session) -> None:
        parent: Snapshot | None = None
        for depth in range(9):
            with each.sandbox(snapshot=parent) as sandbox:
                gone = f"rm file-{depth - 1}; ls" if depth else "ls"
                sandbox.write_file(f"/workspace/file-{depth}", b"x").result(DEADLINE)
                seen = sandbox.exec(["sh", "-c", gone], check=True).result(DEADLINE)
                assert seen.stdout.split() == [f"file-{depth}"], depth
                taken = sandbox.snapshot().result(DEADLINE)
                assert taken.parent == (parent and parent.id)
                parent = taken

    def test_nothing_that_runs_and_nothing_secret_is_kept(self, taking: Session) -> None:
        secret = f"secret-{token()}"
        with taking.sandbox(env={"MARK": secret}, secrets={"KEY": secret}) as sandbox:
            mark = token()
            sandbox.exec(["sh", "-c", f"(sleep 600; : {mark}) >/dev/null 2>&1 &"]).result(DEADLINE)
            snapshot = sandbox.snapshot().result(DEADLINE)
        assert not any(key.startswith("sandboxkit.") for key in snapshot.tags)
        look = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ps ax || true"
        with taking.sandbox(snapshot=snapshot) as other:
            seen = other.exec(["sh", "-c", look]).result(DEADLINE).stdout
            assert secret not in seen
            info = other.status().result(DEADLINE)
            assert mark not in seen
        assert info.tags["sandboxkit.session"] == taking.id

    def test_commands_stand_still_while_it_is_taken(self, taking: Session) -> None:
        pairs = (
            "import itertools, os\n"
            "for n in itertools.count():\n"
            "    for name in 'ab':\n"
            "        with open(f'.{name}', 'w') as file: file.write(str(n))\n"
            "        os.rename(f'.{name}', name)\n"
        )
        with taking.sandbox() as sandbox:
            sandbox.exec(["sh", "-c", "for n in $(seq 300); do echo $n > z$n; done"])
            running = sandbox.exec(["python3", "-c", pairs])
            until(lambda: _has(sandbox, "/workspace/b"), "the program writes")
            snapshot = sandbox.snapshot().result(DEADLINE)
            last = int(sandbox.read_file("/workspace/a").result(DEADLINE))
            until(
                lambda: int(sandbox.read_file("/workspace/a").result(DEADLINE)) > last,
                "the program goes on afterwards",
            )
            running.kill()
        with taking.sandbox(snapshot=snapshot) as other:
            a, b = (int(other.read_file(f"/workspace/{x}").result(DEADLINE)) for x in "ab")
            assert a - b in (0, 1), "a torn state"

    def test_forks_see_the_base_and_not_each_other(self, each: Session) -> None:
        with each.sandbox() as sandbox:
            make = "echo base > own && echo x > shared && ln shared linked"
            sandbox.exec(["sh", "-c", make], check=True).result(DEADLINE)
            forks = sandbox.fork(4).result(DEADLINE)
            change = "cat own && echo $0 > own && rm linked && ln own mine-$0 && ls"
            running = [
                fork.exec(["sh", "-c", change, str(number)])
                for number, fork in enumerate(_started(forks))
            ]
            for number, process in enumerate(running):
                seen = process.result(DEADLINE)
                assert seen.stdout.split() == ["base", f"mine-{number}", "own", "shared"], (
                    seen.stderr
                )
            for number, fork in enumerate(_started(forks)):
                own = fork.read_file("/workspace/own").result(DEADLINE)
                assert own == f"{number}\n".encode()
                fork.stop().result(DEADLINE)
            names = sandbox.exec(["ls", "/workspace"]).result(DEADLINE).stdout.split()
            assert names == ["linked", "own", "shared"]
        until(lambda: self._of(each) == [], "the last fork removes the snapshot")

    def test_a_fork_counts_and_is_stopped_like_any_sandbox(self, taking: Session) -> None:
        with taking.sandbox() as sandbox:
            (fork,) = _started(sandbox.fork(1).result(DEADLINE))
            assert {info.id for info in mine(taking)} == {sandbox.id, fork.id}
            fork.stop().result(DEADLINE)
            assert {info.id for info in mine(taking)} == {sandbox.id}

    def test_snapshots_are_listed_by_tag_and_deleted(self, taking: Session) -> None:
        before = time.time()
        with taking.sandbox(tags={"step": "1"}) as sandbox:
            random = os.urandom(100_000)  # takes as much when it is compressed
            sandbox.write_file("/workspace/file", random).result(DEADLINE)
            snapshot = sandbox.snapshot("name", ttl=600, tags={"best": "yes"}).result(DEADLINE)
        (info,) = self._of(taking)
        assert (info.id, info.name, info.kind, info.parent) == (snapshot.id, "name", "files", None)
        assert {"step": "1", "best": "yes"}.items() <= info.tags.items()
        assert info.bytes is None or info.bytes >= 100_000
        assert info.expires_at is not None
        assert 590 < info.expires_at.timestamp() - before < 700
        assert self._stored(taking._provider, {"best": "no"}) == []
        snapshot.delete().result(DEADLINE)
        snapshot.delete().result(DEADLINE)
        assert self._of(taking) == []

    def test_a_snapshot_in_use_is_not_deleted(self, taking: Session) -> None:
        with taking.sandbox() as sandbox:
            sandbox.write_file("/workspace/file", b"kept").result(DEADLINE)
            snapshot = sandbox.snapshot().result(DEADLINE)
        with taking.sandbox(snapshot=snapshot) as user:
            with pytest.raises(SnapshotInUseError):
                snapshot.delete().result(DEADLINE)
            assert user.read_file("/workspace/file").result(DEADLINE) == b"kept"
        taking.run(["true"], snapshot=snapshot).result(DEADLINE)  # it is still being removed
        snapshot.delete().result(DEADLINE)

    def test_an_image_is_built_once_and_starts_sandboxes(self, taking: Session) -> None:
        mark = {"conformance": taking._spec.tags["conformance"]}
        image = Image(self.image).run(f"echo {mark['conformance']} > kept")
        lines: list[str] = []

        def build() -> Snapshot:
            building = image.build(
                taking._provider, network="none", tags=mark, progress=lines.append
            )
            return building.result(DEADLINE)

        first, built = build(), build()
        assert first.id == built.id
        assert len(lines) == 1, "the steps ran again"
        shown = taking.run(["cat", "kept"], image=None, snapshot=built, check=True)
        assert shown.result(DEADLINE).stdout.split() == [mark["conformance"]]

    def test_a_missing_snapshot_is_an_error_that_names_it(self, taking: Session) -> None:
        with pytest.raises(SnapshotNotFoundError, match="snapshot-0123456789abcdef"):
            taking.sandbox(snapshot="snapshot-0123456789abcdef").start().result(DEADLINE)
        assert mine(taking) == []


def _takes(provider: Provider) -> bool:
    try:
        provider.check_snapshot(SandboxSpec(), "files")
    except ConfigurationError:
        return False
    return True


def _has(sandbox: Sandbox, path: str) -> bool:
    return sandbox.exec(["test", "-e", path]).result(DEADLINE).returncode == 0


def _started(forks: "list[Sandbox | SandboxError]") -> list[Sandbox]:
    assert [each for each in forks if not isinstance(each, Sandbox)] == []
    return [each for each in forks if isinstance(each, Sandbox)]
