"""The faults of `make mutants` fit the code, and the tool distinguishes faults that a test finds from other faults."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tools.mutants import FAULTS, copy_tree, is_found, read_faults
from tools.tree import ROOT


def test_each_fault_replaces_a_text_that_stands_once_and_changes_the_code() -> None:
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len(faults)
    for fault in faults:
        source = (ROOT / fault.module).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(source.replace(fault.old, fault.new))) != ast.dump(ast.parse(source)), fault.name
        assert fault.tests, fault.name


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("old", "a text that no package has", "stands 0 times"), ("tests", ["test_none.py"], "there are 0")],
)
def test_a_fault_whose_text_or_test_is_gone_is_named(tmp_path: Path, key: str, value: object, message: str) -> None:
    lines = FAULTS.read_text(encoding="utf-8").split("[[fault]]")[1].splitlines()
    changed = [f"{key} = {value!r}" if line.startswith(f"{key} =") else line for line in lines]
    (tmp_path / "faults.toml").write_text("\n".join(["[[fault]]", *changed]), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_faults(tmp_path / "faults.toml")


@pytest.mark.end_to_end
def test_a_fault_is_found_if_a_test_fails_with_it(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    fault = next(fault for fault in read_faults() if fault.tests == ("tests/retrieval/metrics/test_consistency.py",))
    assert is_found(tree, fault)
    assert not is_found(tree, replace(fault, new=f"({fault.old})"))
    assert (tree / fault.module).read_bytes() == (ROOT / fault.module).read_bytes()
