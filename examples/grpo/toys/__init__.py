"""Tasks for models made on the spot: what the demo, the tests and the benchmarks train."""
