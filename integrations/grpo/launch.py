"""torchrun with a meaningful exit status: `python -m sandboxkit.integrations.grpo.launch`.

It takes torchrun's arguments. torchrun itself exits with 1 after a signal and after any failure, and
gives the ranks 30 s for their checkpoint; here they have ten minutes.
"""

import os
import sys
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

__all__ = ["main"]

_FOR_A_CHECKPOINT = "600"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status of the first failed rank, 128 + n for signal n to it or to us, or 0."""
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _FOR_A_CHECKPOINT)
    try:
        run.main(list(sys.argv[1:] if arguments is None else arguments))
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        status = int(failure.exitcode)
        return status if status >= 0 else 128 - status
    return 0


if __name__ == "__main__":
    sys.exit(main())
