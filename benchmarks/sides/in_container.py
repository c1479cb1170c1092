"""The floor inside a container: argv, what it prints, how many at a time and how many in all."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

argv, stdout, in_flight, times = json.loads(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5])


def one(_: int) -> bool:
    """Whether the command printed what it must."""
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout == stdout


with ThreadPoolExecutor(in_flight) as pool:
    print(sum(pool.map(one, range(times))))
