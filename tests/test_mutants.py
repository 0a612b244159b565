"""The tool of `make mutants`: faults of the file stand in the code, and those of the rules are one change each."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from research.results.code import module_hash
from tools.mutant_runs import Ran, write_module
from tools.mutants import FAULTS, ROOT, complaints, make_faults, read_faults, read_modules, wanted

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
    faults = make_faults("keeper.py", SOURCE, ["test_keeper.py"])
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


def test_rules_leave_the_check_that_lists_have_one_length_alone() -> None:
    source = b"def pairs(one, two):\n    return sorted(zip(one, two, strict=True), reverse=True)\n"
    assert [(fault.old, fault.new) for fault in make_faults("pairs.py", source, [])] == [("True", "False")]
    (fault,) = make_faults("pairs.py", source, [])
    assert fault.apply(source).endswith(b"strict=True), reverse=False)\n")


def test_faults_have_names_of_their_own_and_an_order_that_other_lines_do_not_change() -> None:
    faults = make_faults("keeper.py", SOURCE, ["test_keeper.py"])
    moved = make_faults("keeper.py", b"\n\n# a comment\n" + SOURCE, ["test_keeper.py"])
    assert len({fault.name for fault in faults}) == len(faults)
    assert [fault.name for fault in moved] == [fault.name for fault in faults]
    assert [fault.lines.start - 3 for fault in moved] == [fault.lines.start for fault in faults]


def test_the_hash_of_code_is_that_of_what_runs() -> None:
    same = SOURCE.replace(b"Say whether it is open.", b"Return whether it is open.") + b"# a comment\n"
    assert module_hash(same) == module_hash(SOURCE)
    assert module_hash(SOURCE.replace(b">= 1", b">= 2")) != module_hash(SOURCE)
    assert module_hash(SOURCE.replace(b"must be given", b"are missing")) == module_hash(SOURCE)  # the text of an error
    assert module_hash(SOURCE.replace(b"ValueError", b"TypeError")) != module_hash(SOURCE)


def test_a_fault_is_shown_the_tests_that_ran_its_lines_the_fastest_first() -> None:
    ran = Ran(
        seconds={"slow": 3.0, "fast": 0.1, "other": 0.01, "far": 0.001},
        tests={"keeper.py": {"7": ["slow", "fast"], "8": ["other"]}},
        shared={"keeper.py": ["8"]},
    )
    assert ran.chosen("keeper.py", [7]) == ["fast", "slow"]
    assert ran.chosen("keeper.py", [8]) == ["other", "fast", "slow", "far"]  # a fixture or an import runs this line
    assert ran.chosen("keeper.py", [9]) == []


def test_modules_that_decide_exist_with_their_tests_and_names_of_all_that_must_be_listed() -> None:
    modules = read_modules()
    assert all((ROOT / module).is_file() and entry["tests"] for module, entry in modules.items())
    for module in ("threshold/anchor", "threshold/fold_draws"):
        assert modules[f"retrieval/{module}.py"]["share"] == 1
    for module in ("leave_one_out", "item_distance", "item_search"):
        assert modules[f"index/search/{module}.py"]["share"] == 1


def test_a_record_of_other_code_or_with_too_few_faults_is_named() -> None:
    module = "retrieval/threshold/fold_draws.py"
    source = (ROOT / module).read_bytes()
    whole = len(make_faults(module, source, ()))
    entry = {"code": module_hash(source), "faults": whole, "tried": whole, "survivors": {"a: 1 -> 2": "it is a limit"}}

    def of_module(**changed: object) -> list[str]:
        return [told for told in complaints({module: entry | changed}) if module in told or "only" in told]

    assert of_module() == []
    assert "in other code" in of_module(code="0123456789abcdef")[0]
    assert of_module(tried=whole - 1) == [f"{module}: {whole - 1} of at least {whole} faults were tried"]
    assert of_module(survivors={"a: 1 -> 2": ""}) == [f"{module}: survived without a reason: a: 1 -> 2"]
    assert of_module(survivors={str(n): "it is a limit" for n in range(2)})[0].startswith("only")
    assert wanted([None] * 21, 0.1) == 3  # type: ignore[list-item]


def test_a_module_written_again_in_one_second_with_equal_size_is_not_run_from_old_bytecode(tmp_path: Path) -> None:
    file = tmp_path / "limits.py"
    for number in (8, 9):
        write_module(file, f"print({number})".encode())
        os.utime(file, (1e9, 1e9))
        run = [sys.executable, "-c", "import limits"]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        assert subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, check=True).stdout == b"%d\n" % number


@pytest.mark.end_to_end
def test_tests_run_the_code_with_the_fault_whatever_the_tool_itself_imported() -> None:
    script = """
import tempfile, time
from tools.mutants import ROOT, Runs, make_faults
module, tests = "retrieval/bundle/fitted.py", ["tests/retrieval/bundle/test_fitted.py"]
faults = [fault for fault in make_faults(module, (ROOT / module).read_bytes(), tests) if "8 -> 9" in fault.name]
with tempfile.TemporaryDirectory() as folder:
    print([outcome for _, outcome in Runs(folder, faults, time.monotonic() + 300).outcomes(faults)])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['killed']"
