"""What compares, not part of the wheel: the papers' tables, comparison losses, benchmarks and measured figures."""
