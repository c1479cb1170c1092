"""`sandboxkit images`, which needs no sandbox of the user's."""

import json
import os
from pathlib import Path

from tests.cli.conftest import Cli


def test_an_image_is_built_listed_used_and_removed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(os.urandom(8).hex())
    (tmp_path / "Dockerfile").write_text("FROM default\nCOPY token /workspace/\nRUN echo works\n")
    done = cli("images", "build", str(tmp_path / "Dockerfile"), "--ttl", "1h")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("[2/2] RUN echo works\nworks\n")
    image = done.stdout.strip()
    again = cli("images", "build", str(tmp_path / "Dockerfile"), "--ttl", "1h")
    assert (again.stdout.strip(), again.stderr) == (image, "")
    (info,) = (i for i in json.loads(cli("images", "ls", "--json").stdout) if i["id"] == image)
    assert info["name"].startswith("image-")
    ran = cli("run", "--snapshot", image, "cat", "/workspace/token")
    assert ran.stdout == (tmp_path / "token").read_text()
    (line,) = (each for each in cli("images", "ls").stdout.splitlines() if each.startswith(image))
    assert " MB " in line
    assert "s ago " in line
    assert cli("images", "rm", image).stdout == f"{image}\n"
    assert image not in cli("images", "ls").stdout
    (tmp_path / "Dockerfile").write_text("FROM default\nRUN echo why; exit 7\n")
    failed = cli("images", "build", str(tmp_path / "Dockerfile"))
    assert failed.returncode == 125
    assert "step 1 of 1 of the image ended with status 7" in failed.stderr
    assert "why" in failed.stderr
