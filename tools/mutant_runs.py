"""Run tests with a fault in the code, fast: in forks of a process that has imported the large packages.

A first run without faults notes which tests ran which lines (coverage.py). A fault is then shown the tests that ran its
line, the fastest first; those that a fixture or an import ran it for may be any, so that all tests follow.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKS = "not slow and not end_to_end and not browser"
KILLED, SURVIVED, BROKEN = "killed", "survived", "the tests could not be run"
LEAST_S, LOG, COVERAGE = 30, "tests.log", "tests-of-lines.json"
SETUP, CALL = "setup", "call"
OURS = ("index", "research", "retrieval", "serving", "tests", "tools", "training")
IMPORTED = ("hypothesis", "numpy", "faiss", "onnxruntime", "onnx", "PIL.Image", "fastapi.testclient", "httpx")


@dataclass
class Ran:
    """What the tests ran without any fault."""

    seconds: dict[str, float] = field(default_factory=dict)  # that each test took
    tests: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # of a line of a file
    shared: dict[str, list[str]] = field(default_factory=dict)  # lines of a file that imports or fixtures ran
    marks: str = MARKS  # which tests were run

    def chosen(self, module: str, lines: Iterable[int]) -> list[str]:
        """Return the tests that could notice a fault in some lines of a module, in the order to try them."""
        of_lines = self.tests.get(module, {})
        first = {test for line in lines for test in of_lines.get(str(line), [])}
        every = set(self.seconds) if {str(line) for line in lines} & set(self.shared.get(module, [])) else first
        near = {test for tests in of_lines.values() for test in tests}
        return sorted(every, key=lambda test: (test not in first, test not in near, self.seconds.get(test, 0), test))


class _Recorder:
    """A plugin of pytest that notes which tests run which lines."""

    def __init__(self, tree: Path, modules: Sequence[str], marks: str) -> None:
        self.tree, self.modules, self.ran = tree, modules, Ran(marks=marks)
        self.coverage = coverage.Coverage(data_file=None, include=[str(tree / module) for module in modules])
        self.coverage.start()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran.seconds[report.nodeid] = self.ran.seconds.get(report.nodeid, 0) + report.duration

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: Any) -> Generator[None, Any, Any]:
        self.coverage.switch_context(f"{SETUP} {item.nodeid}")
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Generator[None, Any, Any]:
        self.coverage.switch_context(f"{CALL} {item.nodeid}")
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def write(self) -> None:
        """Write what was run to the tree."""
        self.coverage.stop()
        data = self.coverage.get_data()
        for module in self.modules:
            lines = data.contexts_by_lineno(str(self.tree / module))
            self.ran.tests[module] = {
                str(line): sorted({context.partition(" ")[2] for context in contexts if context})
                for line, contexts in lines.items()
            }
            self.ran.shared[module] = [
                str(line) for line, contexts in lines.items() if any(not c.startswith(CALL) for c in contexts)
            ]
        (self.tree / COVERAGE).write_text(json.dumps(vars(self.ran)))


class _Order:
    """A plugin of pytest that runs some tests alone, in their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.places), key=lambda i: self.places[i.nodeid])


def copy_tree(target: Path) -> Path:
    """Copy the files that git knows or would add to a new folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def write_module(file: Path, source: bytes) -> None:
    """Write a module, and remove its bytecode: Python would run that of another text of the same size and second."""
    file.write_bytes(source)
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def import_packages() -> None:
    """Import large packages, so that the forks have them. None of them starts a thread."""
    for name in IMPORTED:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)


def first_run(tree: Path, modules: Sequence[str], tests: Sequence[str], marks: str) -> Ran:
    """Run tests without any fault; raise SystemExit if they fail."""

    def run() -> int:
        recorder = _Recorder(tree, modules, marks)
        status = _pytest(["-x", "-m", marks, *tests], [recorder])
        recorder.write()
        return status

    if _forked(tree, run) != SURVIVED:
        raise SystemExit(f"the tests fail without any fault:\n{(tree / LOG).read_text()[-4000:]}")
    return Ran(**json.loads((tree / COVERAGE).read_text()))


def run_tests(tree: Path, ran: Ran, tests: Sequence[str]) -> str:
    """Run tests, given by their ids, until one fails."""
    if not tests:
        return SURVIVED
    files = sorted({test.partition("::")[0] for test in tests})
    limit_s = LEAST_S + 10 * int(sum(ran.seconds[test] for test in tests))
    return _forked(tree, lambda: _pytest(["-x", "-m", ran.marks, *files], [_Order(tests)]), limit_s=limit_s)


def _pytest(arguments: Sequence[str], plugins: list[Any]) -> int:
    fixed = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for what is imported before
    return int(pytest.main([*fixed, *quiet, *arguments], plugins=plugins))


def _forked(tree: Path, run: Callable[[], int], *, limit_s: float = math.inf) -> str:
    """Return what came of tests that run in a fork, in a process group of its own, in a copy of the tree."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        status = int(pytest.ExitCode.INTERNAL_ERROR)
        try:
            _enter(tree)
            status = run()
        finally:
            sys.stdout.flush()
            os._exit(status)
    end, ended = time.monotonic() + limit_s, None
    while ended is None and time.monotonic() < end:  # a fault may make tests endless
        pid, status = os.waitpid(child, os.WNOHANG)
        ended = os.waitstatus_to_exitcode(status) if pid else None
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with the processes that its tests left behind
    if ended is None:
        os.waitpid(child, 0)
    broken = pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERNAL_ERROR
    return SURVIVED if ended == 0 else BROKEN if ended in broken else KILLED


def _enter(tree: Path) -> None:
    """Make this process, a fork, one that runs in a copy of the tree."""
    os.setpgrp()
    with (tree / LOG).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    os.environ.setdefault("RETRIEVAL_TEST_DATA", str(ROOT.parent / "shared"))
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:  # imported from the tree itself
        del sys.modules[name]
