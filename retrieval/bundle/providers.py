"""Execution providers of ONNX Runtime, under the names used in manifests.

Providers compute slightly different values, so a threshold is valid for one provider only: a bundle runs with the
provider that it was calibrated with, or not at all.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import InvalidParameter, MissingDependency, importing, install_command

CPU = "cpu"
FP32, FP16, INT8 = PRECISIONS = ("fp32", "fp16", "int8")
BATCH = 8  # photos of one run: more take memory, and save no time on a CPU
GPU_PROVIDERS = ("cuda", "tensorrt")  # with these, a run of another number of photos than the last is slow


FRESH = "in a fresh environment, "  # two variants of ONNX Runtime overwrite each other
GPU = f"{FRESH}{install_command('serve-gpu')}"
RELU = (  # an ONNX model of one operator
    b'\x08\t:3\n\x0c\n\x01x\x12\x01y"\x04Relu\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x12"
)


@dataclass(frozen=True)
class Provider:
    """An execution provider."""

    name: str  # in the manifest and on the command line
    engine: str  # in ONNX Runtime
    install: str


PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(CPU, "CPUExecutionProvider", install_command("serve")),
        Provider("openvino", "OpenVINOExecutionProvider", f"{FRESH}{install_command('serve-openvino')}"),
        Provider("tensorrt", "TensorrtExecutionProvider", f"{GPU} tensorrt"),
        Provider("cuda", "CUDAExecutionProvider", GPU),
    )
}


def import_onnxruntime() -> Any:
    """Import ONNX Runtime with telemetry disabled; otherwise it writes files and sends usage data.

    For a GPU, load the libraries of CUDA and cuDNN from NVIDIA's packages, where the system does not look for them.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with importing("onnxruntime", "serve"):
        import onnxruntime
    onnxruntime.set_default_logger_severity(4)  # it prints errors that it raises too, and others that it gets around
    if PROVIDERS["cuda"].engine in onnxruntime.get_available_providers():
        with redirect_stdout(sys.stderr):  # it prints what it does not find
            onnxruntime.preload_dlls()
    return onnxruntime


def find_provider(name: str) -> Provider:
    """Return the provider with this name; raise MissingDependency if the installed ONNX Runtime lacks it."""
    if name not in PROVIDERS:
        raise InvalidParameter("provider", f"be one of {', '.join(PROVIDERS)}", name)
    provider = PROVIDERS[name]
    if provider.engine not in import_onnxruntime().get_available_providers():
        raise missing(provider)
    return provider


def missing(provider: Provider) -> MissingDependency:
    """Return the error for a provider that is missing or cannot start."""
    why = _missing_library(provider)
    message = f"the model runs by {provider.name}, which this ONNX Runtime has not, or cannot start"
    return MissingDependency(
        f"{message} ({why})" if why else message,
        remedy=f"{provider.install}; or export the run again with --provider {CPU}, for a threshold belongs to one",
    )


def failure(provider: Provider) -> str:
    """Return why a session cannot run by a provider of the installed ONNX Runtime, "" if it can."""
    onnxruntime = import_onnxruntime()
    if why := _missing_library(provider):
        return why
    try:
        session = onnxruntime.InferenceSession(RELU, providers=[provider.engine], enable_fallback=0)
        session.run(None, {"x": np.zeros(1, np.float32)})
    except Exception as error:  # ONNX Runtime raises many types
        return str(error)
    return "" if session.get_providers()[0] == provider.engine else "ONNX Runtime fell back to another one"


def _missing_library(provider: Provider) -> str:
    """Return what the loader says about the library of a provider, "" if it is there with all that it needs."""
    folder = Path(import_onnxruntime().__file__).parent / "capi"
    for name in ("shared", provider.name):
        library = folder / f"libonnxruntime_providers_{name}.so"
        if library.exists():
            try:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                return str(error)
    return ""


def engines_of(provider: Provider, *, precision: str, size: int, threads: int) -> list[tuple[str, dict[str, str]]]:
    """Return ONNX Runtime's providers and their options, first choice first.

    Operators that a provider does not support, mostly on shapes, run on the next one.

    Parameters
    ----------
    precision, size:
        Precision of the model and side of its input in pixels.
    """
    chosen = (provider.engine, _options(provider.name, precision=precision, size=size, threads=threads))
    fallback: Sequence[str] = {"tensorrt": ("cuda", CPU), CPU: ()}.get(provider.name, (CPU,))
    rest = [
        (PROVIDERS[name].engine, _options(name, precision=precision, size=size, threads=threads)) for name in fallback
    ]
    return [chosen, *rest]


def _options(name: str, *, precision: str, size: int, threads: int) -> dict[str, str]:
    if name == "openvino":
        return {"device_type": "CPU", "num_of_threads": str(threads), "precision": "ACCURACY"}  # as in the model
    if name == "cuda":
        return {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}  # reproducible across starts
    if name == "tensorrt":
        shapes = {"min": 1, "opt": BATCH, "max": BATCH}
        return {
            "trt_fp16_enable": str(precision == FP16),
            "trt_int8_enable": str(precision == INT8),
            **{f"trt_profile_{end}_shapes": f"pixels:{n}x3x{size}x{size}" for end, n in shapes.items()},
        }
    return {}
