"""`python -m sandboxkit.integrations.openenv TASKS`: serve SWE tasks to OpenEnv's clients, until Ctrl-C.

The server has no authentication: everyone who reaches the port can use the sandboxes. It listens on 127.0.0.1 unless
`--host` says otherwise.
"""

import argparse
import contextlib

import uvicorn

from sandboxkit import Session
from sandboxkit.integrations.openenv import swe_app
from sandboxkit.integrations.swe import load_tasks


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m sandboxkit.integrations.openenv")
    parser.add_argument("tasks", help="a folder, a .tar.gz, or hf:owner/name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--provider", default=None)
    parser.add_argument("--max-sessions", type=int, default=64, help="clients at a time")
    parser.add_argument("--allow-network", action="append", default=[], metavar="NAME")
    options = parser.parse_args()
    tasks = load_tasks(options.tasks, allow_network=options.allow_network)
    with Session(options.provider, tags=("swe-server",)) as session:
        app = swe_app(session, tasks, max_sessions=options.max_sessions)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.run(app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
