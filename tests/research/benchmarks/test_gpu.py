"""`make bench-gpu` refuses to run without a GPU, and runs existing benchmarks with valid options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import research.benchmarks as package
from research.benchmarks import gpu

FOLDER = Path(package.__path__[0])


def test_it_refuses_without_a_gpu_and_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "import_onnxruntime", lambda: SimpleNamespace(get_available_providers=list))
    monkeypatch.setattr(gpu, "faiss", SimpleNamespace())
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match=r"(?s)cannot run here:.*torch .*ONNX Runtime .*Faiss"):
        gpu.main()


def test_each_benchmark_runs_and_a_failure_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def run(command: list[str], *, check: bool) -> SimpleNamespace:
        assert command[:2] == [sys.executable, "-m"]
        assert check == (command[2] == "retrieval")
        ran.append(command[2])
        return SimpleNamespace(returncode=int(command[2].endswith("losses")))

    monkeypatch.setattr(gpu, "missing", list)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"failed: research\.benchmarks\.losses$"):
        gpu.main()
    assert ran[:2] == ["retrieval", "retrieval"]
    assert len(ran) == 2 + len(gpu.benchmarks(tmp_path, tmp_path))


def test_the_benchmarks_have_the_options_that_they_are_given(tmp_path: Path) -> None:
    for _, _, module, *words in gpu.benchmarks(tmp_path, tmp_path):
        text = (FOLDER / f"{module.rpartition('.')[2]}.py").read_text()
        shared = {"--results"} | ({"--device"} if "add_device(parser)" in text else set())
        known = shared | set(re.findall(r'add_argument\("(--[\w-]+)"', text))
        assert {word for word in words if word.startswith("--")} <= known, module
        assert words[-1].endswith(f"gpu-{module.rpartition('.')[2]}.json")
