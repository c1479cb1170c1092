python3 - <<'END'
import collections
import datetime
import json
import re

LINE = re.compile(
    r'\S+ \S+ \S+ \[([^\]]+)\] "\S+ (\S+) HTTP/[\d.]+" (\d{3}) (\d+|-) "[^"]*" "(?:[^"\\]|\\.)*"'
)
broken = total = 0
statuses, hours, paths = (collections.Counter() for _ in range(3))
for line in open("access.log"):
    if not line.strip():
        continue
    match = LINE.fullmatch(line.rstrip("\n"))
    if not match:
        broken += 1
        continue
    when, path, status, size = match.groups()
    moment = datetime.datetime.strptime(when, "%d/%b/%Y:%H:%M:%S %z")
    hours[moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H")] += 1
    statuses[status] += 1
    paths[path.partition("?")[0]] += 1
    total += 0 if size == "-" else int(size)
report = {
    "requests": sum(statuses.values()),
    "broken": broken,
    "bytes": total,
    "statuses": dict(statuses),
    "slowest_hour": min(hours, key=lambda hour: (hours[hour], hour)),
    "top_paths": sorted(paths.items(), key=lambda item: (-item[1], item[0]))[:3],
}
json.dump(report, open("report.json", "w"))
END
