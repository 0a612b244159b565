"""Put small faults into the code, one at a time, and see that a test fails: `python -m tools.mutants [--only TEXT]`.

tests/mutants/faults.toml lists them: a text that the packages hold once, what replaces it, and the files whose tests
must find it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

from .tree import ROOT, tree_files

FAULTS = ROOT / "tests" / "mutants" / "faults.toml"
PACKAGES = ("index", "retrieval", "serving", "training")
MARKS = "not slow and not end_to_end and not browser"
LIMIT_S = 600.0  # a fault may make tests endless, which counts as found
PASSED, FAILED, NOT_IMPORTED = 0, 1, 2  # exit statuses of pytest


@dataclass(frozen=True)
class Fault:
    """A fault: `new` in place of `old` in `module`; paths are relative to the root."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_faults(path: Path = FAULTS, root: Path = ROOT) -> list[Fault]:
    """Return the faults; raise ValueError unless the packages hold each text once, and `tests` each test file."""
    sources = {file: file.read_text("utf-8") for package in PACKAGES for file in sorted((root / package).rglob("*.py"))}
    faults = []
    for entry in tomllib.loads(path.read_text("utf-8"))["fault"]:
        name, old = entry["name"], entry["old"]
        places = [file for file, source in sources.items() for _ in range(source.count(old))]
        if len(places) != 1:
            raise ValueError(f"{name!r} replaces a text that stands {len(places)} times in the packages: {old}")
        tests = []
        for end in entry["tests"]:
            files = sorted((root / "tests").rglob(end))
            if len(files) != 1:
                raise ValueError(f"{name!r} names the test {end}, and there are {len(files)}")
            tests.append(files[0].relative_to(root).as_posix())
        faults.append(Fault(name, places[0].relative_to(root).as_posix(), old, entry["new"], tuple(tests)))
    return faults


def copy_tree(target: Path, root: Path = ROOT) -> Path:
    """Copy the files of a tree to a new folder, and compile them."""
    for file in tree_files(root, untracked=True):
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    # by hash: a changed module may have the size and the second of the compiled one
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", *PACKAGES]
    subprocess.run(compiled, cwd=target, check=True)
    return target


def run_tests(tree: Path, tests: Sequence[str], *, limit_s: float | None = None) -> int:
    """Run test files of a copy of the tree until a test fails; return pytest's exit status, FAILED beyond the limit."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("RETRIEVAL_TEST_DATA", str(ROOT.parent / "shared"))
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", MARKS]
    with (tree / "tests.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return FAILED
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def is_found(tree: Path, fault: Fault) -> bool:
    """Return whether a test of the fault fails in a copy of the tree that has it; raise RuntimeError if none runs."""
    file = tree / fault.module
    source = file.read_text("utf-8")
    changed = source.replace(fault.old, fault.new)
    compile(changed, fault.module, "exec")
    file.write_text(changed, "utf-8")
    try:
        status = run_tests(tree, fault.tests, limit_s=LIMIT_S)
    finally:
        file.write_text(source, "utf-8")
    if status not in (PASSED, FAILED, NOT_IMPORTED):
        raise RuntimeError(f"{fault.name}: the tests could not be run:\n{(tree / 'tests.log').read_text()[-4000:]}")
    return status != PASSED


def main() -> int:
    """Try the faults; return 1 if no test finds one of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="Only faults whose name holds this text.")
    parser.add_argument("--workers", type=int, default=2, help="Number of faults tried at a time. [default: 2]")
    arguments = parser.parse_args()
    faults = [fault for fault in read_faults() if arguments.only in fault.name]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(number)) for number in range(arguments.workers)]
        if run_tests(trees[0], sorted({test for fault in faults for test in fault.tests})) != PASSED:
            raise SystemExit(f"the tests fail without any fault:\n{(trees[0] / 'tests.log').read_text()[-4000:]}")

        def attempt(fault: Fault) -> bool:
            tree = trees.pop()  # there are as many as threads
            try:
                found = is_found(tree, fault)
            finally:
                trees.append(tree)
            print(f"{'found' if found else 'NOT FOUND'}: {fault.module}: {fault.name}", flush=True)
            return found

        with ThreadPool(arguments.workers) as pool:
            found = pool.map(attempt, faults, chunksize=1)
    print(f"{sum(found)} of {len(faults)} faults were found by a test")
    return int(not all(found))


if __name__ == "__main__":
    sys.exit(main())
