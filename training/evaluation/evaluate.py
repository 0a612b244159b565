"""What a model does with items nobody trained on, and with those it trained on.

A *scene* is one gallery and the queries asked of it: unseen items, trained items, both mixed, and where the
catalogue has clean catalogue pictures, those as the gallery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.distance import PLAIN, Measure
from retrieval.catalogue.read import Photo
from retrieval.metrics.consistency import opis, search_opis
from retrieval.metrics.identification import (
    IdentificationRates,
    SearchScores,
    identification_rates,
    search_scores,
    threshold_at_fpir,
)
from retrieval.metrics.ranks import map_at_r, r_precision, recall_at_k
from training.data.splits import Protocol, scene_sides, side

from .pair_counts import pair_counter


@dataclass(frozen=True)
class Scene:
    """Gallery and queries as positions into one list of photos."""

    name: str
    queries: np.ndarray
    gallery: np.ndarray


def make_scene(name: str, photos: Sequence[Photo], items: Sequence[str], protocol: Protocol) -> Scene:
    """Return who asks whom among the photos of some items."""
    queries, gallery = scene_sides(name, photos, items, protocol)
    return Scene(name, np.array(queries), np.array(gallery))


def score_scene(scene: Scene, vectors: np.ndarray, labels: np.ndarray, *, measure: Measure = PLAIN) -> SearchScores:
    """Return each query's distances to its own item and to the nearest other; no photo finds itself."""
    return search_scores(
        vectors[scene.queries],
        labels[scene.queries],
        vectors[scene.gallery],
        labels[scene.gallery],
        query_ids=scene.queries,
        gallery_ids=scene.gallery,
        measure=measure,
    )


def rank_figures(scene: Scene, vectors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return R@1, R@5, MAP@R and R-precision of a scene."""
    arguments = (
        vectors[scene.queries],
        labels[scene.queries],
        vectors[scene.gallery],
        labels[scene.gallery],
    )
    alone = bool(np.array_equal(scene.queries, scene.gallery))
    recall = recall_at_k(*arguments, ks=(1, 5), exclude_self=alone)
    return {
        "R@1": recall[1],
        "R@5": recall[5],
        "MAP@R": map_at_r(*arguments, exclude_self=alone),
        "R-precision": r_precision(*arguments, exclude_self=alone),
    }


def consistency_figures(scene: Scene, vectors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return OPIS and epsilon-OPIS (10 %) over all pairs of the scene's photos, FAR 1e-2 to 1e-1."""
    members = np.union1d(scene.queries, scene.gallery)
    result = opis(vectors[members], labels[members], counter=pair_counter())
    return {"OPIS": result.value, "epsilon-OPIS": result.epsilon_value}


def decision_figures(rates: IdentificationRates) -> dict[str, float]:
    """Return the rates of one threshold under their names in DESIGN.md."""
    return {
        "FPIR": rates.fpir,
        "TPIR": rates.tpir,
        "FNIR": rates.fnir,
        "FNIR any rank": rates.fnir_any_rank,
        "misidentification": rates.misidentification,
    }


def open_set_figures(scores: SearchScores, target_fpir: float) -> dict[str, float]:
    """Return the rates at the threshold that meets the target on these very queries (an oracle's view)."""
    return decision_figures(identification_rates(scores, threshold_at_fpir(scores, target_fpir)))


def scenes_of(
    photos: Sequence[Photo], *, unseen: Sequence[str], trained: Sequence[str], protocol: Protocol
) -> list[Scene]:
    """Return the scenes of a report: unseen, trained, mixed, and unseen against catalogue pictures."""
    scenes = [
        make_scene("unseen", photos, unseen, protocol),
        make_scene("trained", photos, trained, protocol),
        make_scene("mixed", photos, [*unseen, *trained], protocol),
    ]
    wanted = set(unseen)
    pictures = {side(photo) for photo in photos} - protocol.sources
    for source in sorted(pictures):
        gallery = [i for i, p in enumerate(photos) if p.item_id in wanted and side(p) == source]
        if gallery:
            scenes.append(Scene(f"unseen, {source} gallery", scenes[0].queries, np.array(gallery)))
    return scenes


@dataclass(frozen=True)
class Distance:
    """Vectors of all photos, and what a distance between them is."""

    vectors: np.ndarray  # (n, d) unit
    measure: Measure = PLAIN


def evaluate_scenes(
    scenes: Sequence[Scene],
    labels: np.ndarray,
    distance: Distance,
    *,
    calibration: Scene,
    target_fpir: float,
) -> dict[str, Any]:
    """Return every figure of every scene, with the threshold chosen on the calibration scene alone.

    The threshold is the empirical one: the largest distance with FPIR ≤ target on the calibration queries.
    OPIS is that of the cosines of pairs, whatever the distance.
    """
    vectors, measure = distance.vectors, distance.measure
    threshold = threshold_at_fpir(score_scene(calibration, vectors, labels, measure=measure), target_fpir)
    report: dict[str, Any] = {"threshold": threshold, "target_fpir": target_fpir, "scenes": {}}
    for scene in scenes:
        scores = score_scene(scene, vectors, labels, measure=measure)
        figures = rank_figures(scene, vectors, labels)
        figures["R@1"] = float((scores.own < scores.impostor)[scores.mated].mean())
        figures |= consistency_figures(scene, vectors, labels)
        figures |= decision_figures(identification_rates(scores, threshold))
        figures["TPIR at exactly the target"] = open_set_figures(scores, target_fpir)["TPIR"]
        figures["search OPIS"] = search_opis(scores, target_fpir).value
        figures["queries"] = len(scene.queries)
        figures["items"] = scores.gallery_items
        report["scenes"][scene.name] = figures
    return report


def photos_of(scenes: Sequence[Scene]) -> np.ndarray:
    """Return the positions of the photos that take part in any of the scenes, ascending."""
    return np.unique(np.concatenate([part for scene in scenes for part in (scene.queries, scene.gallery)]))


def item_labels(photos: Sequence[Photo]) -> np.ndarray:
    """Return one whole number an item, (n,) int64, in the order of sorted item_ids."""
    return np.unique([photo.item_id for photo in photos], return_inverse=True)[1].astype(np.int64)
