"""The guides for those who come from a vendor's SDK: its program runs, and prints what ours does."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.daytona.server import Daytona
from tests.hosted.vendor import Vendor
from tests.modal.server import Modal

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


@pytest.mark.parametrize("vendor", [Modal(), Daytona()], ids=lambda vendor: vendor.name)
def test_the_program_before_prints_what_the_one_after_does(vendor: Vendor) -> None:
    page = (GUIDES / f"from-{vendor.name}.md").read_text()
    before, _after = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    out = io.StringIO()
    with vendor.running("benchmarks.vendor_calls"), redirect_stdout(out):
        exec(before, {})
    assert out.getvalue() == printed
