"""Evaluation splits and their metrics.

An evaluation split is a gallery and its queries: unseen items, and unseen items with catalogue pictures as the gallery,
where there are any. `mixed` has the gallery by which models are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.search.details import Verifier
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import EvaluationProtocol, query_and_gallery, side
from retrieval.metrics.consistency import opis
from retrieval.metrics.identification import (
    IdentificationRates,
    SearchScores,
    identification_rates,
    search_scores,
    threshold_at_fpir,
)
from retrieval.metrics.ranks import map_at_r, r_precision, recall_at_k


@dataclass(frozen=True)
class EvaluationSplit:
    """Gallery and queries as positions into one list of photos."""

    name: str
    queries: np.ndarray
    gallery: np.ndarray


def make_evaluation_split(
    name: str, photos: Sequence[Photo], items: Sequence[str], protocol: EvaluationProtocol
) -> EvaluationSplit:
    """Return the gallery and query photos of some items."""
    queries, gallery = query_and_gallery(name, photos, items, protocol)
    return EvaluationSplit(name, np.array(queries), np.array(gallery))


def score_split(
    split: EvaluationSplit,
    vectors: np.ndarray,
    labels: np.ndarray,
    *,
    item_distance: ItemDistance = NEAREST_PHOTO,
    verifier: Verifier | None = None,
    features: Sequence[bytes] = (),
) -> SearchScores:
    """Return each query's distances to its own item and to the first other item. No photo matches itself.

    A verifier needs the local features of all photos.
    """
    given = features if verifier is not None else [b""] * len(labels)
    described = [given[i] for i in split.queries.tolist()], [given[i] for i in split.gallery.tolist()]
    return search_scores(
        vectors[split.queries],
        labels[split.queries],
        vectors[split.gallery],
        labels[split.gallery],
        query_ids=split.queries,
        gallery_ids=split.gallery,
        item_distance=item_distance,
        verifier=verifier,
        features=described,
    )


def rank_metrics(split: EvaluationSplit, vectors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return R@1, R@5, MAP@R and R-precision of a split."""
    arguments = (
        vectors[split.queries],
        labels[split.queries],
        vectors[split.gallery],
        labels[split.gallery],
    )
    leave_one_out = bool(np.array_equal(split.queries, split.gallery))
    recall = recall_at_k(*arguments, ks=(1, 5), exclude_self=leave_one_out)
    return {
        "R@1": recall[1],
        "R@5": recall[5],
        "MAP@R": map_at_r(*arguments, exclude_self=leave_one_out),
        "R-precision": r_precision(*arguments, exclude_self=leave_one_out),
    }


def consistency_metrics(split: EvaluationSplit, vectors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return OPIS and epsilon-OPIS (10 %) over all pairs of the split's photos, FAR 1e-2 to 1e-1."""
    members = np.union1d(split.queries, split.gallery)
    result = opis(vectors[members], labels[members])
    return {"OPIS": result.value, "epsilon-OPIS": result.epsilon_value}


def identification_metrics(rates: IdentificationRates) -> dict[str, float]:
    """Return the identification rates at one threshold, by name."""
    return {
        "FPIR": rates.fpir,
        "TPIR": rates.tpir,
        "FNIR": rates.fnir,
        "FNIR any rank": rates.fnir_any_rank,
        "misidentification": rates.misidentification,
    }


def open_set_metrics(scores: SearchScores, target_fpir: float) -> dict[str, float]:
    """Return the rates at the threshold that meets the target on these queries themselves (an oracle)."""
    return identification_metrics(identification_rates(scores, threshold_at_fpir(scores, target_fpir)))


def evaluation_splits(
    photos: Sequence[Photo], *, unseen: Sequence[str], protocol: EvaluationProtocol
) -> list[EvaluationSplit]:
    """Return the evaluation splits of a report: unseen items, and the same with catalogue pictures."""
    eval_splits = [make_evaluation_split("unseen", photos, unseen, protocol)]
    wanted = set(unseen)
    pictures = {side(photo) for photo in photos} - protocol.sources
    for source in sorted(pictures):
        gallery = [i for i, p in enumerate(photos) if p.item_id in wanted and side(p) == source]
        if gallery:
            eval_splits.append(EvaluationSplit(f"unseen, {source} gallery", eval_splits[0].queries, np.array(gallery)))
    return eval_splits


def evaluate_splits(
    eval_splits: Sequence[EvaluationSplit],
    labels: np.ndarray,
    vectors: np.ndarray,
    *,
    calibration: EvaluationSplit,
    target_fpir: float,
) -> dict[str, Any]:
    """Return the metrics of evaluation splits by the nearest photo, with unit vectors (n, d).

    The threshold is the largest distance with FPIR ≤ target on the calibration queries. OPIS is that of the cosines of
    pairs.
    """
    threshold = threshold_at_fpir(score_split(calibration, vectors, labels), target_fpir)
    report: dict[str, Any] = {"threshold": threshold, "target_fpir": target_fpir, "splits": {}}
    for split in eval_splits:
        scores = score_split(split, vectors, labels)
        metrics = rank_metrics(split, vectors, labels) | consistency_metrics(split, vectors, labels)
        metrics |= identification_metrics(identification_rates(scores, threshold))
        metrics["TPIR at exactly the target"] = open_set_metrics(scores, target_fpir)["TPIR"]
        metrics["queries"] = len(split.queries)
        metrics["items"] = scores.gallery_items
        report["splits"][split.name] = metrics
    return report


def photos_of(eval_splits: Sequence[EvaluationSplit]) -> np.ndarray:
    """Return the positions of the photos in any of the evaluation splits, ascending."""
    return np.unique(np.concatenate([part for split in eval_splits for part in (split.queries, split.gallery)]))


def item_labels(photos: Sequence[Photo]) -> np.ndarray:
    """Return the label of each photo (n,) int64: the rank of its item_id."""
    return np.unique([photo.item_id for photo in photos], return_inverse=True)[1].astype(np.int64)
