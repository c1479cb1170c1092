"""A command's input, terminal and end are its own, whatever else runs in the sandbox."""

from sandboxkit import PtySize, Session
from tests.emulators._server import Server


def test_an_input_reaches_its_command_beside_another(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    neighbour = sandbox.exec(["sleep", "1000"])
    result = sandbox.exec(["cat"], stdin=b"to the cat").result(20)
    assert result.stdout == "to the cat"
    neighbour.kill()


def test_files_are_written_at_the_same_time(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    paths = {f"/workspace/{index}": b"%d" % index for index in range(8)}
    for write in [sandbox.write_file(path, data) for path, data in paths.items()]:
        write.result(20)
    assert {path: sandbox.read_file(path).result(20) for path in paths} == paths


def test_a_terminal_beside_three_others_is_written_to_and_resized(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox().start().result(30)
    script = 'echo ready; read line; stty size; echo "got $line"'
    terminals = [
        sandbox.exec(["sh", "-c", script], stdin=True, pty=PtySize(24, 80)) for _ in range(4)
    ]
    for index, terminal in enumerate(terminals):
        assert next(iter(terminal.stdout.lines())) == "ready"
        assert terminal.stdin is not None
        terminal.stdin.resize(PtySize(30 + index, 100)).result(20)
        terminal.stdin.write(f"line {index}\n".encode()).result(20)
    for index, terminal in enumerate(terminals):
        output = terminal.result(20).stdout
        assert f"{30 + index} 100" in output
        assert f"got line {index}" in output
