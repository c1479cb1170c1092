"""A program that asks the package swebench: how a row is tested (`specs`), and what a log of that says (`report`).

It is a process of its own, because swebench reads a .env file and loads clients of clouds when it is imported, and
because its parsers read what a stranger's tests printed: they have a limit of CPU time.
"""

import json
import re
import resource
import shlex
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from swebench.harness.constants import (
    END_TEST_OUTPUT,
    NON_TEST_EXTS,
    START_TEST_OUTPUT,
    EvalType,
)
from swebench.harness.grading import get_eval_report
from swebench.harness.log_parsers import PARSER_REGISTRY
from swebench.harness.run_evaluation import GIT_APPLY_CMDS
from swebench.harness.utils import make_test_spec
from swebench.image_builder.constants import CONTAINER_ENV_NAME, CONTAINER_WORKDIR
from swebench.task.checks import expected_image
from swebench.utils import generate_heredoc_delimiter, get_modified_files

_CPU_SECONDS = 60


# Any, throughout: a row of a data set, and what swebench makes of it.
def spec_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with all that swebench needs for its tests, and how swebench runs them; or an "error"."""
    try:
        row = {"image": expected_image(row["instance_id"]), "version": "", **row}
        row.setdefault("eval_type", EvalType.PASS_AND_FAIL.value)
        if "eval_script" not in row:
            row["eval_script"] = "\n".join(_commands(row, row["install_config"]))
        spec = make_test_spec(row)
        EvalType(spec.eval_type)
        if spec.log_parser not in PARSER_REGISTRY:
            return {"error": f"log_parser {spec.log_parser!r} is none of swebench's"}
        scripts = {"script": spec.eval_script, "apply": GIT_APPLY_CMDS}
        return {"row": row, "workdir": CONTAINER_WORKDIR, **scripts}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return {"error": f"swebench cannot read it: {type(error).__name__}: {error}"}


def _commands(row: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Return the commands of a row of SWE-rebench, in the order of swebench's own scripts for Python."""
    patch, commit = row["test_patch"], row["base_commit"]
    files = re.findall("^diff --git a/.* b/(.*)$", patch, re.MULTILINE)
    files = [each for each in files if not each.endswith(tuple(NON_TEST_EXTS))]
    reset = shlex.join(["git", "checkout", commit, *get_modified_files(patch)])
    end, install = generate_heredoc_delimiter(patch), config.get("install") or ()
    return [
        "source /opt/miniconda3/bin/activate",
        f"conda activate {CONTAINER_ENV_NAME}",
        f"cd {CONTAINER_WORKDIR}",
        *(config.get("eval_commands") or ()),
        *([install] if isinstance(install, str) else install),
        reset,
        f"git apply -v - <<'{end}'\n{patch}\n{end}",
        f": '{START_TEST_OUTPUT}'",
        f"{config['test_cmd']} {shlex.join(files)}",
        f": '{END_TEST_OUTPUT}'",
        reset,
    ]


def report_of(row: dict[str, Any], log: str) -> dict[str, Any]:
    """Return swebench's report on a log. Only what follows the last start of the tests counts.

    Scripts print the repository's differences before it, in which a patch could write results.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 1))  # SIGXCPU comes first
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_text(log[max(0, log.rfind(START_TEST_OUTPUT)) :], errors="replace")
        prediction = {"instance_id": row["instance_id"], "model_patch": ""}
        reports = get_eval_report(make_test_spec(row), prediction, str(path), True)
    return dict(reports[row["instance_id"]])


if __name__ == "__main__":
    given = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):  # some parsers print warnings
        if sys.argv[1] == "specs":
            answer: Any = [spec_of(row) for row in given]
        else:
            answer = report_of(given["row"], given["log"])
    sys.stdout.write(json.dumps(answer))
