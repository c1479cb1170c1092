"""Shell: one script after another in a sandbox, with the working directory and environment kept."""

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandboxkit._process import OUTPUT_LIMIT, Process

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

# $1 is the file that holds the state, $2 the script. The script runs in the shell itself, so
# that cd and export last; the trap saves them also when the script calls exit.
_RUN = """
if [ -f "$1" ]; then . "$1"; fi
__sandboxkit_state=$1 __sandboxkit_script=$2
set --
__sandboxkit_save() { { export -p; printf 'cd -- %s\\n' "'$(pwd | sed "s/'/'\\\\\\\\''/g")'"; } > "$__sandboxkit_state.new" && mv -f "$__sandboxkit_state.new" "$__sandboxkit_state"; }
trap '__sandboxkit_status=$?; __sandboxkit_save; exit $__sandboxkit_status' EXIT
eval "$__sandboxkit_script"
"""
_START = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$0" bash "$@"; fi; exec sh -c "$0" sh "$@"'


class Shell:
    """A shell that keeps its working directory and exported variables between scripts.

    Each script is a command of its own, so it has an exact exit status, can be timed out and
    killed, and cannot break the shell for the next one. A script that is killed leaves the
    directory and variables as they were before it. Runs bash where the sandbox has it, else sh.
    """

    def __init__(
        self,
        sandbox: "Sandbox",
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
    ) -> None:
        self._sandbox, self._cwd, self._env, self._user = sandbox, cwd, env, user
        self._state = f"/tmp/.sandboxkit-shell-{secrets.token_hex(8)}"

    def run(
        self,
        script: str,
        *,
        timeout: float | None = None,
        check: bool = False,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> Process:
        """Run a script, after those that were run before it have ended. See `Sandbox.exec`."""
        return self._sandbox.exec(
            ["sh", "-c", _START, _RUN, self._state, script],
            cwd=self._cwd,
            env=self._env,
            user=self._user,
            timeout=timeout,
            check=check,
            output_limit=output_limit,
        )
