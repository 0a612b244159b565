"""A record is old if the code that it measured has changed since."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from research.benchmarks import suite
from research.results import RESULTS
from research.results.code import MEASURED, ROOT, code_of, research_modules

BY_HAND = {"papers"}  # configurations that `retrieval research run` runs one by one


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with the code that the benchmark of the open-set loss measures."""
    for name in MEASURED["open_set"]:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / name, place) if (ROOT / name).is_dir() else shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "research", tmp_path / "research")
    return tmp_path


def test_every_record_has_its_code_and_its_place_in_the_suite() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} == set(MEASURED)
    assert {benchmark.name for benchmark in suite.BENCHMARKS} == set(MEASURED) - BY_HAND


def test_the_options_of_the_suite_exist() -> None:
    for benchmark in suite.BENCHMARKS:
        source = (ROOT / f"research/benchmarks/{benchmark.name}.py").read_text(encoding="utf-8")
        if "add_device(parser)" in source:
            source += (ROOT / "research/benchmarks/devices.py").read_text(encoding="utf-8")
        for option in re.findall(r"--\S+", f"{benchmark.whole} {benchmark.fast} {benchmark.gpu}"):
            assert f'"{option}"' in source, f"{benchmark.name} has no {option}"


@pytest.mark.parametrize(
    "changed", ["research/losses/open_set.py", "index/search/item_distance.py", "research/benchmarks/head_start.py"]
)
def test_code_differs_after_a_change_of_what_is_measured_or_imported(copy: Path, changed: str) -> None:
    before = code_of("open_set", copy)
    with (copy / changed).open("a", encoding="utf-8") as file:
        file.write("\nADDED = 1\n")
    assert code_of("open_set", copy) != before


def test_code_stays_after_a_change_of_comments_or_of_what_writes_tables(copy: Path) -> None:
    before = code_of("open_set", copy)
    for changed, text in (
        ("research/losses/open_set.py", "# a comment"),
        ("retrieval/threshold/wording.py", "ADDED = 1"),
        ("research/results/render.py", "ADDED = 1"),
        ("research/benchmarks/grocery.py", "ADDED = 1"),
    ):
        with (copy / changed).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")
    assert code_of("open_set", copy) == before


def test_research_modules_follow_imports_of_packages_and_of_names_in_them() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in research_modules("research.benchmarks.open_set")}
    assert {"research/benchmarks/open_set.py", "research/benchmarks/head_start.py"} <= found
    assert not any(name.startswith("research/results") for name in found)


def test_stale_lists_missing_records_and_those_of_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    assert list(suite.stale()) == list(MEASURED)
    for name in MEASURED:
        (tmp_path / f"{name}.json").touch()
    monkeypatch.setattr(suite, "code_of", lambda name: suite.read_record(name).code if name != "losses" else "other")
    assert list(suite.stale()) == ["losses"]
