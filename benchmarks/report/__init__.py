"""The report: everything in turns, on a machine that does nothing else, into docs/benchmarks.md."""
