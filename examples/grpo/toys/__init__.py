"""Toy tasks and tiny models, made at run time, that the demo, the tests and the benchmarks train."""
