"""What is known to fail, and what works."""

import unittest

from intervals import merge, subtract


class IntervalTests(unittest.TestCase):
    def test_overlapping(self):
        assert merge([(1, 3), (2, 5)]) == [(1, 5)]

    def test_touching(self):
        assert merge([(1, 2), (2, 3)]) == [(1, 3)]

    def test_behind_the_last_cut(self):
        assert subtract([(0, 10)], [(2, 3)]) == [(0, 2), (3, 10)]


if __name__ == "__main__":
    unittest.main()
