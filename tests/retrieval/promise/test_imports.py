"""`from retrieval import Promise` works wherever numpy does: on Windows, without models, databases and pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ...conftest import ROOT

UNIX = ("fcntl", "grp", "pwd", "resource")  # modules of the standard library that Windows lacks
USE = f"""
import sys
for name in {(*UNIX, "sqlite3")}:
    sys.modules[name] = None  # importing it fails

import numpy as np
np.random.default_rng()  # imports more of numpy
before = set(sys.modules)
from retrieval import Promise

centres, generator = np.random.default_rng(0).normal(size=(60, 16)), np.random.default_rng(1)
items = np.repeat([f"item {{n}}" for n in range(60)], 3)
vectors = np.repeat(centres, 3, axis=0) + generator.normal(size=(180, 16)) / 3
Promise.measure(vectors, items).save("shop.promise")
promise = Promise.load("shop.promise")
print(promise)
for query in (centres[7], generator.normal(size=16)):
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    answer = promise.decide(query, [(items[row], cosines[row]) for row in np.argsort(-cosines)[:20]])
    print(answer.decision, answer.item_id)

packages = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(packages - set(sys.stdlib_module_names) - {{"numpy"}}))
"""


def test_a_promise_is_measured_kept_and_used_with_numpy_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", USE], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.splitlines()[-3:] == ["match item 7", "no_match None", "index retrieval"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop.promise", "shop.promise.npz"]


def test_the_command_line_measures_vectors_without_the_modules_that_windows_lacks(tmp_path: Path) -> None:
    script = f"""
import sys
for name in {UNIX}:
    sys.modules[name] = None
import numpy as np
items = np.repeat(np.arange(40), 3)
generator = np.random.default_rng(0)
np.savez("shop.npz", vectors=generator.normal(size=(40, 16))[items] + generator.normal(size=(120, 16)) / 3, items=items)
from retrieval.cli.main import main
main()
"""
    command = [sys.executable, "-c", script, "promise", "shop.npz", "-o", "shop.promise", "--report", "shop.html"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "120 vectors of 40 items" in done.stdout
    assert {"shop.promise", "shop.html"} <= {path.name for path in tmp_path.iterdir()}


def test_these_tests_are_collected_without_the_modules_that_windows_lacks() -> None:
    script = f"import sys, pytest\nfor name in {UNIX}: sys.modules[name] = None\nsys.exit(pytest.main(sys.argv[1:]))"
    tests = [str(ROOT / "tests" / "retrieval" / name) for name in ("promise", "cli/test_promise.py")]
    command = [sys.executable, "-c", script, "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
