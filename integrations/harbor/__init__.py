"""Harbor integration: run Harbor's trials in our sandboxes, and load its task folders as SWE tasks.

`harbor run -e sandboxkit.integrations.harbor.environment:SandboxkitEnvironment --ek provider=docker`
runs Harbor's trials and needs Harbor, hence Python 3.12; `load_task(folder)` needs neither.
"""

from sandboxkit.integrations.harbor._task import load_task

__all__ = ["load_task"]
