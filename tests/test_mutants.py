"""The tool of `make mutants`, and what the repository says of its survivors."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tools.mutants import report, settings, trees
from tools.mutants.__main__ import Task, sample
from tools.mutants.operators import Mutant, mutants_of
from tools.mutants.settings import Settings, faults_of
from tools.mutants.trees import KILLED, SURVIVED, TIMEOUT, Tree

SOURCE = b'''
"""A module."""
LIMIT = 0.5  # of anything


class Keeper:
    @property
    def open(self) -> bool:
        """Say whether it is open."""
        return self.size >= 1 and not self.closed

    def store(self, rows, file):
        if rows is None:
            raise ValueError("rows must be given")
        with self.lock:
            self.rows[0] = sorted(rows, key=len)
            os.fsync(file)
        return math.ceil(len(rows) / 2)
'''


def changes(source: bytes, function: str) -> set[str]:
    return {mutant.change.partition(" -> ")[2] for mutant in mutants_of(source) if mutant.function == function}


def test_constants_and_properties_are_mutated() -> None:
    assert changes(SOURCE, "") == {"LIMIT = (0.25)"}
    assert changes(SOURCE, "Keeper.open") == {
        "return (self.size >= 1 or not self.closed)",
        "return (not self.closed)",
        "return (self.size >= 1)",
        "return (self.size > 1) and not self.closed",
        "return self.size >= (2) and not self.closed",
        "return self.size >= (0) and not self.closed",
        "return self.size >= 1 and (self.closed)",
    }


def test_statements_locks_and_calls_are_left_out() -> None:
    found = changes(SOURCE, "Keeper.store")
    assert {"pass", "if True:", "self.rows[0] = (rows)", "self.rows[0] = (sorted(rows))"} <= found
    assert {
        "if (rows is not None):",
        "return (math.floor(len(rows) / 2))",
        "return math.ceil((len(rows) * 2))",
    } <= found
    left_out = {mutant.change.partition(" -> ")[0] for mutant in mutants_of(SOURCE) if mutant.new == "pass"}
    assert left_out == {
        'raise ValueError("rows must be given")',
        "self.rows[0] = sorted(rows, key=len)",
        "os.fsync(file)",
    }


def test_each_mutant_is_one_change_that_parses_and_has_its_own_name() -> None:
    mutants = mutants_of(SOURCE)
    assert len({(mutant.function, mutant.change) for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        changed = mutant.apply(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        assert changed.splitlines()[: mutant.line - 1] == SOURCE.splitlines()[: mutant.line - 1]


def test_docstrings_annotations_and_messages_are_left_alone() -> None:
    assert not mutants_of(b'def f(a: list[int] | None = None) -> "b":\n    """One."""\n    raise E(f"{1 + 2}", 3)\n')[
        1:
    ]


def test_sql_is_mutated() -> None:
    source = b'rows = ask("SELECT id FROM photo WHERE version <= ? AND gone > ? ORDER BY id DESC")'
    found = changes(source, "")
    assert {"SELECT id FROM photo WHERE version < ? AND gone > ? ORDER BY id DESC"} <= {
        change.removeprefix("rows = ask(('").removesuffix("'))") for change in found
    }
    assert len(found) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "outcome"), [("x == 1", SURVIVED), ("x == 2", KILLED), ("wait()", TIMEOUT), ("loop()", TIMEOUT)]
)
def test_a_mutant_runs_in_a_process_of_its_own(
    tmp_path: Path, test: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child sees the mutant, this process does not, and one that waits or never ends is ended."""
    if outcome == TIMEOUT:
        monkeypatch.setattr(trees, "LEAST_SECONDS", 1)
        monkeypatch.setattr(trees, "WALL", 2)
    (tmp_path / "judged.py").write_text("x = 0\n")
    (tmp_path / "test_judged.py").write_text(
        "from threading import Event\nfrom judged import x\nwait = Event().wait\n"
        f"def loop():\n    while True: pass\ndef test_it():\n    assert {test}\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert Tree(tmp_path).run("judged.py", b"x = 1\n", {"test_judged.py": 0.0}, marks="") == outcome
    assert (tmp_path / "judged.py").read_text() == "x = 0\n"


def test_a_sample_holds_every_hand_made_fault_and_grows_with_its_size() -> None:
    fault = Mutant("", 1, 0, 1, "#", "fault: made by hand")
    every = [Task("m.py", mutant, {}) for mutant in [fault, *mutants_of(SOURCE)]]
    small, large = sample(every, 3), sample(every, 6)
    assert (len(small), len(large), sample(every, None)) == (4, 7, every)
    assert small[0].mutant is large[0].mutant is fault
    assert all(task in large for task in small)


def test_only_what_changed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "CACHE", tmp_path / "cache.json")
    mutants = mutants_of(SOURCE)
    outcomes = report.Outcomes.read()
    assert outcomes.start("m.py", SOURCE, mutants, again=False) == set()
    for mutant in mutants:
        outcomes.note("m.py", mutant, SURVIVED if mutant.function == "" else KILLED, report.digests(SOURCE))
    outcomes.write()
    changed = SOURCE.replace(b"/ 2", b"/ 3")
    kept = report.Outcomes.read().start("m.py", changed, mutants_of(changed), again=False)
    assert kept == {report.name_of(mutant) for mutant in mutants if mutant.function == "Keeper.open"}
    assert report.Outcomes.read().start("m.py", changed, mutants_of(changed), again=True) == set()
    told = SOURCE.replace(b"Say whether it is open.", b"Tell it.").replace(b"A module.", b"Another.")
    assert report.digests(told) == report.digests(SOURCE)


def test_hand_made_faults_replace_text_that_is_there() -> None:
    values = settings.read_faults()
    assert len({fault["name"] for fault in values}) == len(values)
    assert {fault["module"] for fault in values} <= set(Settings.read().modules)
    for module in {fault["module"] for fault in values}:
        source = (settings.ROOT / module).read_bytes()
        for fault in faults_of(module, source):
            ast.parse(fault.apply(source))
    (missing,) = (fault for fault in values if "ceil to floor" in fault["name"])
    with pytest.raises(ValueError, match=r"replaces text that retrieval/threshold/bounds\.py holds 0 times"):
        faults_of(missing["module"], b"")


def test_the_repository_meets_its_own_limits() -> None:
    written = json.loads(settings.RESULTS.read_text())
    assert report.complaints(written, Settings.read()) == []
    table = settings.TABLE.read_text().splitlines()
    assert [row for row in report.table(written) if row not in table] == []


def results(**changes: object) -> dict[str, dict[str, object]]:
    values = {"mutants": 20, "of": 20, "killed": 19, "faults": 1, "faults_killed": 1, "survivors": ["f: a -> b"]}
    return {"m.py": values | changes}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"survivors": ["f: a -> c", "f: a -> b"]}, "no reason for: f: a -> c"),
        ({"survivors": []}, "survives no more"),
        ({"survivors": [], "of": 200}, None),  # of a sample that does not hold it
        ({"faults_killed": 0}, "a hand-made fault survives"),
        ({"killed": 17}, "less than 90%"),
    ],
)
def test_what_is_wrong_is_told(
    changes: dict[str, object], complaint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "survivors.toml").write_text(
        '[[survivor]]\nmodule = "m.py"\nreason = "the same number"\nmutants = ["f: a -> b"]\n'
    )
    monkeypatch.setattr(report, "SURVIVORS", tmp_path / "survivors.toml")
    told = report.complaints(results(**changes), Settings(0.9, "", {"m.py": []}))
    assert len(told) == (complaint is not None)
    assert complaint is None or complaint in told[0]
