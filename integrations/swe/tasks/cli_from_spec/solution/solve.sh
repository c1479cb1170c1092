cat > topwords.py <<'END'
"""Print the most frequent words."""

import argparse
import collections
import sys


def natural(text):
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def words(text):
    word = ""
    for character in text.lower() + " ":
        if character.isalpha() or (word and character == "'"):
            word += character
        elif word:
            yield word
            word = ""


parser = argparse.ArgumentParser()
parser.add_argument("-n", type=natural, default=10)
parser.add_argument("--min-length", type=natural, default=1)
parser.add_argument("file", nargs="?", default="-")
options = parser.parse_args()
try:
    if options.file == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(options.file, "rb") as file:
            data = file.read()
except OSError as error:
    sys.exit(str(error))
counts = collections.Counter(w for w in words(data.decode()) if len(w) >= options.min_length)
for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: options.n]:
    print(f"{count}\t{word}")
END
