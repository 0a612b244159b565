"""What a server asks the network, seen by the kernel: libraries in C are not seen by Python's audit hooks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from serving.launch import MEMORY

from ..world import draw, encode
from .conftest import launch, until

STRACE = shutil.which("strace")
WAIT_S = 15.0  # ONNX Runtime looks up the host of its telemetry after 9 s
OUTSIDE = re.compile(r"sin6?_port=htons\((\d+)\).*(?:inet_addr\(\"(?!127\.)|inet_pton\(AF_INET6, \"(?!::1\"))")
LOOKUPS = re.compile(r'openat\([^,]*, "/etc/(?:resolv\.conf|hosts)"')
OPENING = (
    "from retrieval.bundle.bundle import Bundle; Bundle.open({bundle!r}).embedder(); import time; time.sleep({wait})"
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(STRACE is None, reason="strace is not installed")]


def traced(trace: Path) -> list[str]:
    """Return the lines of a trace that show a look-up of a host or a connection to another machine."""
    return [
        line for line in trace.read_text(errors="replace").splitlines() if OUTSIDE.search(line) or LOOKUPS.search(line)
    ]


def strace(trace: Path, *command: str) -> list[str]:
    assert STRACE
    return [STRACE, "-f", "-qq", "-e", "trace=%network,openat", "-o", str(trace), *command]


def private(folder: Path) -> dict[str, str]:
    (folder / "home").mkdir()
    return {**os.environ, "HOME": str(folder / "home"), "TMPDIR": str(folder / "home")}


def test_serving_by_workers_makes_no_dns_query_and_leaves_no_file(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker process looked up the host of ONNX Runtime's vendor and left a file `.ses`."""
    trace, environment = tmp_path / "trace", private(tmp_path)
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    served = launch(shop, tmp_path, "--no-page", "--workers", "2", before=strace(trace))
    try:
        until(lambda: is_ready(served.address), 120)
        assert httpx.post(f"{served.address}/v1/search", content=encode(draw(3, 5))).status_code == 200
        time.sleep(WAIT_S)
        assert traced(trace) == []
        assert len([*(tmp_path / "home").iterdir()]) == (0 if os.access(MEMORY, os.W_OK) else 1)  # a disk may be full
    finally:
        (child,) = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        served.process.wait(60)
    assert traced(trace) == []
    assert [*(tmp_path / "home").iterdir()] == []


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("disabled", [True, False])
def test_the_trace_sees_the_telemetry_that_is_off(world: Path, tmp_path: Path, disabled: bool) -> None:
    environment = private(tmp_path)
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    environment |= {} if disabled else {"ORT_DISABLE_TELEMETRY": "0"}
    code = OPENING.format(bundle=str(world / "bundle"), wait=WAIT_S)
    command = strace(tmp_path / "trace", sys.executable, "-c", code)
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert (traced(tmp_path / "trace") == []) is disabled
    assert ([*(tmp_path / "home").iterdir()] == []) is disabled


@pytest.mark.parametrize(
    "first",
    ["retrieval.encoders.reading as r; r.import_onnx()", "retrieval.bundle.embedder as e; e.session_options(1)"],
)
def test_telemetry_is_off_before_any_import_of_the_runtime(first: str) -> None:
    code = f"""
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            print("disabled", os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.meta_path.insert(0, Watch())
import {first}
import onnxruntime.quantization
"""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["disabled", "1"]
