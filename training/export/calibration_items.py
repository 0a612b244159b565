"""The calibration items of a run, embedded and searched with an exported model, which is compared with fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from index.photos.arrays import ArrayPhotos
from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import CalibrationSet, pack_features
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import photos_in_protocol
from retrieval.errors import CalibrationError
from retrieval.images import open_image
from retrieval.images.thumbnails import thumbnail
from retrieval.indexing.worker import embed_batch, looks_of
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import PROBE, AllDraws, Draws, Probes
from retrieval.measuring.fpir import LEAST_ITEMS, DrawnDistances
from retrieval.measuring.point import BUNDLE, Point
from retrieval.measuring.rule import set_threshold
from retrieval.metrics.consistency import FAR_RANGE, at_equal_tpir, opis, opis_of_ranges, utility_curves
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from retrieval.reports.bundle_report import VARIANT, ReportData, render_report, variant_cells
from retrieval.text import text_table
from retrieval.verification.verifier import GeometricVerifier
from training.evaluation.evaluate import (
    MORE_GROUPS,
    ONE_GROUP,
    EvaluationSplit,
    item_groups,
    item_labels,
    make_evaluation_split,
    score_split,
)

from .variants import REFERENCE, ExportedModel, ModelExporter, embed_with_onnx, embed_with_torch
from .verification import detect_features

FAR_RANGES = (FAR_RANGE, (1e-4, 1e-3), (1e-3, 1e-2), (1e-2, 5e-2), (1e-1, 3e-1))  # of pairs, in the report
PICTURES = 4  # photos per item in the report
LOOKED_AT = 64  # photos at a time
LEAST_SERVED = 50  # minimum number of items of a gallery in which the threshold of a bundle decides


@dataclass(frozen=True)
class CalibrationItems:
    """Photos of the calibration items with their unit vectors (n, d), and the searches among them."""

    photos: Sequence[Photo]
    split: EvaluationSplit
    model: ExportedModel
    vectors: np.ndarray  # by the exported model, as a gallery has them
    certainties: np.ndarray  # (queries,)
    appearances: np.ndarray  # (n, statistics)
    searches: SearchScores
    raw: np.ndarray  # (n, d) by torch
    looks: np.ndarray  # (n, d) of the second looks, zeros where there is none
    item_distance: ItemDistance
    verifier: GeometricVerifier | None = None
    features: Sequence[bytes] = ()  # local features of each photo, if matches are verified

    @classmethod
    def embed(
        cls,
        exporter: ModelExporter,
        model: ExportedModel,
        item_distance: ItemDistance,
        verifier: GeometricVerifier | None = None,
    ) -> CalibrationItems:
        """Embed the photos of a run's calibration items with an exported model and search among them."""
        run = exporter.run
        photos = photos_in_protocol(run.photos(), run.splits.calibration, run.protocol)
        split = make_evaluation_split("calibration", photos, run.splits.calibration, run.protocol)
        embeddings, appearances = embed_with_onnx(model.embedder, photos)
        features: list[bytes] = []
        if verifier is not None:
            features = [verifier.packed(found) for found in detect_features(photos, run.preprocessing)]
        labels = np.array([photo.item_id for photo in photos])
        searches = score_split(
            split,
            embeddings.vectors,
            labels,
            groups=item_groups(photos),
            item_distance=item_distance,
            verifier=verifier,
            features=features,
        )
        return cls(
            photos=photos,
            split=split,
            model=model,
            vectors=embeddings.vectors,
            certainties=embeddings.certainties[split.queries],
            appearances=appearances,
            looks=_second_looks(model, photos),
            searches=searches,
            raw=embed_with_torch(run, exporter.model, photos).vectors,
            item_distance=item_distance,
            verifier=verifier,
            features=features,
        )

    @property
    def item_ids(self) -> list[str]:
        """Item of each photo."""
        return [photo.item_id for photo in self.photos]

    def point(self, target_fpir: float, *, certify: bool) -> Point:
        """Return the operating point that follows from the searches among these items.

        With too few items for the target, the point has no threshold: galleries set one. Raises CalibrationError for
        too few items with `certify`, and if no photo finds its item.
        """
        if not np.isfinite(self.searches.impostor).any():
            raise CalibrationError(ONE_GROUP, remedy=MORE_GROUPS)
        draws = AllDraws("", {PROBE: self._draws()}, frozenset())
        drawn = DrawnDistances.of(draws.sources)
        if not certify and (drawn.items < LEAST_ITEMS or target_fpir < drawn.smallest_target):
            return Point.uncalibrated(target_fpir)
        items = len({*self.item_ids})
        point = set_threshold(draws, target_fpir, items=items, certify=certify, origin=BUNDLE)
        return replace(
            point,
            basis=replace(point.basis, least_items=min(LEAST_SERVED, items)),
        )

    def _draws(self) -> Draws:
        """Return the searches for the query photos, each without the photo itself and without its item."""
        groups, ids = item_groups(self.photos), [photo.photo_id for photo in self.photos]

        def probes(rows: np.ndarray) -> Probes:
            given = [self.features[row] for row in rows] if self.features else ()
            photo_ids, item_ids = ([values[row] for row in rows] for values in (ids, self.item_ids))
            return Probes(self.vectors[rows], photo_ids, item_ids, given, groups[rows].tolist(), are_here=True)

        shown = probes(self.split.gallery)
        photos = ArrayPhotos(
            shown.vectors, shown.items, photo_ids=shown.ids, groups=shown.groups, features=shown.features
        )
        return Drawing(photos, self.item_distance, self.verifier).probes(probes(self.split.queries))

    def scores(self, vectors: np.ndarray) -> SearchScores:
        """Return the searches with other vectors (n, d)."""
        return score_split(
            self.split,
            vectors,
            item_labels(self.photos),
            groups=item_groups(self.photos),
            item_distance=self.item_distance,
            verifier=self.verifier,
            features=self.features,
        )

    def pack(self) -> bytes:
        """Return the searches as the bundle's calibration file."""
        queries = self.split.queries
        shown = [self.photos[i] for i in self.split.gallery]
        ids, items = ([getattr(photo, name) for photo in shown] for name in ("photo_id", "item_id"))
        return CalibrationSet(
            self.searches,
            photo_ids=np.array([self.photos[i].photo_id for i in queries]),
            certainties=self.certainties,
            vectors=self.vectors[queries],
            appearances=self.appearances[queries],
            gallery=Probes(
                self.vectors[self.split.gallery],
                ids,
                items,
                groups=item_groups(shown).tolist(),
                looks=self.looks[self.split.gallery],
            ),
            looks=self.looks[queries],
        ).pack()

    def pack_features(self) -> bytes:
        """Return the local features of the photos as the bundle's file of them."""
        used = np.union1d(self.split.queries, self.split.gallery).tolist()
        return pack_features({self.photos[i].photo_id: self.features[i] for i in used})

    def report(self, point: Point, comparison: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the bundle's report: the operating point, its searches and a comparison with fp32."""
        ranges = opis_of_ranges(self.vectors, self.item_ids, far_ranges=FAR_RANGES)
        data = ReportData(
            point,
            self.searches,
            pair_curves=utility_curves(self.vectors, self.item_ids, np.linspace(0, 2, 101)[1:]),
            pair_opis=dict(zip(FAR_RANGES, ranges, strict=True)),
            photos=self._pictures,
            beside_fp32=comparison,
        )
        return render_report(data).encode()

    def _pictures(self, item_id: str) -> list[bytes]:
        photos = [photo for photo in self.photos if photo.item_id == item_id][:PICTURES]
        return [thumbnail(open_image(photo.read())) for photo in photos]


def _second_looks(model: ExportedModel, photos: Sequence[Photo]) -> np.ndarray:
    """Return the vectors (n, d) of the second looks at photos by an exported model, zeros where there is none."""
    parts = []
    for start in range(0, len(photos), LOOKED_AT):
        ids = [photo.photo_id for photo in photos[start : start + LOOKED_AT]]
        batch = embed_batch(model.embedder, photos[start : start + LOOKED_AT], {}, twice=ids)
        parts.append(looks_of(batch, ids))
    return np.concatenate(parts)


def compare_with_fp32(items: CalibrationItems, target_fpir: float) -> list[dict[str, Any]]:
    """Return the metrics of fp32 on the CPU and of the model that embedded the items.

    The rates are those of the largest threshold that keeps the target, OPIS of searches is that at equal TPIR.
    """
    labels = item_labels(items.photos)
    forms = ((REFERENCE, items.raw), (items.model.variant, items.vectors))
    searched = [items.scores(vectors) for _, vectors in forms]
    rates = [identification_rates(scores, threshold_at_fpir(scores, target_fpir)) for scores in searched]
    alike = at_equal_tpir(searched, [each.threshold for each in rates])
    return [
        {
            "form": variant.describe(),
            "opis": opis(vectors, labels).value,
            "search_opis": same.opis,
            "fpir": found.fpir,
            "tpir": found.tpir,
        }
        for (variant, vectors), found, same in zip(forms, rates, alike, strict=True)
    ]


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a text table of the metrics of both models."""
    return "\n".join(text_table(VARIANT, [*map(variant_cells, rows)]))
