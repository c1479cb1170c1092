"""`python -m sandboxkit.integrations.grpo`: see program.py."""

import sys

from sandboxkit.integrations.grpo import parent  # noqa: F401 - notes who began this process
from sandboxkit.integrations.grpo.program import main

sys.exit(main())
