"""The calibration items of a run, embedded and searched with an exported model, which is compared with fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from index.search.leave_one_out import Probes
from retrieval.bundle.bundle import CalibrationSet, pack_features
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import photos_in_protocol
from retrieval.images import open_image
from retrieval.images.thumbnails import thumbnail
from retrieval.metrics.consistency import FAR_RANGE, opis, opis_of_ranges, search_opis, utility_curves
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from retrieval.reports.bundle_report import ReportData, render_report, variant_cells
from retrieval.text import text_table
from retrieval.verification.verifier import GeometricVerifier
from training.evaluation.evaluate import EvaluationSplit, item_groups, item_labels, make_evaluation_split, score_split

from .variants import REFERENCE, ExportedModel, ModelExporter, embed_with_onnx, embed_with_torch
from .verification import detect_features

FAR_RANGES = (FAR_RANGE, (1e-4, 1e-3), (1e-3, 1e-2), (1e-2, 5e-2), (1e-1, 3e-1))  # of pairs, in the report
PICTURES = 4  # photos per item in the report


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

    @property
    def groups(self) -> np.ndarray | None:
        """Group of each query, or None if the catalogue has no groups."""
        groups = np.array([self.photos[i].group for i in self.split.queries])
        return groups if all(groups) else None

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

    def opis(self, target_fpir: float) -> dict[str, float]:
        """Return OPIS of the searches by the item distance and, beside it, by the nearest photo."""
        labels, groups = item_labels(self.photos), item_groups(self.photos)
        plain = score_split(self.split, self.vectors, labels, groups=groups, item_distance=NEAREST_PHOTO)
        return {
            "item_distance": search_opis(self.searches, target_fpir).value,
            "nearest_photo": search_opis(plain, target_fpir).value,
        }

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
            gallery=Probes(self.vectors[self.split.gallery], ids, items, groups=item_groups(shown).tolist()),
        ).pack()

    def pack_features(self) -> bytes:
        """Return the local features of the photos as the bundle's file of them."""
        used = np.union1d(self.split.queries, self.split.gallery).tolist()
        return pack_features({self.photos[i].photo_id: self.features[i] for i in used})

    def report(self, point: OperatingPoint, comparison: Sequence[Mapping[str, Any]]) -> bytes:
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


def compare_with_fp32(items: CalibrationItems, target_fpir: float) -> list[dict[str, Any]]:
    """Return the metrics of fp32 on the CPU and of the model that embedded the items.

    The rates are those of the largest threshold that keeps the target.
    """
    labels, rows = item_labels(items.photos), []
    for variant, vectors in ((REFERENCE, items.raw), (items.model.variant, items.vectors)):
        scores = items.scores(vectors)
        rates = identification_rates(scores, threshold_at_fpir(scores, target_fpir))
        rows.append(
            {
                "form": variant.describe(),
                "opis": opis(vectors, labels).value,
                "search_opis": search_opis(scores, target_fpir).value,
                "fpir": rates.fpir,
                "tpir": rates.tpir,
            }
        )
    return rows


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a text table of the metrics of both models."""
    return "\n".join(text_table(("variant", "OPIS", "OPIS of searches", "FPIR", "TPIR"), [*map(variant_cells, rows)]))
