"""`python -m sandboxkit.integrations.grpo`: see program.py."""

from sandboxkit.integrations.grpo import parent  # noqa: F401 - records the parent process on import
from sandboxkit.integrations.grpo.output import leave
from sandboxkit.integrations.grpo.program import main

leave(main())
