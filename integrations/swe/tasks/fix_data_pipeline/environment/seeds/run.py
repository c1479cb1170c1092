"""Sum up a day's sales."""

import sys

from pipeline import clean, extract, load

if __name__ == "__main__":
    rows = extract.rows(sys.argv[1])
    orders, rejected = clean.orders(rows)
    load.write(sys.argv[2], orders, rejected)
