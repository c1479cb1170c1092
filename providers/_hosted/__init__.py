"""What the providers of hosted sandboxes (E2B, Daytona, Modal) share.

- `agent.HostedAgentProvider` puts the agent into a sandbox and speaks to it by the vendor's calls.
- `install` is the shell command that those calls run, and how its stream becomes the agent's.
- `deadline.bounded` ends every vendor call in time; vendors' own retries are switched off.
- `unclear` is about calls whose answer is missing.
- `creation.Creations` creates with a key, and finds what an unclear failure left: then, or later.
- `boundary.public` ends each provider's methods: no error that is ours alone leaves them.
- `lifetime` rounds to the vendor's whole seconds, and renews what has no end of its own.
- `http_errors` says which of sandboxkit's errors an HTTP status is.
"""
