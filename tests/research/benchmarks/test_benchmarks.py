"""Benchmarks can be imported, are listed, and write what they print."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import research.benchmarks as package

MODULES = sorted(path.stem for path in Path(package.__path__[0]).glob("*.py") if path.stem != "__init__")


def test_every_benchmark_is_listed_and_imports_what_exists() -> None:
    assert package.__doc__ is not None
    for name in MODULES:
        assert name in package.__doc__
        import_module(f"research.benchmarks.{name}")
