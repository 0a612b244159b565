"""Values that no command and no answer shows: kept draws, tightening, and files of a bundle that trainings write.

This module alone knows the inside of `index` and `retrieval`. It is carried along when the inside changes; the records
stay. Shapes: n draws, k rivals, m photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.location import open_gallery
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.bundle.bundle import CALIBRATION, FITTED, FOLDS, VERIFICATION, Bundle, CalibrationSet, write_bundle
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.galleries.kept import read_draws
from retrieval.images import Preprocessing
from retrieval.measuring.draws import Probes
from retrieval.measuring.point import Point
from retrieval.metrics.identification import SearchScores
from tests.retrieval.galleries.writing import remeasure

NOTHING_FITTED = {FITTED: Fitted.of((), ()).pack()}
Vectors = NDArray[np.float32]


def kept_draws(gallery: Path) -> tuple[dict[str, dict[str, NDArray[Any]]], list[str]]:
    """Return the draws that a gallery keeps, and the items that the model was fitted on.

    The draws are by source, then by field, in the order in which they were made: ids, items, groups, nearest_items,
    nearest and duplicates (texts of length n: photo ids, "" for no photo), distances, plain, own,
    own_plain and wrong (n), rivals (n, k) and without (n, k + 1).
    """
    with open_gallery(gallery, read_only=True) as opened:
        kept = read_draws(opened)
    assert kept is not None
    return {source: draws.arrays() for source, draws in kept.sources.items()}, sorted(kept.fitted)


def tighten(bundle: Path, gallery: Path) -> dict[str, Any]:
    """Measure a gallery anew, tighten its threshold if its promise is broken, and return its point as JSON values."""
    with open_gallery(gallery) as opened:
        point = remeasure(Bundle.open(bundle), opened).point
    assert point is not None
    return point.to_dict()


def write(
    folder: Path,
    name: str,
    *,
    model: bytes,
    size: int,
    dim: int,
    threshold: float | None,
    files: Mapping[str, bytes],
    nearest_photo: bool = False,
) -> Path:
    """Write a bundle around an ONNX model, with a threshold or without one (None), and return its place."""
    (folder / "model.onnx").write_bytes(model)
    none = Point.uncalibrated(0.05)
    return write_bundle(
        folder / name,
        model=folder / "model.onnx",
        preprocessing=Preprocessing(size=size),
        dim=dim,
        operating_point=none if threshold is None else Point(threshold, "estimated", 0.05),
        item_distance=NEAREST_PHOTO if nearest_photo else ItemDistance.default(verified=VERIFICATION in files),
        files=files,
    ).path


def embedding_id(bundle: Path) -> str:
    """Return what a gallery of the bundle is created with."""
    return Bundle.open(bundle).embedding_id


def verified_files(verifier: bytes) -> dict[str, bytes]:
    """Return the files of a bundle that compares details."""
    return {**NOTHING_FITTED, VERIFICATION: verifier}


def without_draws(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a bundle on which distances depend, without those on which only draws depend."""
    return {name: content for name, content in files.items() if name == VERIFICATION}


def fold_files(fold_of: Mapping[str, int], photos: Mapping[Path, str], *, folds: int, model: bytes) -> dict[str, bytes]:
    """Return the files of a bundle that was cross-fitted: on items, each with its fold, and on photos of the items."""
    contents = {content_hash(path.read_bytes(), None): item for path, item in photos.items()}
    every, *parts = (
        Fitted.of(
            [item for item in fold_of if fold_of[item] != fold],
            [content for content, item in contents.items() if fold_of[item] != fold],
        )
        for fold in (folds, *range(folds))
    )
    return {FITTED: every.with_folds(parts).pack(), FOLDS: model}


def calibration_files(
    queries: tuple[Vectors, Sequence[str], Sequence[str]], reference: tuple[Vectors, Sequence[str], Sequence[str]]
) -> dict[str, bytes]:
    """Return the files of a bundle with calibration photos: vectors (m, d), photo ids and item ids of both sides."""
    vectors, ids, items = queries
    count = len(ids)
    scores = SearchScores(np.array(items), np.full(count, 0.5), np.full(count, 0.9), len(set(items)))
    numbers = np.ones(count, np.float32), vectors, np.full((count, 3), 0.5, np.float32)
    packed = CalibrationSet(scores, np.array(ids), *numbers, Probes(*reference)).pack()
    return {**NOTHING_FITTED, CALIBRATION: packed}
