"""A terminal: a persistent shell, a command that outlives its timeout, and input for a running program."""

from sandboxkit import Session

with Session() as session, session.sandbox().terminal() as terminal:
    terminal.run("cd /tmp; greet() { echo hello $1 from $PWD; }").result()
    greeted = terminal.run("greet you; (exit 3)").result()
    print(greeted.output.strip(), greeted.returncode)

    waiting = terminal.run("echo begun; sleep 1000", timeout=2).result()
    print(waiting.output.strip(), waiting.running)
    print(terminal.interrupt().result().returncode)

    asking = terminal.run("read -p 'name? ' name; echo thanks $name")
    terminal.expect(r"name\? ").result()
    terminal.send("Ann\n").result()
    print(asking.result().output.strip())
