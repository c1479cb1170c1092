cat > intervals/core.py <<'END'
"""Merge and subtract lists of half-open intervals (start, end)."""


def merge(intervals):
    """Return the union, as sorted intervals that do not touch."""
    merged = []
    for start, end in sorted(pair for pair in intervals if pair[0] < pair[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def subtract(intervals, cuts):
    """Return what of the intervals lies in none of the cuts."""
    left = []
    cuts = merge(cuts)
    for start, end in merge(intervals):
        for low, high in cuts:
            if high <= start or low >= end:
                continue
            if low > start:
                left.append((start, low))
            start = high
        if start < end:
            left.append((start, end))
    return left
END
python3 -m unittest discover tests
