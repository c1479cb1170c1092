"""Harbor, both ways: its trials in our sandboxes, and its task folders as our SWE tasks.

`harbor run -e sandboxkit.integrations.harbor.environment:SandboxkitEnvironment --ek provider=docker`
runs Harbor's own trials, which takes Harbor and so Python 3.12; `load_task(folder)` takes neither.
"""

from sandboxkit.integrations.harbor._task import load_task

__all__ = ["load_task"]
