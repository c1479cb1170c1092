"""Run the same program on each backend that the command line names.

    python examples/swap_provider.py local docker

Without names it uses SANDBOXKIT_PROVIDER or, if that is not set, `local` on Linux and `docker` elsewhere.
"""

import sys

from sandboxkit import Session

PROGRAM = "import os, platform; print(platform.system(), os.getcwd(), len(os.listdir('.')))"

names: list[str | None] = [*sys.argv[1:]]
for provider in names or [None]:
    with Session(provider=provider) as session:
        result = session.run(["python", "-c", PROGRAM], timeout=30, check=True).result()
        print(f"{session.provider_name}: {result.stdout.strip()}")
