"""Trainings of a head on the same features, measured with the same new photos.

Symbols: n = photos of the catalogue and queries, c = channels of the backbone, d = embedding size, B = resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from index.search.item_distance import ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.metrics.consistency import (
    Consistency,
    at_equal_tpir,
    search_curves,
    threshold_at_tpir,
    weighted_consistency,
)
from retrieval.metrics.identification import SearchScores, identification_rates, search_scores, threshold_at_fpir
from retrieval.text import text_table
from training.data.reader import PhotoReader, evaluation_batches
from training.data.sources import pooled_features
from training.data.synthetic.catalogue import KNOWN, UNKNOWN
from training.evaluation.embedding import keep_freed_memory, to_device
from training.evaluation.evaluate import item_groups
from training.loop.run import Run

from .queries import ENDS, RESAMPLES, Floats

BASE, WITH_TCM, EL_NIVMF = "base", "with TCM", "EL-nivMF"
EXPLANATION = (
    "Three heads on the same features: by the base loss, by it with the threshold-consistent margin (TCM), and by",
    "EL-nivMF with ProxyAnchor on the same proxies. R@1 and TPIR are of new photos of all items of the catalogue, of",
    "those of training (fitted), and of the others; TPIR where exactly the promised share of the new photos of unknown",
    "items returns a match. The rest is where each head finds as much as the one that finds least. OPIS: how much the",
    "rates differ from item to item, and what chance alone would give. Worse half: TPIR of the half of the items that",
    "is found worse. Never: share of the items that no search finds.",
)
HEAD = (
    *("training, items", "R@1", "TPIR", "TPIR, 95 %"),
    *("OPIS", "OPIS, 95 %", "by chance", "worse half", "never"),
)


@dataclass(frozen=True)
class Found:
    """What a head finds of a part of the catalogue's items. Intervals (2,) are of 95 %, by bootstrap over items."""

    recall: float  # R@1 of new photos
    tpir: float  # of these, where exactly the target share of the photos of unknown items return a match
    interval: Floats  # of the TPIR
    alike: Consistency  # of all photos, where all heads find equally much
    opis: Floats  # interval of its OPIS


@dataclass(frozen=True)
class Features:
    """Photos of a catalogue, then new photos of known and unknown items, with their items and features.

    `is_new` (n,) tells new photos, `is_fitted` (n,) those of the catalogue's items that training uses.
    """

    photos: Sequence[Photo]
    items: np.ndarray
    is_new: np.ndarray
    is_fitted: np.ndarray
    values: torch.Tensor  # (n, c)

    @classmethod
    def of(cls, run: Run, catalogue: Sequence[Photo], queries: Sequence[Photo]) -> Features:
        """Compute the features with the backbone of a run."""
        asked = [photo for photo in queries if photo.metadata["kind"] in (KNOWN, UNKNOWN)]
        photos, sight, device = [*catalogue, *asked], run.preprocessing, torch.device("cpu")
        blocks = evaluation_batches(PhotoReader(photos, sight, cache_bytes=0), range(len(photos)))
        keep_freed_memory()
        values = pooled_features(run.best_model(), blocks, lambda pixels: to_device(pixels, sight, device))
        items, is_new = np.array([photo.item_id for photo in photos]), np.arange(len(photos)) >= len(catalogue)
        is_fitted = np.array([photo.partition == "train" for photo in photos])
        return cls(photos, items, is_new, is_fitted, torch.from_numpy(values))

    @torch.inference_mode()
    def vectors(self, run: Run) -> np.ndarray:
        """Return unit vectors (n, d) by the head of a run."""
        return np.asarray(F.normalize(run.best_model().head(self.values), dim=1).numpy())


def measure_trainings(features: Features, runs: Mapping[str, Run], fpir: float) -> dict[tuple[str, str], Found]:
    """Return what each head finds of each part of the items, by training and part."""
    searched = [search(features, run) for run in runs.values()]
    thresholds = [threshold_at_fpir(new.where(~new.mated), fpir) for new, _ in searched]
    known, fitted = features.items[~features.is_new], features.items[features.is_fitted]
    found = {}
    for part, items in (("all", known), ("fitted", fitted), ("others", np.setdiff1d(known, fitted))):
        among = [every.where(np.isin(every.labels, items)) for _, every in searched]
        alike = at_equal_tpir(among, thresholds)
        for name, (new, _), limit, each, equal in zip(runs, searched, thresholds, among, alike, strict=True):
            asked = new.where(np.isin(new.labels, items) | ~new.mated)
            found[name, part] = Found(
                asked.recall,
                identification_rates(asked, limit).tpir,
                tpir_interval(asked, fpir),
                equal,
                opis_interval(each, equal.tpir),
            )
    return found


def search(features: Features, run: Run) -> list[SearchScores]:
    """Search by the head of a run: new photos of known and unknown items, and all photos of known items."""
    vectors, items, is_new = features.vectors(run), features.items, features.is_new
    groups, rows = item_groups(features.photos), np.arange(len(items))
    return [
        search_scores(
            vectors[chosen],
            items[chosen],
            vectors[~is_new],
            items[~is_new],
            query_ids=rows[chosen],
            gallery_ids=rows[~is_new],
            gallery_groups=groups[~is_new],
            item_distance=ItemDistance.default(),
        )
        for chosen in (is_new, np.isin(items, items[~is_new]))
    ]


def tpir_interval(asked: SearchScores, fpir: float) -> Floats:
    """Return the interval of TPIR at exactly this FPIR. Known and unknown items have one search each."""
    generator, known, unknown = np.random.default_rng(0), asked.correct[asked.mated], asked.impostor[~asked.mated]
    drawn, asked_again = (generator.choice(values, (RESAMPLES, len(values))) for values in (unknown, known))
    excess = np.sort(drawn, axis=1)[:, int(fpir * len(unknown) + 1e-9), None]  # the first match that is one too many
    return np.asarray(np.quantile((asked_again < excess).mean(axis=1), ENDS))


def opis_interval(scores: SearchScores, tpir: float) -> Floats:
    """Return the interval of OPIS where this TPIR is reached."""
    curves = search_curves(scores, [threshold_at_tpir(scores, tpir)])
    even = np.full(len(curves.classes), 1 / len(curves.classes))
    weights = np.random.default_rng(0).multinomial(len(even), even, RESAMPLES)
    return np.asarray(np.quantile(weighted_consistency(curves, weights.astype(float))["opis"], ENDS))


def training_table(trainings: Mapping[tuple[str, str], Found]) -> list[str]:
    """Return the lines of a table with what each training finds, and what the columns mean."""
    rows = [(f"{name}, {part}", *cells(found)) for (name, part), found in trainings.items()]
    return [*text_table(HEAD, rows), "", *EXPLANATION]


def cells(found: Found) -> tuple[str, ...]:
    """Return the columns of the table, after the first."""
    alike, shown, interval = found.alike, "{:.3f}".format, "{:.3f} to {:.3f}".format
    rates = shown(found.recall), shown(found.tpir), interval(*found.interval), shown(alike.opis), interval(*found.opis)
    return *rates, *map(shown, (alike.opis_by_chance, alike.worse_half, alike.never_found))
