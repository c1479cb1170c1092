"""`python -m sandboxkit` is the `sandboxkit` command."""

import sys

from sandboxkit.cli import main

sys.exit(main())
