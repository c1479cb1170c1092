"""Compares the report with what the log holds; nothing of the submission runs."""

import json

import subject

EXPECTED = {
    "requests": 396,
    "broken": 4,
    "bytes": 8581680,
    "statuses": {"200": 322, "404": 28, "500": 23, "301": 23},
    "slowest_hour": "2024-03-01T12",
    "top_paths": [["/search", 84], ["/api/items", 80], ["/index.html", 67]],
}


def test_the_report_is_right():
    report = json.loads(subject.read_file("/workspace/report.json", 100_000))
    assert sorted(report) == sorted(EXPECTED), "other keys"
    for key, expected in EXPECTED.items():
        observed = json.dumps(report[key], sort_keys=True)
        assert observed == json.dumps(expected, sort_keys=True), key
