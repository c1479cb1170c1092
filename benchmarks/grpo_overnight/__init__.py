"""GRPO for hours with failures injected, beside a run without them: `python -m benchmarks.grpo_overnight`."""
