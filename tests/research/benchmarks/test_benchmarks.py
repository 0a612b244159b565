"""Benchmarks can be imported, are listed, have a place in the suite, and write what they print."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

import research.benchmarks as package
from research.benchmarks import suite
from research.benchmarks.open_set import Variant
from research.losses import OpenSet
from research.results import RESULTS, Record

MODULES = sorted(path.stem for path in Path(package.__path__[0]).glob("*.py") if path.stem != "__init__")


def test_every_benchmark_is_listed_and_imports_what_exists() -> None:
    assert package.__doc__ is not None
    for name in MODULES:
        assert name in package.__doc__
        import_module(f"research.benchmarks.{name}")


def test_every_record_has_its_place_in_the_suite() -> None:
    by_hand = {"papers"}  # configurations that `retrieval research run` runs one by one
    assert {path.stem for path in RESULTS.glob("*.json")} == {each.name for each in suite.BENCHMARKS} | by_hand


def test_the_options_of_the_suite_exist() -> None:
    for benchmark in suite.BENCHMARKS:
        source = (suite.ROOT / f"research/benchmarks/{benchmark.name}.py").read_text(encoding="utf-8")
        if "add_device(parser)" in source:
            source += (suite.ROOT / "research/benchmarks/devices.py").read_text(encoding="utf-8")
        for option in re.findall(r"--\S+", f"{benchmark.whole} {benchmark.fast} {benchmark.gpu}"):
            assert f'"{option}"' in source, f"{benchmark.name} has no {option}"


def test_the_suite_goes_on_with_what_has_no_record_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "commit", lambda: "today")
    for name, commit in (("losses", "today"), ("step", "before")):
        Record(name, "command", "2026-11-24", commit, {}, {}).write(tmp_path / f"{name}.json")
    assert {each.name for each in suite.BENCHMARKS} - set(suite.unmeasured(tmp_path)) == {"losses"}


def test_the_open_set_variants_without_changes_are_the_open_set_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, labels = torch.randn(24, 6, generator=generator), torch.arange(8).repeat_interleave(3)
    values = {}
    for name, loss in {"loss": OpenSet(thresholds=10**6), "same": Variant(), "largest": Variant(largest=True)}.items():
        torch.manual_seed(1)
        values[name] = loss(vectors, labels).item()
    assert values["same"] == pytest.approx(values["loss"], rel=1e-5)
    assert values["largest"] > values["loss"]  # higher thresholds are harder to pass
