"""Freed memory is kept: the next step of a training run does not ask the system for it again."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from training.evaluation.embedding import keep_freed_memory

def faults():
    counted = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(8_000_000)  # 64 MB
        counted.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return sum(counted[-10:])  # the first ones find their place

print(faults())
assert keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_what_was_freed_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    before, kept = map(int, done.stdout.split())
    assert before > 150  # 10 × 15,625 pages, or 10 × 31 huge ones
    assert kept < 100
