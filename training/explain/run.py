"""`retrieval explain`: what a run's best model gets wrong, of one scene."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from index.distance import PLAIN, Measure
from index.shell import command
from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter, RunError
from retrieval.metrics.identification import threshold_at_fpir
from training.evaluation.distance_selection import choose_distance
from training.evaluation.embedding import embed_photos
from training.evaluation.evaluate import (
    Scene,
    decision_figures,
    item_labels,
    make_scene,
    photos_of,
    scenes_of,
    score_scene,
)
from training.loop.run import Run, choose_device

from .embedding_map import EmbeddingMap, embedding_map
from .outcomes import FOUND, OUTCOMES, WORST, Explanation, explain
from .photos import ForgivingReader, Pictures

SCENES = ("unseen", "trained", "mixed")
PLAIN_DISTANCE, SERVED = DISTANCES = ("plain", "served")
MEASURED = "evaluation.json"
DIFFERS = 0.02  # of a rate, from that which `evaluate` found


@dataclass(frozen=True)
class ExplainedRun:
    """An explanation, and what names and shows its photos."""

    name: str
    scene: str
    found: Explanation
    photos: Sequence[Photo]
    labels: np.ndarray  # (photos,)
    names: Sequence[str]  # item_id of each label
    parts: Mapping[str, str]  # part of the splits of each item_id
    map: EmbeddingMap
    pictures: Pictures
    protocol: str
    distance: str  # one of DISTANCES
    target_fpir: float
    threshold_from: str  # MEASURED, or "calibration items"
    unreadable: Sequence[tuple[str, str]]  # photo_id, reason
    notes: Sequence[str]


def explain_run(
    run: Run, *, scene: str = "unseen", worst: int = WORST, distance: str = PLAIN_DISTANCE, progress: bool = True
) -> ExplainedRun:
    """Embed a scene's photos with the run's best model and look for what goes wrong.

    Parameters
    ----------
    scene:
        Items never trained on ("unseen"), those of the training partition ("trained"), or all of them ("mixed").
    worst:
        Queries of each kind of error.
    distance:
        "plain", or the one that `export` would choose ("served").

    The threshold is that of `evaluate`: from RUN/evaluation.json, or else set again on the calibration items. Photos
    that cannot be read are left out and listed.
    """
    for name, value, among in (("scene", scene, SCENES), ("distance", distance, DISTANCES)):
        if value not in among:
            raise InvalidParameter(name, f"be one of {', '.join(among)}", value)
    photos, splits, protocol = run.photos(), run.splits, run.protocol
    trained = [*splits.fit, *splits.validation]
    scenes = {s.name: s for s in scenes_of(photos, unseen=splits.test, trained=trained, protocol=protocol)}
    measured = _measured(run, distance)
    wanted = [scenes[scene]]
    if measured is None:
        wanted.append(make_scene("calibration", photos, splits.calibration, protocol))
    if distance == SERVED:
        wanted.append(scenes["trained"])
    vectors, refused = _embedded(run, photos, photos_of(wanted), progress=progress)
    gone = np.array(sorted(refused), dtype=np.int64)
    wanted = [_without(part, gone) for part in wanted]
    labels = item_labels(photos)
    measure: Measure = PLAIN
    target = run.settings.target_fpir if measured is None else float(measured["target_fpir"])
    if distance == SERVED:
        mine = photos_of([wanted[-1]])
        choice = choose_distance([photos[i] for i in mine], vectors[mine], splits, protocol, target_fpir=target)
        measure = choice.measure
        if choice.whitening is not None:
            used = photos_of(wanted)
            vectors[used] = choice.whitening(vectors[used])
    if measured is None:
        threshold = threshold_at_fpir(score_scene(wanted[1], vectors, labels, measure=measure), target)
    else:
        threshold = float(measured["threshold"])
    found = explain(wanted[0], vectors, labels, threshold=threshold, measure=measure, worst=worst)
    wrong = wanted[0].queries[(found.outcomes.kind != OUTCOMES.index(FOUND)) | found.outcomes.false_alarm]
    return ExplainedRun(
        name=run.path.resolve().name,
        scene=scene,
        found=found,
        photos=photos,
        labels=labels,
        names=sorted({photo.item_id for photo in photos}),
        parts={item: part for part, items in splits.to_dict().items() for item in items},
        map=embedding_map(vectors, photos_of(wanted[:1]), first=wrong),
        pictures=Pictures(photos, run.preprocessing),
        protocol=protocol.describe(),
        distance=distance,
        target_fpir=target,
        threshold_from="calibration items" if measured is None else MEASURED,
        unreadable=[(photos[i].photo_id, refused[int(i)]) for i in gone],
        notes=_notes(found, scene, measured),
    )


def _embedded(
    run: Run, photos: Sequence[Photo], used: np.ndarray, *, progress: bool
) -> tuple[np.ndarray, dict[int, str]]:
    """Return vectors (photos, d), zero where not `used`, and the reasons of those that could not be read."""
    model = run.best_model().to(choose_device(run.settings.device))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as `evaluate` runs it
    reader = ForgivingReader([photos[i] for i in used], run.preprocessing)
    made = embed_photos(model, reader, len(used), run.preprocessing, progress=progress)
    vectors = np.zeros((len(photos), made.shape[1]), dtype=np.float32)
    vectors[used] = made
    return vectors, {int(used[place]): reason for place, reason in reader.refused.items()}


def _without(scene: Scene, gone: np.ndarray) -> Scene:
    queries, gallery = (part[~np.isin(part, gone)] for part in (scene.queries, scene.gallery))
    if not len(queries) or not len(gallery):
        raise DataError(
            f"no photo of the {scene.name} items can be read, of the {'gallery' if len(queries) else 'queries'}",
            remedy=f"`{command('data', 'check', 'CATALOGUE')}` lists every such photo; mend or remove them",
        )
    return Scene(scene.name, queries, gallery)


def _measured(run: Run, distance: str) -> dict[str, Any] | None:
    """Return what `evaluate` found with a distance; None where there is nothing yet."""
    path = run.path / MEASURED
    if not path.exists():
        return None
    try:
        report: dict[str, Any] = json.loads(path.read_text())
        chosen: dict[str, Any] | None = report.get("served") if distance == SERVED else report
        if chosen is not None:
            float(chosen["threshold"]), float(chosen["target_fpir"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} cannot be used: {error!r}", remedy=f"`{command('evaluate', run.path)}` writes it anew"
        ) from error
    return chosen


def _notes(found: Explanation, scene: str, measured: Mapping[str, Any] | None) -> list[str]:
    """Return what a reader should know before believing the rest."""
    told = []
    before = (measured or {}).get("scenes", {}).get(scene)
    if before:
        mine = decision_figures(found.rates) | {"queries": len(found.scene.queries)}
        differing = [
            f"{name} {before[name]:.3g}, here {mine[name]:.3g}"
            for name, most in (("FPIR", DIFFERS), ("TPIR", DIFFERS), ("queries", 0))
            if name in before and not abs(before[name] - mine[name]) <= most
        ]
        if differing:
            told.append(
                f"{MEASURED} was made of other photos or another checkpoint ({'; '.join(differing)}): "
                f"run `{command('evaluate', 'RUN')}` again"
            )
    if not found.rates.mated_queries:
        told.append("no query's item has a photo in the gallery: nothing can be said about misses")
    if found.utilities is None:
        told.append("utilities need two items, one of them with two photos")
    return told
