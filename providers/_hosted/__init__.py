"""Code that the providers of hosted sandboxes (E2B, Daytona, Modal) share.

- `vendor` has the base of a vendor's provider: creation, listing, deletion, snapshots and images with the agent. It
  says which hooks a vendor supplies; `account` does so for the vendor's client.
- `agent.HostedBox` installs the agent in a sandbox and connects to it by vendor calls.
- `install` has the shell command that those calls run; its stream becomes the agent's.
- `records` has what this machine knows of images and snapshots.
- `ambiguous` has the errors for calls whose outcome is unknown; the vendors' own retries are off.
- `creation.Creations` creates a sandbox with a key, to find it again after an ambiguous failure.
- `lifetime` renews sandboxes that have no lifetime.
- `http_errors` reads the delay that an HTTP error response requests.
- `pipe` is a bounded byte buffer between two tasks, and `Endings` the tasks that end programs.
"""
