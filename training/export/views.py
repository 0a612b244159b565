"""Choice of the views that an exported model averages: the photo alone, with its mirror image, or with centre crops.

Validation photos are searched in a gallery of fit and validation items, by the plain distance. Views are chosen if
their mean TPIR over items at the target FPIR exceeds that of the photo alone by more than a standard error of the
difference, those with the largest gain.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import Photo
from retrieval.metrics.consistency import search_curves
from retrieval.metrics.identification import threshold_at_fpir
from training.config import CROPS, MIRROR, PHOTO, VIEWS
from training.data.reader import PhotoReader
from training.evaluation.distance_selection import validation_split
from training.evaluation.embedding import embed_with_norms
from training.evaluation.evaluate import item_labels, score_split
from training.loop.run import Run
from training.model import CROP_SHARES, EmbeddingModel, ViewedModel

COUNTS = {PHOTO: 1, MIRROR: 2, CROPS: 1 + len(CROP_SHARES)}  # photos that the network runs on
ROUNDS = 15


@dataclass(frozen=True)
class TriedViews:
    """Views with their TPIR on the validation items, and its gain over the photo alone."""

    views: str
    tpir: float
    gain: float
    standard_error: float


def with_views(model: EmbeddingModel, views: str) -> EmbeddingModel | ViewedModel:
    """Return a model that averages some views."""
    return model if views == PHOTO else ViewedModel(model, views)


def choose_views(
    run: Run, model: EmbeddingModel, photos: Sequence[Photo], *, target_fpir: float
) -> tuple[str, list[TriedViews]]:
    """Return the best views on the validation items, and all that were tried.

    Parameters
    ----------
    photos:
        Photos of the fit and validation items.
    """
    split, labels = validation_split(photos, run.splits, run.protocol), item_labels(photos)
    reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
    tried: list[TriedViews] = []
    alone: NDArray[np.float64] | None = None
    for views in VIEWS:
        vectors, _ = embed_with_norms(with_views(model, views), reader, len(photos), run.preprocessing, progress=True)
        scores = score_split(split, vectors, labels)
        tpir = search_curves(scores, [threshold_at_fpir(scores, target_fpir)]).sensitivity[:, 0]  # of each item
        alone = tpir if alone is None else alone
        gains = tpir - alone
        error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0
        tried.append(TriedViews(views, float(tpir.mean()), float(gains.mean()), error))
    better = [each for each in tried if each.gain > each.standard_error]
    return max(better, key=lambda each: each.gain).views if better else PHOTO, tried


def views_evidence(views: str, tried: Sequence[TriedViews], embedder: Embedder) -> dict[str, object]:
    """Return what the report says about views: how many, the time to embed a photo, and what was tried."""
    return {
        "views": views,
        "photos_per_embedding": COUNTS[views],
        "ms_per_photo": 1e3 * seconds_per_photo(embedder),
        "tried": [asdict(each) for each in tried],
    }


def seconds_per_photo(embedder: Embedder) -> float:
    """Return the median time to embed one preprocessed photo."""
    size = embedder.preprocessing.size
    pixels = np.zeros((1, size, size, 3), np.uint8)
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        embedder.embed_pixels(pixels)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def describe_views(evidence: Mapping[str, Any]) -> list[str]:
    """Return lines about the views of a bundle and, if they were chosen, the gain of each; none for the photo alone."""
    lines = [
        f"Views tried: {tried['views']}, TPIR {tried['tpir']:.3f} on validation items"
        + (f" (gain {tried['gain']:+.3f}, standard error {tried['standard_error']:.3f})" if number else "")
        for number, tried in enumerate(evidence["tried"])
    ]
    if lines or evidence["views"] != PHOTO:
        count = evidence["photos_per_embedding"]
        lines.append(
            f"Views: {evidence['views']}. The network runs {count} time{'s' if count > 1 else ''} for each photo, "
            f"{evidence['ms_per_photo']:.1f} ms on this machine."
        )
    return lines
