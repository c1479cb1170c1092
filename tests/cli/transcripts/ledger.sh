# Two providers, of which modal cannot tell memory and bytes; two days. $TODAY is the second.
export SANDBOXKIT_LEDGER=$PWD/ledger.sqlite3
TODAY=$(date -u +%F)
python - "$TODAY" "$(date -u -d yesterday +%F)" <<'END'
import os, pathlib, sys
from sandboxkit.ledger import Amounts, LedgerFile
from sandboxkit.ledger._store import RowKey

today, yesterday = sys.argv[1:]
hour, gib = 3600.0, 1 << 30
whole = Amounts(
    2, 4 * hour, 1 * hour, 4 * hour, 2 * gib * hour, 2 * hour, gib, 3 * gib, 4 * hour
)
untold = Amounts(1, 2 * hour, 0.5 * hour, 2 * hour)
rows = {
    RowKey(today, "local", '{"run": "42"}'): whole,
    RowKey(yesterday, "local", '{"run": "43"}'): whole,
    RowKey(today, "modal", '{"run": "42"}'): untold,
}
LedgerFile(pathlib.Path(os.environ["SANDBOXKIT_LEDGER"])).add(rows, seconds=5)
END
