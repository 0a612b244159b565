"""Health checks of the installation, a bundle and a gallery."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from retrieval.errors import MissingDependency, RetrievalError, lacks, photos_of_items
from retrieval.process import without_proxies

PACKAGES = ("numpy", "pillow", "onnxruntime", "faiss-cpu", "fastapi", "gradio", "torch", "transformers")
MODULES = {"pillow": "PIL", "faiss-cpu": "faiss"}  # by package, where they differ
QUIET = {"ORT_DISABLE_TELEMETRY": "1", "GRADIO_ANALYTICS_ENABLED": "False"}  # read at import
OPTIONAL = {"torch": "train", "transformers": "train", "gradio": "demo", "fastapi": "serve"}
ALTERNATIVES = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino"), "faiss-cpu": ("faiss-gpu",)}

DRIVER = "Install NVIDIA's driver of version 580 or later; in a container, give it the GPU"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    good: bool
    text: str
    remedy: str = ""


def examine(bundle: Path | None, gallery: Path | str | None) -> Iterator[Finding]:
    """Run the checks and yield each finding as it is made."""
    yield Finding(True, f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        yield _package(name)
    yield from _providers()
    yield _guarded("Faiss", _faiss)
    if bundle is not None:
        yield _guarded(f"bundle {bundle}", lambda: _bundle(bundle))
    if gallery is not None:
        yield _guarded(f"gallery {gallery}", lambda: _gallery(gallery))
    if bundle is not None and gallery is not None:
        yield _guarded("bundle and gallery", lambda: _together(bundle, gallery))


def _package(name: str) -> Finding:
    """Import a package, whose version alone does not say that it can be."""
    module, shown = MODULES.get(name, name), name
    for candidate in (name, *ALTERNATIVES.get(name, ())):
        with suppress(PackageNotFoundError):
            shown = f"{candidate} {version(candidate)}"
            break
    os.environ |= QUIET
    try:
        with without_proxies():
            import_module(module)
    except Exception as error:  # report what its code raises as a finding
        if lacks(error, module) and name in OPTIONAL:
            return Finding(True, f"{name} is not installed; only the extra `{OPTIONAL[name]}` needs it")
        why = MissingDependency.of_extra(error, module, OPTIONAL.get(name, "serve"), called=shown)
        return Finding(False, why.message, why.remedy)
    return Finding(True, shown)


def _guarded(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(True, f"{what}: {check()}")
    except RetrievalError as error:
        return Finding(False, f"{what}: {error.message}", error.remedy)
    except Exception as error:  # report any error as a finding
        return Finding(False, f"{what}: {type(error).__name__}: {error}", "Install again, or export and index again")


def _providers() -> Iterator[Finding]:
    """Open a session by each execution provider of the installed ONNX Runtime."""
    from retrieval.bundle.providers import PROVIDERS, failure, import_onnxruntime

    try:
        known = import_onnxruntime().get_available_providers()
    except RetrievalError as error:
        yield Finding(False, f"execution providers: {error.message}", error.remedy)
        return
    for name, provider in PROVIDERS.items():
        if provider.engine not in known:
            continue
        if not (why := failure(provider)):
            yield Finding(True, f"execution provider {name}: runs")
        elif name == "tensorrt":  # in every onnxruntime-gpu, without its libraries
            yield Finding(True, f"execution provider {name}: cannot start, which only bundles for it need ({why})")
        else:
            remedy = DRIVER if "libcuda.so" in why else provider.install
            yield Finding(False, f"execution provider {name}: cannot start ({why})", remedy)


def _faiss() -> str:
    from index.ann.faiss_index import count_gpus

    return f"{count_gpus()} GPUs"


def _bundle(path: Path) -> str:
    from retrieval.bundle.bundle import Bundle

    bundle = Bundle.open(path)
    size = bundle.preprocessing.size
    embeddings = bundle.embedder().embed_pixels(np.zeros((1, size, size, 3), np.uint8))
    point = bundle.operating_point
    return (
        f"intact, the model runs ({embeddings.vectors.shape[1]} values, {bundle.precision}, "
        f"{bundle.provider}), "
        + (f"threshold {point.threshold:.4f}, " if point.decides else "")
        + f"FPIR {point.target_fpir:g} {point.status}"
    )


def _gallery(path: Path | str) -> str:
    from index.database import POINT
    from index.location import open_gallery
    from retrieval.errors import GalleryCorrupt
    from retrieval.galleries.points import read_points

    with open_gallery(path, read_only=True) as gallery:
        problems = gallery.verify()
        if problems:
            raise GalleryCorrupt("; ".join(problems), remedy="Restore it from a copy, or index the photos again")
        read_points(gallery.kept(POINT))
        return f"intact, {photos_of_items(len(gallery), gallery.items)}"


def _together(bundle: Path, gallery: Path | str) -> str:
    from index.location import open_gallery
    from retrieval.bundle.bundle import Bundle, require_match

    with open_gallery(gallery, read_only=True) as opened:
        require_match(Bundle.open(bundle, verify=False), opened)
    return "belong together"
