"""Machines whose programs are a user's, as with an image that says USER."""

from sandboxkit.providers._hosted.agent import ProgramStream
from tests.agent.machines import Machines

__all__ = ["IMAGE", "USER", "OfAUser"]

USER = ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "--inh-caps=-all")
IMAGE = """mount -t tmpfs none /usr/local/bin && mount -t tmpfs none /dev/shm && mount -t tmpfs -o mode=755 none /mnt &&
mount -t tmpfs -o mode=755 none /srv && mkdir -m 700 /srv/home && chown 1234:1234 /srv/home"""


class OfAUser(Machines):
    """The agent is of the same user as the commands, and as the vendor's daemon."""

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ProgramStream:
        return await super()._run(sandbox_id, (*USER, "env", "HOME=/srv/home", *argv))
