"""The same training with and without the threshold-consistent margin (TCM), measured with the same new photos.

Symbols: n = photos of the catalogue and queries, c = channels of the backbone, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.metrics.consistency import consistency
from retrieval.metrics.identification import SearchScores, identification_rates, search_scores, threshold_at_fpir
from retrieval.text import text_table
from training.data.reader import PhotoReader, evaluation_batches
from training.data.sources import pooled_features
from training.data.synthetic.catalogue import KNOWN, UNKNOWN
from training.evaluation.embedding import keep_freed_memory, to_device
from training.evaluation.evaluate import item_groups
from training.loop.run import Run

WITH_TCM, WITHOUT_TCM = "with TCM", "without TCM"
HEAD = ("training", "R@1", "TPIR", "OPIS", "OPIS, nearest photo")
EXPLANATION = (
    "The same training with and without the threshold-consistent margin (TCM): R@1, and TPIR where exactly {fpir} of",
    "the new photos of unknown items return a match. OPIS: how much the rates of a threshold differ from item to item",
    "(lower is more consistent), by the item distance and by the nearest photo.",
)


@dataclass(frozen=True)
class Training:
    """What a trained model finds."""

    recall: float  # R@1 of new photos of catalogue items
    tpir: float  # of these, where exactly the target share of the photos of unknown items return a match
    opis: float  # of all photos of catalogue items
    plain_opis: float  # the same by the nearest photo
    scores: SearchScores  # of the searches that `opis` is of


@dataclass(frozen=True)
class Features:
    """Photos of a catalogue, then new photos of known and unknown items, with the features (n, c) of all."""

    photos: Sequence[Photo]
    is_new: np.ndarray  # (n,)
    values: torch.Tensor

    @classmethod
    def of(cls, run: Run, catalogue: Sequence[Photo], queries: Sequence[Photo]) -> Features:
        """Compute the features with the backbone of a run."""
        asked = [photo for photo in queries if photo.metadata["kind"] in (KNOWN, UNKNOWN)]
        photos, sight, device = [*catalogue, *asked], run.preprocessing, torch.device("cpu")
        blocks = evaluation_batches(PhotoReader(photos, sight, cache_bytes=0), range(len(photos)))
        keep_freed_memory()
        values = pooled_features(run.best_model(), blocks, lambda pixels: to_device(pixels, sight, device))
        return cls(photos, np.arange(len(photos)) >= len(catalogue), torch.from_numpy(values))

    @torch.inference_mode()
    def vectors(self, run: Run) -> np.ndarray:
        """Return unit vectors (n, d) by the head of a run."""
        vectors: np.ndarray = F.normalize(run.best_model().head(self.values), dim=1).numpy()
        return vectors

    def trained(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors (m, d) and items (m,) of the photos of training items."""
        rows = [row for row, photo in enumerate(self.photos) if photo.partition == "train"]
        return self.vectors(run)[rows], np.array([self.photos[row].item_id for row in rows])


def measure_training(features: Features, run: Run, target_fpir: float) -> Training:
    """Search the photos of the catalogue with new photos, by the model of a run."""
    vectors, is_new = features.vectors(run), features.is_new
    items = np.array([photo.item_id for photo in features.photos])
    groups, rows = item_groups(features.photos), np.arange(len(items))

    def search(chosen: np.ndarray, distance: ItemDistance) -> SearchScores:
        return search_scores(
            vectors[chosen],
            items[chosen],
            vectors[~is_new],
            items[~is_new],
            query_ids=rows[chosen],
            gallery_ids=rows[~is_new],
            gallery_groups=groups[~is_new],
            item_distance=distance,
        )

    served, is_known = ItemDistance.default(), np.isin(items, items[~is_new])
    new = search(is_new, served)
    threshold = threshold_at_fpir(new.where(~new.mated), target_fpir)
    known, every = new.where(new.mated), search(is_known, served)
    return Training(
        recall=known.recall,
        tpir=identification_rates(known, threshold).tpir,
        opis=consistency(every, threshold).opis,
        plain_opis=consistency(search(is_known, NEAREST_PHOTO), threshold).opis,
        scores=every,
    )


def training_table(trainings: Mapping[str, Training], target_fpir: float) -> list[str]:
    """Return the lines of a table with what each training finds, and what the columns mean."""
    rows = [
        (name, f"{each.recall:.1%}", f"{each.tpir:.1%}", f"{each.opis:.3f}", f"{each.plain_opis:.3f}")
        for name, each in trainings.items()
    ]
    explained = [line.format(fpir=f"{target_fpir:.0%}") for line in EXPLANATION]
    return [*text_table(HEAD, rows), "", *explained]
