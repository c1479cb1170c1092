"""A whole Inspect evaluation: prints the ids of its sandboxes and its accuracy."""

import sys

from inspect_ai import Task, eval
from inspect_ai._cli.util import parse_sandbox
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox


@solver
def counts_words() -> Solver:
    """Uses the sandbox as a tool would: writes a file, runs a command on it."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file("notes.txt", state.input_text)
        result = await sandbox().exec(["wc", "-w", "notes.txt"])
        state.output.completion = result.stdout
        sys.stdout.write(f"{(await sandbox().connection()).container}\n")
        return state

    return solve


def main(given: str, logs: str) -> None:
    """Evaluate two samples in sandboxes as the command line's `--sandbox` describes them."""
    samples = [Sample(input="one two three", target="3"), Sample(input="one", target="1")]
    task = Task(dataset=samples, solver=counts_words(), scorer=includes())
    (log,) = eval(
        task, model="mockllm/model", display="none", log_dir=logs, sandbox=parse_sandbox(given)
    )
    if log.results is None:
        sys.exit(f"{log.status}: {log.error}")
    sys.stdout.write(f"accuracy={log.results.scores[0].metrics['accuracy'].value}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
