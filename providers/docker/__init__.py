"""Runs sandboxes as Docker containers, hardened by default, with our agent as PID 1.

No program of an image has more rights than in its sandbox. All that runs in a container, with its user and
capabilities at most:

    agent, process 1    ours, from its volume    0, CHOWN KILL SETGID SETUID
    agent connect       ours, by `docker exec`   0, the same (a further client)
    commands            the image's              the sandbox's user, none (`capabilities=` for root's)
    interpreter         the image's              a uid of its own (root's: 0), SETGID SETUID for its jobs' ids alone
    agent unpack        ours, a command          the sandbox's user, none (start from a strict snapshot)
    keeper, agent pack  ours, from its volume    0, DAC_OVERRIDE SETGID SETUID SYS_CHROOT SYS_PTRACE (strict snapshot)
    loader              nothing: never started   -  (the daemon fills a volume of the agent, a dataset or a user)

The agent's volume, and what loaders fill, are mounted below names that are chosen after the image is made. Labels
count only on containers and volumes, for which we set every label that we read; never on images.
"""

from sandboxkit.providers.docker._images import PullProgress
from sandboxkit.providers.docker._provider import DockerProvider

__all__ = ["DockerProvider", "PullProgress"]
