"""The options of a sandbox as one table, the source of flags, fields, help texts and documents.

    from sandboxkit import Session
    from sandboxkit.options import SpecOptions

    def evaluate(code: str, **options: Unpack[SpecOptions]) -> str:
        with Session(**options) as session: ...

CONTRIBUTING.md shows how to add an option.
"""

from sandboxkit.options._option import Option
from sandboxkit.options._table import ALL_OPTIONS, CONFIG_OPTIONS, ConfigOptions, SpecOptions

__all__ = ["ALL_OPTIONS", "CONFIG_OPTIONS", "ConfigOptions", "Option", "SpecOptions"]
