"""Code that the providers of hosted sandboxes (E2B, Daytona, Modal) share.

- `agent.HostedAgentProvider` installs the agent in a sandbox and connects to it by vendor calls.
- `install` has the shell command that those calls run; its stream becomes the agent's.
- `baking.BakingProvider` makes images at the vendor that contain the agent; `records` has what this
  machine knows of them and of snapshots.
- `ambiguous` has the errors for calls whose outcome is unknown, and `bounded`, which puts a time limit on
  every vendor call; the vendors' own retries are off.
- `creation.Creations` creates a sandbox with a key, to find it again after an ambiguous failure.
- `lifetime` rounds lifetimes to whole seconds, and renews sandboxes that have none.
- `http_errors` reads the delay that an HTTP error response requests.
- `pipe` is a bounded byte buffer between two tasks.
- `snapshots` has the snapshots of sandboxes.
"""
