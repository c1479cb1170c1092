"""Compares the report with what the log holds; nothing of the submission runs."""

import json
import sys

sys.path.insert(0, "/tests")
import guard

EXPECTED = json.loads("""
{
  "requests": 396,
  "broken": 4,
  "bytes": 8581680,
  "statuses": {
    "200": 322,
    "404": 28,
    "500": 23,
    "301": 23
  },
  "slowest_hour": "2024-03-01T12",
  "top_paths": [
    [
      "/search",
      84
    ],
    [
      "/api/items",
      80
    ],
    [
      "/index.html",
      67
    ]
  ]
}
""")


def the_report_is_right():
    with open("/workspace/report.json", encoding="utf-8") as file:
        report = json.loads(file.read(100_000))
    guard.equal(sorted(report), sorted(EXPECTED), "the list of keys")
    for key, expected in EXPECTED.items():
        guard.equal(report[key], expected, key)


guard.judge(the_report_is_right)
