"""Opening a retriever imports what serving needs, and no more."""

from __future__ import annotations

import subprocess
import sys

NOT_NEEDED = (
    "click",
    "matplotlib",
    "scipy",
    "torch",
    "retrieval.cli",
    "retrieval.threshold.anchor",
    "retrieval.threshold.calibrate",
    "retrieval.threshold.feedback",
    "retrieval.threshold.query_shift",
    "retrieval.threshold.report",
    "retrieval.threshold.verdicts",
)


def test_a_retriever_imports_nothing_that_serving_does_not_need() -> None:
    code = "import sys, retrieval.retriever; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "retrieval.retriever" in done.stdout.split()
    assert not set(NOT_NEEDED) & set(done.stdout.split())
