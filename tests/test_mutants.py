"""The tool of `make mutants`: faults of the file stand in the code, and those of the rules are one change each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.mutants import FAULTS, ROOT, make_faults, read_faults, sample

SOURCE = b'''
class Keeper:
    def is_open(self) -> bool:
        """Say whether it is open."""
        return self.size >= 1 and not self.closed

    def store(self, rows, file):
        if rows is None:
            raise ValueError("rows must be given")
        os.fsync(file)
        return math.ceil(len(rows) / 2)
'''


def test_faults_made_by_hand_replace_a_text_that_stands_once() -> None:
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len(faults) > 20
    for fault in faults:
        source = (ROOT / fault.module).read_bytes()
        assert ast.dump(ast.parse(fault.apply(source))) != ast.dump(ast.parse(source))
        assert fault.tests


def test_a_fault_whose_text_or_test_is_gone_is_named(tmp_path: Path) -> None:
    lines = FAULTS.read_text().split("[[fault]]")[1].splitlines()
    for line in lines:
        if line.startswith(("old =", "tests =")):
            key = line.partition(" ")[0]
            changed = [
                f"{key} = {['test_none.py'] if key == 'tests' else 'no text'!r}" if other == line else other
                for other in lines
            ]
            (tmp_path / "faults.toml").write_text("\n".join(["[[fault]]", *changed]))
            with pytest.raises(ValueError, match="replaces a text that 0 modules" if key == "old" else "test_none"):
                read_faults(tmp_path / "faults.toml")


def test_rules_change_conditions_numbers_and_statements_and_leave_messages_alone() -> None:
    faults = list(make_faults("keeper.py", SOURCE, ["test_keeper.py"]))
    changed = {(fault.old, fault.new) for fault in faults}
    assert {
        ("self.size >= 1", "(self.size > 1)"),
        ("not self.closed", "(self.closed)"),
        ("1", "2"),
        ("os.fsync(file)", "pass"),
        ("len(rows) / 2", "(len(rows) * 2)"),
        ("math.ceil(len(rows) / 2)", "math.floor(len(rows) / 2)"),
        ('raise ValueError("rows must be given")', "pass"),
    } <= changed
    for fault in faults:
        assert ast.dump(ast.parse(fault.apply(SOURCE))) != ast.dump(ast.parse(SOURCE))


def test_a_sample_is_the_same_each_time_and_grows_with_its_size() -> None:
    faults = list(make_faults("keeper.py", SOURCE, ["test_keeper.py"]))
    small, large = sample(faults, 3), sample(list(reversed(faults)), 6)
    assert (len(small), len(large)) == (3, 6)
    assert set(small) <= set(large)
