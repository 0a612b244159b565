"""Benchmarks can be imported, are listed, and write what they print."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

import research.benchmarks as package
from research.benchmarks.open_set import Variant
from research.losses import OpenSet

MODULES = sorted(path.stem for path in Path(package.__path__[0]).glob("*.py") if path.stem != "__init__")


def test_every_benchmark_is_listed_and_imports_what_exists() -> None:
    assert package.__doc__ is not None
    for name in MODULES:
        assert name in package.__doc__
        import_module(f"research.benchmarks.{name}")


def test_the_open_set_variants_without_changes_are_the_open_set_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, labels = torch.randn(24, 6, generator=generator), torch.arange(8).repeat_interleave(3)
    values = {}
    for name, loss in {"loss": OpenSet(thresholds=10**6), "same": Variant(), "largest": Variant(largest=True)}.items():
        torch.manual_seed(1)
        values[name] = loss(vectors, labels).item()
    assert values["same"] == pytest.approx(values["loss"], rel=1e-5)
    assert values["largest"] > values["loss"]  # higher thresholds are harder to pass
