"""A chaos client that forgets things: a descriptor, a thread and a process."""

import os
import subprocess
import sys
import threading

from tests.chaos import _census, client
from tests.chaos._work import Work


def _forget() -> None:
    os.open("/dev/null", os.O_RDONLY)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


class Forgetful(Work):
    """Forgets things as soon as it works: what was there before is not counted."""

    def run(self, seconds: float) -> None:
        _forget()
        super().run(seconds)


if __name__ == "__main__":
    client.Work = Forgetful  # type: ignore[attr-defined]  # it is not for others
    _census._SECONDS = 5.0  # what it forgot stays
    sys.exit(client.main())
