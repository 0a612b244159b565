"""Carry a bundle of commit 3dbb358 with the plain distance into today's format: the nearest photo decides."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from index.files import load_arrays
from index.gallery import Gallery
from index.search.item_distance import NEAREST_PHOTO
from retrieval.bundle.bundle import FITTED, Bundle, write_bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.images import Preprocessing
from retrieval.threshold.proposal import remeasure


def carry(old: Path, new: Path) -> Bundle:
    """Write the content of an old bundle as a new one; `write_bundle` proves nothing, the answers do."""
    manifest = json.loads((old / "manifest.json").read_text())
    assert manifest["distance"] == {"form": "plain"}
    files = {}
    if (old / FITTED).exists():
        fitted = load_arrays((old / FITTED).read_bytes())
        files[FITTED] = Fitted(**fitted, folds=np.zeros(0, np.uint8)).pack()
    return write_bundle(
        new,
        model=old / "model.onnx",
        preprocessing=Preprocessing.from_dict(manifest["preprocessing"]),
        dim=manifest["dim"],
        operating_point=OperatingPoint.from_dict(manifest["operating_point"]),
        item_distance=NEAREST_PHOTO,
        evidence=manifest["evidence"],
        files=files,
    )


def tighten(bundle: Path, place: Path) -> None:
    """Measure the promise of a gallery's threshold, and tighten it if it is broken."""
    with Gallery.open(place) as gallery:
        remeasure(Bundle.open(bundle), gallery)
