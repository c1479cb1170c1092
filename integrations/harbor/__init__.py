"""Harbor integration: run Harbor's trials in our sandboxes.

`harbor run -e sandboxkit.integrations.harbor.environment:SandboxkitEnvironment --ek provider=docker`
runs Harbor's trials and needs Harbor, hence Python 3.12. `load_task` is that of `integrations.swe`, which reads
Harbor's task folders without Harbor.
"""

from sandboxkit.integrations.swe import load_task

__all__ = ["load_task"]
