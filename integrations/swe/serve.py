"""An OpenEnv-style server: POST /reset and /step, GET /state and /health, JSON in and out.

    python -m sandboxkit.integrations.swe.serve TASKS [--port 8000] [--provider docker]

`/reset` takes `{"task_id": ...}` and returns `{"episode_id", "observation", "reward", "done"}`.
`/step` takes `{"episode_id": ..., "action": {"tool": ..., "arguments": {...}}}` and returns the same
keys. A final reward of null means that the infrastructure failed: mask the sample. The server has no
authentication: everyone who reaches the port can use the sandboxes. It listens on 127.0.0.1 by default;
`--host` changes this.
"""

import argparse
import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.swe._env import Step, SweConfig, SweEnv
from sandboxkit.integrations.swe._source import load_tasks
from sandboxkit.integrations.swe._task import Task

_MAX_BODY = 4 * 1024 * 1024


class SweServer(ThreadingHTTPServer):
    """Serves at most `max_episodes` episodes at a time, and drops each one when it is done."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        session: Session,
        tasks: Mapping[str, Task],
        config: SweConfig,
        max_episodes: int = 64,
    ) -> None:
        super().__init__(address, _Handler)
        self._session, self._tasks, self._config = session, tasks, config
        self._max = max_episodes
        self._lock = threading.Lock()
        self._episodes: dict[str, tuple[SweEnv, threading.Lock]] = {}

    # Any: JSON.
    def reset(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start an episode. Raises ConfigurationError for an unknown task or if the server is full."""
        env = SweEnv(self._session, self._tasks, self._config)
        episode_id = secrets.token_hex(8)
        with self._lock:
            if len(self._episodes) >= self._max:
                raise ConfigurationError(f"{self._max} episodes are running; end some first")
            self._episodes[episode_id] = (env, threading.Lock())
        try:
            step = asyncio.run(env.reset(str(body.get("task_id"))))
        except BaseException:
            self._forget(episode_id)
            raise
        return self._answer(episode_id, step)

    def step(self, body: dict[str, Any]) -> dict[str, Any]:
        """Execute one tool call. Raises ConfigurationError for an episode that is over or unknown."""
        episode_id, action = str(body.get("episode_id")), body.get("action")
        with self._lock:
            found = self._episodes.get(episode_id)
        if found is None:
            raise ConfigurationError(f"no episode {episode_id[:80]!r} is running")
        if not isinstance(action, dict):
            raise ConfigurationError("action is not an object with tool and arguments")
        env, busy = found
        with busy:
            name, arguments = str(action.get("tool")), action.get("arguments") or {}
            step = asyncio.run(env.step(name, arguments))
        return self._answer(episode_id, step)

    def state(self) -> dict[str, Any]:
        """Return the ids of the running episodes and of the tasks."""
        with self._lock:
            return {"episodes": sorted(self._episodes), "tasks": sorted(self._tasks)}

    def server_close(self) -> None:
        """Stop listening, and stop the sandboxes of the running episodes."""
        super().server_close()
        with self._lock:
            left, self._episodes = list(self._episodes.values()), {}
        for env, _ in left:
            asyncio.run(env.close())

    def _answer(self, episode_id: str, step: Step) -> dict[str, Any]:
        if step.done:
            self._forget(episode_id)
        return {
            "episode_id": episode_id,
            "observation": {"text": step.observation, "error": step.error},
            "reward": step.reward,
            "done": step.done,
            "verdict": None if step.verdict is None else str(step.verdict.outcome),
        }

    def _forget(self, episode_id: str) -> None:
        with self._lock:
            self._episodes.pop(episode_id, None)


class _Handler(BaseHTTPRequestHandler):
    @property
    def _swe(self) -> SweServer:
        assert isinstance(self.server, SweServer)
        return self.server

    def do_GET(self) -> None:
        match self.path:
            case "/health":
                self._send(200, {"status": "healthy"})
            case "/state":
                self._send(200, self._swe.state())
            case _:
                self._send(404, {"error": f"no such path {self.path[:80]!r}"})

    def do_POST(self) -> None:
        routes = {"/reset": self._swe.reset, "/step": self._swe.step}
        if self.path not in routes:
            self._send(404, {"error": f"no such path {self.path[:80]!r}"})
            return
        try:
            length = int(self.headers.get("Content-Length", "0"))
            if not 0 <= length <= _MAX_BODY:
                raise ConfigurationError(f"a body has 0 to {_MAX_BODY} bytes")
            body = json.loads(self.rfile.read(length) or b"{}")
            if not isinstance(body, dict):
                raise ConfigurationError("the body is not a JSON object")
            answer = routes[self.path](body)
        except (ValueError, RecursionError) as error:  # ConfigurationError is one
            self._send(400, {"error": str(error)})
        else:
            self._send(200, answer)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""

    def _send(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def serving(server: SweServer) -> Iterator[str]:
    """Serve on a background thread and yield the URL; close the server on exit."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{server.server_address[0]!s}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    """Parse the command line and serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m sandboxkit.integrations.swe.serve")
    parser.add_argument("tasks", help="a folder, a .tar.gz, or hf:owner/name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--provider", default=None)
    parser.add_argument("--allow-network", action="append", default=[], metavar="NAME")
    options = parser.parse_args()
    with Session(options.provider, tags=("swe-server",)) as session:
        address = (options.host, options.port)
        tasks = load_tasks(options.tasks, allow_network=options.allow_network)
        server = SweServer(address, session, tasks, SweConfig())
        with serving(server), contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
