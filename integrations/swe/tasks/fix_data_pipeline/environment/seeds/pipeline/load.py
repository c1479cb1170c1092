"""Write the sums."""

import json


def write(path, orders, rejected):
    """Write the totals by region."""
    totals = {}
    for region, amount in orders.values():
        totals[region] = totals.get(region, 0) + round(amount)
    with open(path, "w") as file:
        json.dump({"totals": totals, "orders": len(orders), "rejected": rejected}, file)
