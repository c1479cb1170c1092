"""Run one program on the backends named on the command line, with no other change.

    python examples/swap_provider.py local docker

Without names, SANDBOXKIT_PROVIDER decides, then `local` on Linux and `docker` elsewhere.
"""

import sys

from sandboxkit import Session

PROGRAM = "import os, platform; print(platform.system(), os.getcwd(), len(os.listdir('.')))"

names: list[str | None] = [*sys.argv[1:]]
for provider in names or [None]:
    with Session(provider=provider) as session:
        result = session.run(["python", "-c", PROGRAM], timeout=30, check=True).result()
        print(f"{session.provider_name}: {result.stdout.strip()}")
