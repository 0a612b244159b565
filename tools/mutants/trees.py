"""Copies of the working tree, in which mutants are tried: one a worker, each mutant in a process of its own.

Starting Python, numpy, onnxruntime and pytest takes seconds, most tests take hundredths. So a worker imports what does
not belong to the project once, and forks for each mutant; the child imports the project, with the mutant in it, and
runs the tests. Processes that the tests start see the mutant too, by PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from .settings import PROJECT, ROOT

KILLED, SURVIVED, TIMEOUT, UNTESTED = "killed", "survived", "timeout", "untested"
LOG = ".mutant.log"  # what the last tests said, in a copy
OUTCOMES = {0: SURVIVED, -signal.SIGXCPU: TIMEOUT}  # by exit code; every other is a failure of the tests
PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}  # loading others takes seconds
WAITING = 120  # seconds of the clock that a test may take
PATIENCE, LEAST_SECONDS = 5, 15  # times what a test takes without a mutant, and at least
WALL = 4  # seconds of the clock for each of the processor that the tests may take, before a mutant that waits is ended


def copy_tree(target: Path) -> Path:
    """Copy every file that git knows or does not ignore."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def preload(names: Iterable[str]) -> None:
    """Import what does not belong to the project; a part that cannot be imported alone is left to the tests."""
    for name in names:
        if name.partition(".")[0] not in (*PROJECT, "__main__", "conftest"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()  # a child need not look through what is there already


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which the tests of a copy run."""
    return {**os.environ, **PLUGINS, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}


class Limits:
    """A pytest plugin that ends the process when a test takes much more of the processor than without a mutant."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Set the limit of the next test; the system sends SIGXCPU there."""
        limit = math.ceil(time.process_time() + allowed(self.seconds.get(item.nodeid, 0)))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def allowed(seconds: float) -> float:
    """Return how many seconds a test may take that takes so many without a mutant."""
    return max(LEAST_SECONDS, PATIENCE * seconds)


@dataclass
class Tree:
    """A copy of the working tree that belongs to one worker."""

    path: Path
    tried: int = 0

    def run(self, module: str, source: bytes, tests: Mapping[str, float], *, marks: str) -> str:
        """Return what became of a mutant: killed, survived, or out of time.

        `tests` are run in their order, with the seconds of the processor that each takes without a mutant.
        """
        target = self.path / module
        original = target.read_bytes()
        self.tried += 1
        try:
            target.write_bytes(source)
            os.utime(target, (1e9 + 2 * self.tried,) * 2)  # compiled files are told apart by the second
            return self._fork(tests, marks)
        finally:
            target.write_bytes(original)
            os.utime(target, (1e9 + 2 * self.tried + 1,) * 2)

    def _fork(self, tests: Mapping[str, float], marks: str) -> str:
        child = os.fork()
        if not child:
            os.setsid()  # its own process group: what it starts ends with it
            _test(self.path, tests, marks)
        ends = time.monotonic() + WALL * sum(allowed(seconds) for seconds in tests.values())
        try:
            while True:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    return OUTCOMES.get(os.waitstatus_to_exitcode(status), KILLED)
                if time.monotonic() > ends:
                    return TIMEOUT
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _test(tree: Path, tests: Mapping[str, float], marks: str) -> None:
    """Run the tests of a copy in this process, and end it."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        log = os.open(tree / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file, number)
        os.chdir(tree)
        os.environ.update(environment(tree))
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks]
        options += ["--timeout", str(WAITING)]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that are imported already
        code = int(pytest.main([*options, *tests], plugins=[Limits(tests)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
