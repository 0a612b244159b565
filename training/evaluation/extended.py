"""The figures beside those of every evaluation: what papers report of a test set, and what takes longer.

They are of the plain distance and of one scene: mAP@1000, NMI, diversity, ranking by context, and by degrees where
photos have a super-label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.metrics.diversity import diversity
from retrieval.metrics.ranks import hierarchical_ap, mean_average_precision, recall_at_k
from retrieval.metrics.reranking import contextual_scorer

from .clustering import nmi
from .evaluate import Scene

CATEGORY = "category"  # the metadata column with the super-label
NEIGHBOURS = 16  # of the re-ranking


def extended_figures(
    scene: Scene, photos: Sequence[Photo], vectors: np.ndarray, labels: np.ndarray, *, seed: int
) -> dict[str, float]:
    """Return the further figures of a scene; one that has no value here is left out.

    Parameters
    ----------
    photos, vectors, labels:
        All photos, their unit vectors (n, d) and labels (n,); the scene holds positions into them.
    seed:
        Of the k-means behind NMI.
    """
    asked, kept = scene.queries, scene.gallery
    arguments = (vectors[asked], labels[asked], vectors[kept], labels[kept])
    alone = bool(np.array_equal(asked, kept))
    scores = contextual_scorer(vectors[asked], vectors[kept], neighbours=NEIGHBOURS, exclude_self=alone)
    figures = {
        "mAP": mean_average_precision(*arguments, exclude_self=alone),
        "mAP@1000": mean_average_precision(*arguments, at=1000, exclude_self=alone),
        f"re-ranked R@1 (k = {NEIGHBOURS})": recall_at_k(*arguments, exclude_self=alone, scores=scores)[1],
    }
    members = np.union1d(asked, kept)
    names = [str(photos[i].metadata.get(CATEGORY, "")) for i in members]
    if all(names) and len(set(names)) > 1:
        category = np.zeros(len(photos), dtype=np.int64)
        category[members] = np.unique(names, return_inverse=True)[1]
        both = np.stack([labels, category], axis=1)  # (n, 2)
        figures["H-AP"] = hierarchical_ap(vectors[asked], both[asked], vectors[kept], both[kept], exclude_self=alone)
        figures["category mAP"] = mean_average_precision(
            vectors[asked], category[asked], vectors[kept], category[kept], exclude_self=alone
        )
    found = diversity(vectors[members], labels[members])
    figures |= {
        "NMI": nmi(vectors[members], labels[members], seed=seed),
        "intra-item distance": found.intra,
        "inter-item distance": found.inter,
        "embedding density": found.density,
        "spectral decay": found.spectral_decay,
        "feature diversity": found.feature_diversity,
        "cluster diversity": found.cluster_diversity,
    }
    return {name: value for name, value in figures.items() if not np.isnan(value)}
