"""`python -m sandboxkit` is the `sandboxkit` command."""

import sys

from sandboxkit.cli import main

if __name__ == "__main__":  # a process of `serve` imports this file too
    sys.exit(main())
