"""Prices: what a user says that sandboxes cost, from a TOML file."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.ledger._amounts import Amounts

_HOUR, _GIB = 3600.0, 1 << 30


@dataclass(frozen=True, slots=True)
class ProviderPrices:
    """The prices of one provider, all in one currency. 0: free."""

    start: float = 0.0
    """The price of each sandbox that is created."""
    sandbox_hour: float = 0.0
    processor_hour: float = 0.0
    """The price of an hour of CPU time."""
    memory_gib_hour: float = 0.0
    sent_gib: float = 0.0
    received_gib: float = 0.0

    def cost(self, amounts: Amounts) -> float | None:
        """Return what the amounts cost; None if one that has a price was known for none of the time."""
        priced = (
            (self.start, amounts.starts, True),
            (self.sandbox_hour, amounts.sandbox_seconds / _HOUR, True),
            (self.processor_hour, amounts.processor_seconds / _HOUR, amounts.processor_known),
            (
                self.memory_gib_hour,
                amounts.memory_byte_seconds / _GIB / _HOUR,
                amounts.memory_known,
            ),
            (self.sent_gib, amounts.sent_bytes / _GIB, amounts.bytes_known),
            (self.received_gib, amounts.received_bytes / _GIB, amounts.bytes_known),
        )
        if any(price and not known for price, _, known in priced):
            return None
        return sum(price * amount for price, amount, _ in priced)


def read_prices(path: str | Path) -> Mapping[str, ProviderPrices]:
    """Read the prices of providers from a TOML file with a table for each provider.

    Raises ConfigurationError for a file that cannot be read, an unknown name, and a price that is not a
    number from 0 on.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"prices {str(path)!r} cannot be read: {error}") from error
    names = [field.name for field in dataclasses.fields(ProviderPrices)]
    for provider, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"prices {str(path)!r}: {provider!r} is no table; write [{provider}] and below it, for "
                "example, sandbox_hour = 0.05"
            )
        for name, price in table.items():
            if name not in names:
                raise ConfigurationError(
                    f"prices {str(path)!r}: [{provider}] has the unknown price {name!r}; there are "
                    f"{', '.join(names)}"
                )
            number = isinstance(price, int | float) and not isinstance(price, bool)
            if not number or not 0 <= price < math.inf:
                raise ConfigurationError(
                    f"prices {str(path)!r}: [{provider}] {name} = {price!r} is not a number from 0 on"
                )
    return {provider: ProviderPrices(**table) for provider, table in tables.items()}
