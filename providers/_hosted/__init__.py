"""Code that the providers of hosted sandboxes (E2B, Daytona, Modal) share.

- `agent.HostedAgentProvider` installs the agent in a sandbox and connects to it by vendor calls.
- `install` is the shell command that those calls run; its stream becomes the agent's.
- `baking.BakingProvider` makes images at the vendor that contain the agent; `baked` records them.
- `deadline.bounded` puts a time limit on every vendor call; the vendors' own retries are off.
- `unclear` has the errors for calls whose outcome is unknown.
- `creation.Creations` creates with a key, by which it finds what an unclear failure left behind.
- `boundary.public` converts internal errors to public ones in each provider's methods.
- `lifetime` rounds lifetimes to whole seconds, and renews sandboxes that have none.
- `http_errors` reads how long an HTTP error response asks to wait.
"""
