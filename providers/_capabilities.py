"""The Linux capabilities of this process: root in a container has few of them."""

import os
import sys
from enum import IntEnum


class Capability(IntEnum):
    """Capabilities that some of our calls need, with their Linux numbers."""

    CAP_CHOWN = 0
    CAP_DAC_OVERRIDE = 1
    CAP_FOWNER = 3
    CAP_KILL = 5
    CAP_SETGID = 6
    CAP_SETUID = 7
    CAP_NET_ADMIN = 12
    CAP_SYS_PTRACE = 19
    CAP_SYS_ADMIN = 21
    CAP_SYS_RESOURCE = 24
    CAP_SETFCAP = 31


def lacking(*wanted: Capability) -> list[str]:
    """Return the names of the wanted capabilities that this process, and programs that it starts, lack.

    Only root's programs keep its capabilities, so any other user lacks all. Where there is no /proc/self/status
    (macOS), root lacks none.
    """
    held = 0
    if os.geteuid() == 0:
        held = -1
        if sys.platform == "linux":
            with open("/proc/self/status") as file:
                held = int(next(line.split()[1] for line in file if line[:7] == "CapEff:"), 16)
    return [each.name for each in wanted if not held >> each & 1]
