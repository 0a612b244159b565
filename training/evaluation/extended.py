"""Extended metrics of an evaluation split, with the plain distance.

They are mAP@1000, NMI, diversity, R@1 after contextual re-ranking, and hierarchical AP where photos have a super-label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.metrics.diversity import diversity
from retrieval.metrics.ranks import hierarchical_ap, mean_average_precision, recall_at_k
from retrieval.metrics.reranking import contextual_scorer

from .clustering import nmi
from .evaluate import EvaluationSplit

CATEGORY = "category"  # metadata column with the super-label
NEIGHBOURS = 16  # neighbours of the re-ranking


def extended_metrics(
    split: EvaluationSplit, photos: Sequence[Photo], vectors: np.ndarray, labels: np.ndarray, *, seed: int
) -> dict[str, float]:
    """Return the extended metrics of a split, without those that are undefined for it.

    Parameters
    ----------
    photos, vectors, labels:
        All photos, their unit vectors (n, d) and labels (n,), which the split refers to by position.
    seed:
        Seed of the k-means behind NMI.
    """
    queries, gallery = split.queries, split.gallery
    arguments = (vectors[queries], labels[queries], vectors[gallery], labels[gallery])
    leave_one_out = bool(np.array_equal(queries, gallery))
    scores = contextual_scorer(vectors[queries], vectors[gallery], neighbours=NEIGHBOURS, exclude_self=leave_one_out)
    metrics = {
        "mAP": mean_average_precision(*arguments, exclude_self=leave_one_out),
        "mAP@1000": mean_average_precision(*arguments, at=1000, exclude_self=leave_one_out),
        f"re-ranked R@1 (k = {NEIGHBOURS})": recall_at_k(*arguments, exclude_self=leave_one_out, scores=scores)[1],
    }
    members = np.union1d(queries, gallery)
    names = [str(photos[i].metadata.get(CATEGORY, "")) for i in members]
    if all(names) and len(set(names)) > 1:
        category = np.zeros(len(photos), dtype=np.int64)
        category[members] = np.unique(names, return_inverse=True)[1]
        both = np.stack([labels, category], axis=1)  # (n, 2)
        metrics["H-AP"] = hierarchical_ap(
            vectors[queries], both[queries], vectors[gallery], both[gallery], exclude_self=leave_one_out
        )
        metrics["category mAP"] = mean_average_precision(
            vectors[queries], category[queries], vectors[gallery], category[gallery], exclude_self=leave_one_out
        )
    spread = diversity(vectors[members], labels[members])
    metrics |= {
        "NMI": nmi(vectors[members], labels[members], seed=seed),
        "intra-item distance": spread.intra,
        "inter-item distance": spread.inter,
        "embedding density": spread.density,
        "spectral decay": spread.spectral_decay,
        "feature diversity": spread.feature_diversity,
        "cluster diversity": spread.cluster_diversity,
    }
    return {name: value for name, value in metrics.items() if not np.isnan(value)}
