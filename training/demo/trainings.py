"""The same training with and without the threshold-consistent margin (TCM), measured with the same new photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.metrics.consistency import search_opis
from retrieval.metrics.identification import SearchScores, identification_rates, search_scores, threshold_at_fpir
from retrieval.text import text_table
from training.data.reader import PhotoReader
from training.data.synthetic.queries import KNOWN, UNKNOWN
from training.evaluation.embedding import embed_photos
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


def measure_training(run: Run, shown: Sequence[Photo], queries: Sequence[Photo], target_fpir: float) -> Training:
    """Search the catalogue photos `shown` with new photos, by the model of a run."""
    asked = [photo for photo in queries if photo.metadata["kind"] in (KNOWN, UNKNOWN)]
    photos = [*shown, *asked]
    reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
    vectors = embed_photos(run.best_model(), reader, len(photos), run.preprocessing)
    items, groups = np.array([photo.item_id for photo in photos]), item_groups(photos)
    rows = np.arange(len(photos))
    is_new, is_known = rows >= len(shown), np.isin(items, items[: len(shown)])

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

    served = ItemDistance.default()
    new = search(is_new, served)
    threshold = threshold_at_fpir(new.where(~new.mated), target_fpir)
    known, every = new.where(new.mated), search(is_known, served)
    return Training(
        recall=known.recall,
        tpir=identification_rates(known, threshold).tpir,
        opis=search_opis(every, target_fpir).value,
        plain_opis=search_opis(search(is_known, NEAREST_PHOTO), target_fpir).value,
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
