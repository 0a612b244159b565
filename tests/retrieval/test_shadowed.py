"""Files of users that have the name of a package of this project: they are named, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ROOT

SCRIPT = "from retrieval import Promise\nprint(Promise.__name__)\n"
COMMAND = "from retrieval.cli.main import main\nmain()\n"  # what the console script `retrieval` does


def run(folder: Path, script: str, *words: str, name: str = "script.py") -> subprocess.CompletedProcess[str]:
    """Run a script, whose folder comes first where modules are looked for."""
    (folder / name).write_text(script)
    command = [sys.executable, str(folder / name), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)


def hide(folder: Path, name: str) -> Path:
    """Write `name.py`, or `name/__init__.py` for a name that ends in a slash; return what hides the package."""
    path = folder / (name if name.endswith("/") else f"{name}.py")
    if name.endswith("/"):
        path.mkdir()
    (path / "__init__.py" if path.is_dir() else path).write_text("MINE = 1\n")
    return path


@pytest.mark.parametrize("name", ["index", "index/"])
@pytest.mark.parametrize("script", [SCRIPT, f"import index\n{SCRIPT}", "import retrieval.client\n", COMMAND])
def test_an_index_of_the_user_is_named(name: str, script: str, tmp_path: Path) -> None:
    path = hide(tmp_path, name)
    done = run(tmp_path, script, "promise", "--help")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"{path} hides the package `index` of Retrieval: rename it, or run from another folder"), last


def test_a_script_that_hides_the_index_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, name="index.py")
    assert f"{tmp_path / 'index.py'} hides the package `index` of Retrieval" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["training", "training/", "serving", "serving/"])
def test_only_commands_that_need_a_hidden_package_refuse(name: str, tmp_path: Path) -> None:
    path, package = hide(tmp_path, name), name.rstrip("/")
    verb = {"training": "train", "serving": "serve"}[package]
    refused = run(tmp_path, COMMAND, verb, "--help")
    assert refused.returncode == 1
    assert refused.stderr == (
        f"error: {path} hides the package `{package}` of Retrieval: rename it, or run from another folder\n"
    )
    assert run(tmp_path, COMMAND, "promise", "--help").returncode == 0
    assert run(tmp_path, SCRIPT).stdout == "Promise\n"


def test_folders_without_code_hide_nothing(tmp_path: Path) -> None:
    for name in ("index", "training", "serving"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    assert run(tmp_path, SCRIPT).stdout == "Promise\n"
    assert run(tmp_path, COMMAND, "losses", "--help").returncode == 0
