"""Runs the pipeline with files that the agent has not seen."""

import json

import subject

IN, OUT = "/tmp/in.csv", "/tmp/out.json"
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
LAST_NIGHT = {
    "totals": {
        "east": "7337.28",
        "north": "2914.90",
        "south": "5981.92",
        "süd": "2458.58",
        "unknown": "3982.05",
    },
    "orders": 84,
    "rejected": 3,
}


def result(path):
    """What the pipeline makes of a file, in one notation for each value."""
    subject.remove(OUT)
    status, _ = subject.run(["python3", "/workspace/run.py", path, OUT])
    assert status == 0, "the pipeline fails"
    return json.dumps(json.loads(subject.read_file(OUT, 100_000)), sort_keys=True)


def test_sums_are_right():
    for number, (text, expected) in enumerate(CASES):
        subject.write_file(IN, text)
        assert result(IN) == json.dumps(expected, sort_keys=True), f"file {number}"


def test_the_file_of_last_night_is_read():
    night = result("/workspace/data/sales.csv")
    assert night == json.dumps(LAST_NIGHT, sort_keys=True), "last night's sums"
