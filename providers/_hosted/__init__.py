"""What the providers of hosted sandboxes (E2B, Daytona, Modal) share.

- `command.wrap` turns a Command into one argv for the vendor; it runs under `scripts.RUN`.
- `output.MarkedStream` cuts from a stream what the script adds when the command has ended.
- `command.kill_argv` is the second call, which ends everything of one command.
- `main` runs, logs and awaits a sandbox's main command on top of `Provider.exec`.
- `deadline.bounded` ends every vendor call in time; vendors' own retries are switched off.
- `creation.create_once` creates with a key, and finds what an unclear failure left.
- `lifetime` rounds to the vendor's whole seconds, and renews what has no end of its own.
- `http_errors` says which of sandboxkit's errors an HTTP status is.
"""
