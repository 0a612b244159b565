"""Research code, not part of the wheel: the papers' tables, comparison losses and benchmarks."""
