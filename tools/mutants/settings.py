"""Which modules are mutated, and which tests must notice: `[tool.mutants]` of pyproject.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from .operators import Mutant

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = ROOT / "tests" / "mutants" / "survivors.toml"
FAULTS = ROOT / "tests" / "mutants" / "faults.toml"
RESULTS = ROOT / "tests" / "mutants" / "results.json"
TABLE = ROOT / "docs" / "mutants.md"
CACHE = ROOT / ".ci" / "mutants.json"  # outcome of every mutant on this machine; results.json holds the sums
PROJECT = ("index", "retrieval", "serving", "training", "tests")


@dataclass(frozen=True)
class Settings:
    """What pyproject.toml says."""

    least: float  # share of mutants that must be killed
    marks: str  # pytest's -m
    modules: dict[str, list[str]]  # tests by the module that they are about
    faults_only: frozenset[str] = frozenset()  # modules where hand-made faults alone are tried

    @classmethod
    def read(cls) -> Settings:
        """Return the settings; every path must exist."""
        values = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutants"]
        modules = {**values["modules"], **values["faults_only"]}
        for path in [*modules, *(test for tests in modules.values() for test in tests)]:
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"[tool.mutants] of pyproject.toml names {path}, which does not exist")
        return cls(float(values["least"]), str(values["marks"]), modules, frozenset(values["faults_only"]))


def read_faults() -> list[dict[str, str]]:
    """Return the hand-made faults."""
    faults: list[dict[str, str]] = tomllib.loads(FAULTS.read_text())["fault"]
    return faults


def faults_of(module: str, source: bytes) -> list[Mutant]:
    """Return the hand-made faults of a module; ValueError where the text that one replaces is not there once."""
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
        made.append(Mutant("", line, start, start + len(old), fault["new"], f"fault: {fault['name']}"))
    return made
