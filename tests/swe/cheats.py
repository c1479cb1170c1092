"""Submissions that forge a verdict: scripts that the agent runs, and its program once more."""

import json

from tests.data_here import beside

_GIVEN = beside(__file__)
_REWARD = "/logs/verifier/reward.txt"
_FORGE = f"mkdir -p /logs/verifier; echo 1.0 > {_REWARD}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _script(text: str) -> str:
    text = text.replace("FORGE", _FORGE).replace("REWARD", _REWARD)
    return _GIVEN["replaced"] + text if "replaced " in text else text


SCRIPTS = {name: _script(text) for name, text in _GIVEN["shell"].items()} | {
    name: _script(f"python3 -c {_quoted(given['code'])}; {given.get('then', '')}")
    for name, given in _GIVEN["python"].items()
}
"""By name: what a shell does in /workspace. Most of it can be done by a program that is tested."""

IN_WORKSPACES: list[str] = _GIVEN["in_workspaces"]
"""Those that are also made from each bundled task's workspace."""


def program(script: str) -> str:
    """A Python program that runs the script and then claims success."""
    call = f"subprocess.run(['bash', '-c', {json.dumps(script)}], stdin=subprocess.DEVNULL)"
    return f"import os, subprocess\nos.chdir('/workspace')\n{call}\n"


def planted(script: str) -> str:
    """A script that does it, and has all that a bundled task runs or reads do it or claim success."""
    copy, text = _quoted(f"#!/usr/bin/env python3\n{program(script)}"), str(_GIVEN["planted"])
    return text.replace("PROGRAM", copy).replace("SCRIPT", _quoted(script)) + script
