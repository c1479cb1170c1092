cat > pipeline/extract.py <<'END'
"""Read the rows."""

import csv


def rows(path):
    """Return one dictionary a row."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))
END
cat > pipeline/clean.py <<'END'
"""Reject what is no sale, and keep each order once."""

import datetime
import decimal
import re

RATES = {"EUR": decimal.Decimal(1), "USD": decimal.Decimal("0.90")}


def orders(rows):
    """Return the orders that count, by id, and how many rows were rejected."""
    kept, rejected = {}, 0
    for row in rows:
        rate = RATES.get(row["currency"].strip().upper())
        amount = row["amount"].strip()
        if rate is None or not re.fullmatch(r"-?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?", amount):
            rejected += 1
            continue
        updated = datetime.datetime.fromisoformat(row["updated"])
        region = row["region"].strip().lower() or "unknown"
        known = kept.get(row["order_id"])
        if known is None or updated >= known[2]:
            value = decimal.Decimal(amount.replace(",", "")) * rate
            kept[row["order_id"]] = (region, value, updated)
    return kept, rejected
END
cat > pipeline/load.py <<'END'
"""Write the sums."""

import decimal
import json


def write(path, orders, rejected):
    """Write the totals by region."""
    totals = {}
    for region, amount, _ in orders.values():
        totals[region] = totals.get(region, 0) + amount
    cent = decimal.Decimal("0.01")
    shown = {
        region: str(total.quantize(cent, decimal.ROUND_HALF_UP)) for region, total in totals.items()
    }
    with open(path, "w") as file:
        json.dump({"totals": shown, "orders": len(orders), "rejected": rejected}, file)
END
python3 run.py data/sales.csv /tmp/out.json
