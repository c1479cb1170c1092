"""The one build step that pyproject.toml cannot state: compiling the in-sandbox agent."""

import os
import runpy
import shutil
import warnings
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
AGENT = ROOT / "agent"

# Said of every editable installation from a folder that holds the package: no cause for worry here.
warnings.filterwarnings("ignore", "Editable installation")


class BuildWithAgent(build_py):
    """Compiles the agent into the source tree, and copies it along into a wheel."""

    def run(self) -> None:
        super().run()
        binaries = runpy.run_path(str(AGENT / "build.py"))["build"]()
        if not self.editable_mode:
            target = Path(self.build_lib, "sandboxkit", "providers", "_agent", "bin")
            target.mkdir(parents=True, exist_ok=True)
            for binary in binaries:
                shutil.copy2(binary, target / binary.name)

    def get_source_files(self) -> list[str]:
        # What an sdist needs besides the Python files, so that a wheel can be built from it.
        sources = [path for path in AGENT.rglob("*") if path.is_file()]
        return [*super().get_source_files(), *(os.path.relpath(path, ROOT) for path in sources)]


setup(cmdclass={"build_py": BuildWithAgent})
