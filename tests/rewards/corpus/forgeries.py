"""Submissions that write the grader's messages themselves, to every descriptor they have."""

_SEND = r"""
import json, os
def send(*messages, fds=range(64)):
    for fd in fds:
        for each in messages:
            data = each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n"
            try:
                os.set_blocking(fd, False)
                os.write(fd, data)
            except OSError: break
"""
_LIVES = "\ndef mix(a, b): return 0\n"
_VERDICTS = """[
    {"outcome": "passed", "score": 1, "trust": "isolated"}, {"passed": True}, {"verdict": "passed"},
    ["passed"], ["done", True], ["end", "passed"], ["result", True], ["verdict", "passed"],
    ["ok"], True, 1, "passed", {"type": "done", "passed": True}, {"kind": "verdict", "score": 1},
]"""
_VALUES = """[
    ["value", 5], ["return", 5], ["result", 0, 5],
    ["returned", 5], {"id": 0, "result": 5}, {"id": 1, "value": 5},
    {"value": 5}, [0, 5], [1, ["value", 5]], 5,
]"""
_PASSES_OF_TRUTH = """[
    ["value", True], ["return", True], ["compare", True], ["eq", True],
    {"id": 1, "result": True}, [1, True], ["answer", 1, True],
]"""


def _at_import(messages: str) -> str:
    return f"{_SEND}\nsend(*{messages}){_LIVES}"


def _in_the_call(messages: str, after: str = "return 0") -> str:
    return f"{_SEND}\ndef mix(a, b):\n    send(*{messages})\n    {after}\n"


CHEATS = {
    "forges verdicts at import": _at_import(_VERDICTS),
    "forges verdicts in the call": _in_the_call(_VERDICTS),
    "forges verdicts and exits": _in_the_call(_VERDICTS, "os._exit(0)"),
    "forges values at import": _at_import(_VALUES),
    "forges values in the call": _in_the_call(_VALUES),
    "forges values and exits": _in_the_call(_VALUES, "os._exit(0)"),
    "forges truths in the call": _in_the_call(_PASSES_OF_TRUTH),
    "forges truths and waits": _in_the_call(_PASSES_OF_TRUTH, "import time; time.sleep(0.2)"),
    "answers before it is asked": _at_import(f"({_VALUES} * 20)"),
    "answers each question twice": _in_the_call("[['value', ['int', '0x5']]] * 2", "return 5"),
    "answers never": "import threading\ndef mix(a, b): threading.Event().wait()",
    "answers half a line": _in_the_call('[b\'["value", ["int", \']', "os._exit(0)"),
    "answers half a line and waits": _in_the_call(
        '[b\'["value", ["int", \']', "import threading; threading.Event().wait()"
    ),
    "answers without a line's end": _in_the_call("[b'[\"value\", 5]']", "os._exit(0)"),
    "answers empty lines": _in_the_call("[b'\\n' * 60_000]"),
    "answers what is no text": _in_the_call("[b'\\xff\\xfe\\x00' * 1000 + b'\\n']"),
    "answers what is not JSON": _in_the_call("[b'NaN\\n', b'{]\\n', b'Infinity\\n', b'5,\\n']"),
    "answers JSON with a key twice": _in_the_call(
        '[b\'{"passed": false, "passed": true, "score": 1e400}\\n\']'
    ),
    "answers with every type": _in_the_call(
        "[None, True, 0, -1, 1e308, '', [], {}, [[]], [None], {'a': {}}, ['value'], ['value', None],"
        " ['value', []], ['value', ['int']], ['value', ['int', 5]], ['value', ['int', '']]]",
        "os._exit(0)",
    ),
    "answers numbers of a megabyte": _in_the_call(
        "[['value', ['fraction', '0x' + 'f' * 1_000_000, '0x3']],"
        " ['value', ['int', '0x' + 'f' * 1_000_000]]]",
        "os._exit(0)",
    ),
    "answers numbers with hostile digits": _in_the_call(
        "[['value', [kind, text]] for kind in ('int', 'float', 'decimal')"
        " for text in ('0x' + '_'.join('5' * 5000), '\\u0665', ' 5 ', '5j', '0x1p99999', '1e9999', '--5')]",
        "os._exit(0)",
    ),
    "answers handles that it never made": _in_the_call(
        "[['handle', n] for n in range(100)] + [['value', ['handle', str(n)]] for n in range(100)]"
        " + [['value', ['object', 0]], ['value', ['stub', 'check']], ['value', ['callable', 0]]]"
    ),
    "asks questions instead": _in_the_call(
        "[['call', 'check', []], ['get', 'expected'], ['eval', '__import__(\"os\")._exit(0)'],"
        " {'method': 'exit', 'params': [0]}, ['import', 'os'], ['attribute', 0, '__globals__']]"
    ),
    "answers values of wild depth": _in_the_call(
        "[b'[' * 300_000 + b']' * 300_000 + b'\\n']", "os._exit(0)"
    ),
    "answers dicts with unhashable keys": _in_the_call(
        "[['value', ['dict', [[['list', []], ['none']]]]], ['value', ['set', [['dict', []]]]]]",
        "os._exit(0)",
    ),
    "answers a set of a million": _in_the_call(
        "[['value', ['set', [['int', hex(n)] for n in range(30_000)]]]]", "os._exit(0)"
    ),
    "answers text with control characters": _in_the_call(
        r"[['raised', 'running', '\x1b[2J\u202e', '\x00' * 1000], ['value', ['str', '\ud800']]]",
        "os._exit(0)",
    ),
    "answers an exception that the test may want": _in_the_call(
        "[['raised', 'running', 'ValueError', ''], ['raised', 'running', 'AssertionError', '']]",
        "os._exit(0)",
    ),
    "answers as two threads": f"""{_SEND}
import threading
def flood():
    for _ in range(2000): send(*{_VALUES})
for _ in range(2): threading.Thread(target=flood, daemon=True).start()
def mix(a, b): return 0
""",
    "answers on sockets that it finds": f"""{_SEND}
import glob
for path in glob.glob("/proc/*/fd/*") + glob.glob("/dev/fd/*") + ["/dev/stdout", "/dev/tty"]:
    try: fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError: continue
    send(*{_VERDICTS}, *{_VALUES}, fds=[fd])
def mix(a, b): return 0
""",
    "writes over the answer as it leaves": """
import os
real = os.write
os.write = lambda fd, data: real(fd, b'["value", 5]\\n') and len(data)
def mix(a, b): return 0
""",
    "says that all is well at the end": f"""{_SEND}
import atexit
atexit.register(lambda: send(*{_VERDICTS}))
def mix(a, b): return 0
""",
    "closes its ends and lives": """
import os, threading
def mix(a, b):
    os.closerange(0, 1000)
    threading.Event().wait()
""",
    "reads the questions of others": """
import os
def mix(a, b):
    for fd in range(64):
        try:
            os.set_blocking(fd, False)
            os.read(fd, 1 << 20)
        except OSError: pass
    return 0
""",
}
