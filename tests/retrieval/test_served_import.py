"""Opening a retriever and starting a server import only what they need."""

from __future__ import annotations

import subprocess
import sys

NOT_NEEDED = {
    "click",
    "matplotlib",
    "pandas",
    "pyarrow",
    "scipy",
    "torch",
    "transformers",
    "retrieval.cli",
    "retrieval.measuring.rule",
    "retrieval.feedback",
    "retrieval.measuring.labelled",
    "retrieval.reports.bundle_report",
}
OF_A_SERVER = {name for name in NOT_NEEDED if "." not in name} - {"click"} | {"gradio", "httpx"}


def test_serving_imports_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys, retrieval.retriever; print(*sys.modules)\n"
        "import serving.cli, serving.app, serving.launch; print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_retriever, of_server = (set(line.split()) for line in done.stdout.splitlines())
    assert "retrieval.retriever" in of_retriever
    assert not NOT_NEEDED & of_retriever
    assert "serving.app" in of_server
    assert not OF_A_SERVER & of_server
