"""Benchmarks can be imported, are listed, and write what they print."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

import research.benchmarks as package
from research.benchmarks.tables import Recorder, parser_of
from research.results import read_record

MODULES = sorted(path.stem for path in Path(package.__path__[0]).glob("*.py") if path.stem != "__init__")


def test_every_benchmark_is_listed_and_imports_what_exists() -> None:
    assert package.__doc__ is not None
    for name in MODULES:
        assert name in package.__doc__
        import_module(f"research.benchmarks.{name}")


def test_tables_are_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/step.py", "--photos", "3", "/somewhere/bundle"])
    parser = parser_of("Measure.")
    parser.add_argument("--photos", type=int)
    parser.add_argument("bundle", type=Path)
    arguments = parser.parse_args(["--photos", "3", "/somewhere/bundle", "--results", str(tmp_path / "made.json")])
    with Recorder("made", arguments) as recorder:
        recorder.table("speed", ("what", "ms"), [("a step", "9")])
        recorder.add("two steps", "18")
    record = read_record("made", tmp_path)
    assert record.table("speed").rows == [("a step", "9"), ("two steps", "18")]
    assert record.command == "python -m research.benchmarks.step --photos 3 bundle"
    assert record.parameters == {"photos": 3}
    assert "/somewhere" not in (tmp_path / "made.json").read_text()
    assert "| what | ms |\n| --- | --- |\n| a step | 9 |\n| two steps | 18 |\n" in capsys.readouterr().out


def test_a_benchmark_that_fails_writes_nothing(tmp_path: Path) -> None:
    arguments = parser_of(None).parse_args(["--results", str(tmp_path / "made.json")])
    with pytest.raises(ZeroDivisionError), Recorder("made", arguments):
        raise ZeroDivisionError
    assert not (tmp_path / "made.json").exists()
