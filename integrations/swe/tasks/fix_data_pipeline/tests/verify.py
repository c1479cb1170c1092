"""Runs the pipeline with files that the agent has not seen."""

import json
import os
import sys

sys.path.insert(0, "/tests")
import guard

CASES = [
    (
        "\ufefforder_id,region,amount,currency,updated\n"
        "1,North,10.005,EUR,2024-05-01T10:00:00Z\n"
        '2, north ,"1,000.10",usd,2024-05-01T10:00:00Z\n'
        "3,,5,EUR,2024-05-01T10:00:00Z\n"
        "4,Süd,n/a,EUR,2024-05-01T10:00:00Z\n"
        "5,Süd,7,GBP,2024-05-01T10:00:00Z\n",
        {"totals": {"north": "910.10", "unknown": "5.00"}, "orders": 3, "rejected": 2},
    ),
    (
        "updated,note,currency,order_id,amount,region\r\n"
        '2024-05-02T10:00:00Z,"a, b",EUR,x,2,East\r\n'
        "2024-05-01T10:00:00Z,,EUR,x,100,West\r\n"
        "2024-05-03T10:00:00Z,,EUR,x,bad,West\r\n"
        "2024-05-02T10:00:00Z,,EUR,y,0.005,East\r\n"
        "2024-05-02T10:00:00Z,,EUR,y,0.015,East\r\n",
        {"totals": {"east": "2.02"}, "orders": 2, "rejected": 1},
    ),
    (
        "order_id,region,amount,currency,updated\n"
        + "".join(f"{n},a,0.1,EUR,2024-05-01T10:00:00Z\n" for n in range(30))
        + "nan,a,nan,EUR,2024-05-01T10:00:00Z\ninf,a,inf,USD,2024-05-01T10:00:00Z\n",
        {"totals": {"a": "3.00"}, "orders": 30, "rejected": 2},
    ),
    (
        "order_id,region,amount,currency,updated\n",
        {"totals": {}, "orders": 0, "rejected": 0},
    ),
]


def sums_are_right():
    for number, (text, expected) in enumerate(CASES):
        with open("/tmp/in.csv", "w", encoding="utf-8", newline="") as file:
            file.write(text)
        if os.path.lexists("/tmp/out.json"):
            os.remove("/tmp/out.json")
        status, _ = guard.run(["python3", "/workspace/run.py", "/tmp/in.csv", "/tmp/out.json"])
        guard.equal(status, 0, f"the exit status for file {number}")
        with open("/tmp/out.json", encoding="utf-8") as file:
            guard.equal(json.loads(file.read(100_000)), expected, f"the result of file {number}")


def the_file_of_last_night_is_read():
    out = "/tmp/night.json"
    status, _ = guard.run(["python3", "/workspace/run.py", "/workspace/data/sales.csv", out])
    guard.equal(status, 0, "the exit status for sales.csv")


guard.judge(sums_are_right, the_file_of_last_night_is_read)
