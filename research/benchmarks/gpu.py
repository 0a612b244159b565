"""Run all speed benchmarks on a GPU, compared with the same floors as on a CPU.

    python -m research.benchmarks.gpu --output runs/gpu

The records are written to `research/results/gpu-NAME.json`. The benchmark refuses to run unless torch, ONNX Runtime and
Faiss all have a GPU. It exports the MobileNet backbone of RETRIEVAL_TEST_DATA for ONNX Runtime on CUDA, and indexes the
photos of grocery with it. A benchmark that fails does not stop the others; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import faiss
import torch

from research.results import RESULTS
from retrieval.bundle.providers import import_onnxruntime
from retrieval.errors import install_command

MODULE = [sys.executable, "-m"]
SERVE_GPU = f"uninstall onnxruntime and faiss-cpu, then {install_command('serve-gpu')}"


def missing() -> list[str]:
    """Return a message for each library that has no GPU."""
    problems = []
    if not torch.cuda.is_available():
        problems.append(f"torch {torch.__version__} sees no GPU: install a CUDA build of torch")
    if "CUDAExecutionProvider" not in import_onnxruntime().get_available_providers():
        problems.append(f"ONNX Runtime has no CUDAExecutionProvider: {SERVE_GPU}")
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        problems.append(f"Faiss sees no GPU: {SERVE_GPU}")
    return problems


def preparations(data: Path, output: Path) -> list[list[str]]:
    """Return the commands that make the bundle and the gallery that the benchmarks need."""
    bundle, photos, weights = output / "bundle", data / "data/grocery/images", data / "weights/mobilenet_v1_0.75_224"
    return [
        [*MODULE, "retrieval", "export", "--pretrained", str(weights), "--provider", "cuda", "-o", str(bundle)],
        [*MODULE, "retrieval", "index", str(bundle), str(photos), "-o", str(output / "gallery")],
    ]


def benchmarks(data: Path, output: Path) -> list[list[str]]:
    """Return the commands of the benchmarks."""
    bundle, gallery = str(output / "bundle"), str(output / "gallery")
    photos = sorted(map(str, (data / "data/grocery/images/Banana").glob("b_*.jpg")))
    cuda = ["--device", "cuda"]
    words: dict[str, Sequence[str]] = {
        "step": cuda,
        "trainer_step": cuda,
        "losses": cuda,
        "consistency": [*cuda, "--rounds", "7"],
        "pipeline": [*cuda, "--rounds", "5"],
        "large_batch": cuda,
        "indexing": [bundle, "--rounds", "8"],
        "gallery": ["--kinds", "flat", "--output", str(output / "galleries")],
        "endpoint": [bundle, gallery, *photos],
    }
    return [
        [*MODULE, f"research.benchmarks.{name}", *given, "--results", str(RESULTS / f"gpu-{name}.json")]
        for name, given in words.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="Folder of the bundle and the galleries.")
    arguments = parser.parse_args()
    if problems := missing():
        raise SystemExit("\n".join(["The GPU benchmarks cannot run here:", *(f"- {problem}" for problem in problems)]))
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for command in preparations(data, arguments.output):
        if not Path(command[-1]).exists():
            subprocess.run(command, check=True)
    commands = benchmarks(data, arguments.output)
    failed = [command[2] for command in commands if subprocess.run(command, check=False).returncode]
    if failed:
        raise SystemExit(f"These benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
