"""Metrics of the papers' tables, by the names that configurations use.

Shapes: n photos, d = embedding size, q queries, m gallery photos.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from research.metrics import cluster_diversity, contextual_scorer, feature_diversity, nmi
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from retrieval.metrics.consistency import Opis, opis
from retrieval.metrics.ranks import Scorer, Scores, map_at_r, mean_average_precision, r_precision, recall_at_k
from training.evaluation.evaluate import EvaluationSplit, item_labels


@dataclass(frozen=True)
class Embedded:
    """Embeddings of one evaluation split, from one model."""

    dataset: str
    photos: list[Photo]
    unit: NDArray[np.float32]  # (n, d)
    norms: NDArray[np.float32]  # (n,)
    split: EvaluationSplit

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Return one number per item (n,)."""
        return item_labels(self.photos)

    @cached_property
    def alone(self) -> bool:
        """Return whether every photo is searched among all others."""
        return bool(np.array_equal(self.split.queries, self.split.gallery))

    @cached_property
    def opis(self) -> Opis:
        """Return OPIS over FAR 1e-2 to 1e-1."""
        return self.opis_between(1e-2, 1e-1)

    def opis_between(self, low: float, high: float) -> Opis:
        """Return OPIS over a range of false-accept rates."""
        return opis(self.unit, self.labels, far_range=(low, high))

    def recall(self, k: int, *, scorer: Scorer | None = None) -> float:
        """Return R@k, ranked by the cosine or by another score."""
        return recall_at_k(*self.lists(self.labels), ks=(k,), exclude_self=self.alone, scores=scorer)[k]

    def lists(self, labels: NDArray[np.generic]) -> tuple[NDArray[np.float32], ...]:
        """Return queries (q, d), their labels, gallery (m, d) and its labels, as arguments of the rank metrics."""
        queries, gallery = self.split.queries, self.split.gallery
        return self.unit[queries], labels[queries], self.unit[gallery], labels[gallery]

    def precision(self, labels: NDArray[np.generic], at: int | None = None) -> float:
        """Return mAP; with `at`, the query counts among its mates, as in the published mAP@1000."""
        return mean_average_precision(*self.lists(labels), exclude_self=self.alone, at=at, count_query=at is not None)

    def right(self) -> NDArray[np.bool_]:
        """Return which queries have a photo of their own item as nearest neighbour (q,)."""
        asked, own, kept, others = self.lists(self.labels)
        cosines = asked @ kept.T
        if self.alone:
            np.fill_diagonal(cosines, -np.inf)
        return np.asarray(others[cosines.argmax(axis=1)] == own)

    def euclidean(self) -> Scorer:
        """Return a scorer by the Euclidean distance of unnormalised embeddings."""
        raw = (self.unit * self.norms[:, None]).astype(np.float64)
        asked, kept = raw[self.split.queries], raw[self.split.gallery]
        squares = (kept**2).sum(axis=1)

        def score(rows: slice) -> Scores:
            return np.asarray(2 * asked[rows] @ kept.T - squares)

        return score

    def norm_of(self, *, right: bool) -> float:
        """Return the mean norm of the queries answered correctly, or wrongly; of all queries if there are none."""
        chosen = self.norms[self.split.queries]
        some = self.right() == right
        return float(chosen[some].mean() if some.any() else chosen.mean())


@dataclass(frozen=True)
class Metric:
    """Definition of a metric, measured on test photos or (`train`) training photos and printed times `scale`."""

    pattern: str
    measure: Callable[[Embedded, tuple[str, ...]], float]
    scale: float = 1.0
    train: bool = False


PERCENT, THOUSANDTHS = 100.0, 1000.0
METRICS = (
    Metric(r"R@(\d+)", lambda e, a: e.recall(int(a[0])), PERCENT),
    Metric(r"error", lambda e, _: 1 - e.recall(1), PERCENT),
    Metric(r"MAP@R", lambda e, _: map_at_r(*e.lists(e.labels), exclude_self=e.alone), PERCENT),
    Metric(r"RP", lambda e, _: r_precision(*e.lists(e.labels), exclude_self=e.alone), PERCENT),
    Metric(r"mAP", lambda e, _: e.precision(e.labels), PERCENT),
    Metric(r"mAP@(\d+)", lambda e, a: e.precision(e.labels, int(a[0])), PERCENT),
    Metric(r"coarse AP", lambda e, _: e.precision(_categories(e)), PERCENT),
    Metric(r"NMI", lambda e, _: nmi(e.unit, e.labels, seed=0), PERCENT),
    Metric(r"OPIS", lambda e, _: e.opis.value, THOUSANDTHS),
    Metric(r"10%-OPIS", lambda e, _: e.opis.epsilon_value, THOUSANDTHS),
    Metric(r"OPIS ([\d.]+)-([\d.]+)", lambda e, a: e.opis_between(float(a[0]), float(a[1])).value, THOUSANDTHS),
    Metric(r"d at FAR ([\d.]+)", lambda e, a: e.opis_between(float(a[0]), 1.0).d_min),
    Metric(r"L2 R@1", lambda e, _: e.recall(1, scorer=e.euclidean()), PERCENT),
    Metric(r"re-ranked R@1, k (\d+)", lambda e, a: e.recall(1, scorer=_context(e, int(a[0]))), PERCENT),
    Metric(r"norm where right", lambda e, _: e.norm_of(right=True)),
    Metric(r"norm where wrong", lambda e, _: e.norm_of(right=False)),
    Metric(r"train R@1", lambda e, _: e.recall(1), PERCENT, train=True),
    Metric(r"train MAP@R", lambda e, _: map_at_r(*e.lists(e.labels), exclude_self=e.alone), PERCENT, train=True),
    Metric(r"cluster diversity", lambda e, _: cluster_diversity(e.unit, e.labels), train=True),
    Metric(r"feature diversity", lambda e, _: feature_diversity(e.unit), train=True),
    Metric(r"lowest norm", lambda e, _: float(e.norms.min()), train=True),
    Metric(r"highest norm", lambda e, _: float(e.norms.max()), train=True),
)


def find_metric(name: str) -> tuple[Metric, tuple[str, ...]]:
    """Return the metric with a name and the numbers in the name; raise InvalidParameter if it is unknown."""
    for metric in METRICS:
        found = re.fullmatch(metric.pattern, name)
        if found:
            return metric, found.groups()
    raise InvalidParameter("metric", "be one of " + ", ".join(m.pattern for m in METRICS), name)


def _context(embedded: Embedded, neighbours: int) -> Scorer:
    queries, _, gallery, _ = embedded.lists(embedded.labels)
    return contextual_scorer(queries, gallery, neighbours=neighbours, exclude_self=embedded.alone)


def _categories(embedded: Embedded) -> NDArray[np.int64]:
    names = [str(photo.metadata.get("category", photo.group)) for photo in embedded.photos]
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
