"""Copies of the working tree for mutation tests: one per worker, with one process per mutant.

Starting Python, numpy, onnxruntime and pytest takes seconds, while most tests take hundredths of a second. A worker
therefore imports all third-party modules once and forks for each mutant; the child imports the mutated project and
runs the tests. PYTHONPATH makes the mutant visible to processes that the tests start.
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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from .settings import PROJECT, ROOT

KILLED, SURVIVED, TIMEOUT, UNTESTED = "killed", "survived", "timeout", "untested"
LOG = ".mutant.log"  # output of the last test run in a copy
OUTCOMES = {0: SURVIVED, -signal.SIGXCPU: TIMEOUT}  # by exit code; any other code means that a test failed
WALL = 10  # wall-clock limit of a waiting mutant, as a multiple of its CPU limit


def copy_tree(target: Path) -> Path:
    """Copy every file that git tracks or does not ignore."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def preload(names: Iterable[str]) -> None:
    """Import third-party modules; those that cannot be imported on their own are left to the tests."""
    for name in names:
        if name.partition(".")[0] not in (*PROJECT, "__main__", "conftest"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()  # garbage collection in a child skips existing objects


def environment(tree: Path) -> dict[str, str]:
    """Return the environment for the tests of a copy."""
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}


@dataclass
class Tree:
    """A copy of the working tree that belongs to one worker."""

    path: Path
    tried: int = 0

    def run(self, module: str, source: bytes, tests: Sequence[str], *, marks: str, seconds: float) -> str:
        """Return the outcome of a mutant: killed, survived or timeout (`seconds` of CPU time)."""
        target = self.path / module
        original = target.read_bytes()
        self.tried += 1
        try:
            target.write_bytes(source)
            os.utime(target, (1e9 + 2 * self.tried,) * 2)  # compiled files are distinguished by mtime in seconds
            return self._fork(tests, marks, seconds)
        finally:
            target.write_bytes(original)
            os.utime(target, (1e9 + 2 * self.tried + 1,) * 2)

    def _fork(self, tests: Sequence[str], marks: str, seconds: float) -> str:
        child = os.fork()
        if not child:
            os.setsid()  # own process group, to end child processes with it
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))
            _test(self.path, tests, marks)
        ends = time.monotonic() + WALL * seconds
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


def _test(tree: Path, tests: Sequence[str], marks: str) -> None:
    """Run the tests of a copy in this process and exit."""
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
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for plugins imported before pytest
        code = int(pytest.main([*options, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
