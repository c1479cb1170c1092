"""A chaos client that forgets things: a descriptor, a thread and a process."""

import os
import subprocess
import sys
import threading

from tests.chaos import client


def _forget() -> None:
    os.open("/dev/null", os.O_RDONLY)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


if __name__ == "__main__":
    threading.Timer(1.5, _forget).start()  # when it has long begun to work
    sys.exit(client.main())
