"""Read the rows."""


def rows(path):
    """Return one dictionary a row."""
    with open(path, encoding="ascii") as file:
        lines = file.read().split("\n")
    header = lines[0].split(",")
    return [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
