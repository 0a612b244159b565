"""Evaluation splits, which are a gallery and its queries, and their metrics by the nearest photo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.groups import GROUP, group_of
from index.search.details import Verifier
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import EvaluationProtocol, query_and_gallery
from retrieval.metrics.consistency import opis
from retrieval.metrics.identification import IdentificationRates, SearchScores, search_scores
from retrieval.metrics.ranks import map_at_r, r_precision, recall_at_k

ONE_GROUP = "the calibration items are all of one group, so that no search among them returns a wrong item"
MORE_GROUPS = "Give items of different groups to the partition calibration, or leave the column `group` out"


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
    groups: np.ndarray | None = None,
    item_distance: ItemDistance = NEAREST_PHOTO,
    verifier: Verifier | None = None,
    features: Sequence[bytes] = (),
) -> SearchScores:
    """Return each query's distances to its own item and to the first other item. No photo matches itself.

    `groups` are those of the photos' items (`item_groups`): items of one group do not match each other. A verifier
    needs the local features of all photos.
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
        gallery_groups=None if groups is None else groups[split.gallery],
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


def item_groups(photos: Sequence[Photo]) -> np.ndarray:
    """Return the group of each photo's item (n,), "" without one, as a gallery has it."""
    return np.array([group_of(photo.item_id, {GROUP: photo.group}) for photo in photos], dtype=str)


def item_labels(photos: Sequence[Photo], items: Sequence[str] = ()) -> np.ndarray:
    """Return the label of each photo (n,) int64: the rank of its item_id among `items`, or those of the photos."""
    ids = [photo.item_id for photo in photos]
    return np.searchsorted(np.unique(list(items) or ids), ids).astype(np.int64)
