"""The chaos client as it is where the API server is behind a proxy, which SANDBOXKIT_CHAOS_API names."""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.chaos import client


def through(url: str, kubeconfig: str, folder: Path) -> Path:
    """A copy of a kubeconfig of which only the server's address is another one."""
    lines = []
    for line in Path(kubeconfig).read_text().splitlines():
        indent, found, server = line.partition("server: ")
        if found:
            name = urlsplit(server).hostname
            line = (
                f"{indent}server: https://{urlsplit(url).netloc}\n{indent}tls-server-name: {name}"
            )
        lines.append(line)
    copy = folder / "kubeconfig"
    copy.write_text("\n".join(lines))
    return copy


if __name__ == "__main__":
    copy = through(
        os.environ["SANDBOXKIT_CHAOS_API"], os.environ["KUBECONFIG"], Path(os.environ["TMPDIR"])
    )
    os.environ["KUBECONFIG"] = str(copy)
    sys.exit(client.main())
