"""Research code outside the wheel: the papers' tables, comparison losses, benchmarks and measured figures."""
