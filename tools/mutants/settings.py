"""Settings of the mutation tests: modules and their tests, from `[tool.mutants]` in pyproject.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from .operators import BY_HAND, Mutant

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = ROOT / "tests" / "mutants" / "survivors.toml"
FAULTS = ROOT / "tests" / "mutants" / "faults.toml"
RESULTS = ROOT / "tests" / "mutants" / "results.json"
TABLE = ROOT / "docs" / "mutants.md"
CACHE = ROOT / ".ci" / "mutants.json"  # outcomes on this machine; results.json holds the totals
PROJECT = ("index", "research", "retrieval", "serving", "tests", "training")


@dataclass(frozen=True)
class Settings:
    """Settings from pyproject.toml."""

    least: float  # minimum share of killed mutants
    marks: str  # pytest's -m option
    modules: dict[str, list[str]]  # tests for each module
    faults_only: frozenset[str] = frozenset()  # modules that get only hand-written faults

    @classmethod
    def read(cls) -> Settings:
        """Read the settings; every path must exist."""
        values = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutants"]
        modules = {**values["modules"], **values["faults_only"]}
        for path in [*modules, *(test for tests in modules.values() for test in tests)]:
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"[tool.mutants] of pyproject.toml names {path}, which does not exist")
        return cls(float(values["least"]), str(values["marks"]), modules, frozenset(values["faults_only"]))


def read_faults() -> list[dict[str, str]]:
    """Read the hand-written faults."""
    faults: list[dict[str, str]] = tomllib.loads(FAULTS.read_text())["fault"]
    return faults


def faults_of(module: str, source: bytes) -> list[Mutant]:
    """Return the hand-written faults of a module; raise ValueError unless each replaced text occurs exactly once."""
    made = []
    for fault in read_faults():
        if fault["module"] != module:
            continue
        old = fault["old"].encode()
        if source.count(old) != 1:
            raise ValueError(
                f"{FAULTS.name}: {fault['name']!r} replaces text that {module} holds {source.count(old)} times"
            )
        start = source.index(old)
        line = source.count(b"\n", 0, start) + 1
        made.append(Mutant("", line, start, start + len(old), fault["new"], BY_HAND + fault["name"]))
    return made
