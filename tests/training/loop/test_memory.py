"""Freed memory is kept: the next step of a training run does not ask the system for it again."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from training.loop.memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
faults = []
for _ in range(40):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16_000_000)  # 64 MB
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(faults[-10:]))  # the first ones find their place
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_what_was_freed_is_used_again() -> None:
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True)
        return int(done.stdout)

    assert faults("kept") < 100
    assert faults("as ever") > 150  # 10 × 15,625 pages, or 10 × 31 huge ones
