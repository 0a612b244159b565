"""Explanation of a run: the errors of its best model on one evaluation split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from index.search.distance import PLAIN, DistanceForm
from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter, RunError, command
from retrieval.metrics.identification import threshold_at_fpir
from training.evaluation.distance_selection import choose_distance
from training.evaluation.embedding import embed_photos
from training.evaluation.evaluate import (
    EvaluationSplit,
    evaluation_splits,
    identification_metrics,
    item_labels,
    make_evaluation_split,
    photos_of,
    score_split,
)
from training.loop.run import Run, choose_device
from training.model import EmbeddingModel

from .causes import Miss
from .embedding_map import EmbeddingMap, embedding_map
from .item_search import ItemSearch
from .misses import find_misses
from .outcomes import FOUND, OUTCOMES, WORST, Explanation, explain
from .photos import ForgivingReader, Pictures

SPLITS = ("unseen", "trained", "mixed")
PLAIN_DISTANCE, SERVED = DISTANCES = ("plain", "served")
MEASURED = "evaluation.json"
DIFFERS = 0.02  # difference between a rate and that of `evaluate` that is reported


@dataclass(frozen=True)
class ExplainedRun:
    """An explanation, with the names and pictures of its photos."""

    name: str
    split: str
    explanation: Explanation
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
    misses: Sequence[Miss]
    unreadable: Sequence[tuple[str, str]]  # photo_id, reason
    notes: Sequence[str]


def explain_run(
    run: Run, *, split: str = "unseen", worst: int = WORST, distance: str = PLAIN_DISTANCE, progress: bool = True
) -> ExplainedRun:
    """Embed the photos of an evaluation split with the run's best model and find its errors.

    Parameters
    ----------
    split:
        "unseen" items, those of the training partition ("trained"), or both ("mixed").
    worst:
        Number of queries per kind of error.
    distance:
        "plain", or the one that `export` would select ("served").

    The threshold is read from RUN/evaluation.json, or set on the calibration items if that is missing. Unreadable
    photos are left out and listed.
    """
    _check(split, distance)
    photos, splits, protocol = run.photos(), run.splits, run.protocol
    measured = _measured(run, distance)
    wanted = _splits_to_embed(run, photos, split, distance, calibrate=measured is None)
    model = _model(run)
    vectors, refused = _embedded(model, run, photos, photos_of(wanted), progress=progress)
    unreadable = np.array(sorted(refused), dtype=np.int64)
    wanted = [_without(part, unreadable) for part in wanted]
    labels = item_labels(photos)
    distance_form: DistanceForm = PLAIN
    whitening = None
    target = run.settings.target_fpir if measured is None else float(measured["target_fpir"])
    if distance == SERVED:
        training = photos_of([wanted[-1]])
        choice = choose_distance([photos[i] for i in training], vectors[training], splits, protocol, target_fpir=target)
        distance_form, whitening = choice.distance_form, choice.whitening
        if whitening is not None:
            used = photos_of(wanted)
            vectors[used] = whitening(vectors[used])
    if measured is None:
        threshold = threshold_at_fpir(score_split(wanted[1], vectors, labels, distance_form=distance_form), target)
    else:
        threshold = float(measured["threshold"])
    explanation = explain(wanted[0], vectors, labels, threshold=threshold, distance_form=distance_form, worst=worst)
    search = ItemSearch(wanted[0], vectors, labels, threshold=threshold, distance_form=distance_form)
    return ExplainedRun(
        name=run.path.resolve().name,
        split=split,
        explanation=explanation,
        photos=photos,
        labels=labels,
        names=sorted({photo.item_id for photo in photos}),
        parts={item: part for part, items in splits.to_dict().items() for item in items},
        map=embedding_map(vectors, photos_of(wanted[:1]), first=_wrong(explanation)),
        pictures=Pictures(photos, run.preprocessing),
        protocol=protocol.describe(),
        distance=distance,
        target_fpir=target,
        threshold_from="calibration items" if measured is None else MEASURED,
        misses=find_misses(search, explanation.outcomes, photos, model, run.preprocessing, whitening),
        unreadable=[(photos[i].photo_id, refused[int(i)]) for i in unreadable],
        notes=_notes(explanation, split, measured),
    )


def _check(split: str, distance: str) -> None:
    for name, value, among in (("split", split, SPLITS), ("distance", distance, DISTANCES)):
        if value not in among:
            raise InvalidParameter(name, f"be one of {', '.join(among)}", value)


def _wrong(explanation: Explanation) -> np.ndarray:
    """Return the queries that go wrong with or without their item in the gallery."""
    outcomes = explanation.outcomes
    return np.asarray(explanation.split.queries[(outcomes.kind != OUTCOMES.index(FOUND)) | outcomes.false_alarm])


def _splits_to_embed(
    run: Run, photos: Sequence[Photo], split: str, distance: str, *, calibrate: bool
) -> list[EvaluationSplit]:
    """Return the split to explain, then the calibration items if wanted, then what the served distance is fitted on."""
    splits, protocol = run.splits, run.protocol
    trained = [*splits.fit, *splits.validation]
    by_name = {s.name: s for s in evaluation_splits(photos, unseen=splits.test, trained=trained, protocol=protocol)}
    wanted = [by_name[split]]
    if calibrate:
        wanted.append(make_evaluation_split("calibration", photos, splits.calibration, protocol))
    if distance == SERVED:
        wanted.append(by_name["trained"])
    return wanted


def _model(run: Run) -> EmbeddingModel:
    """Return the best model of a run, on its device and as `evaluate` runs it."""
    model: EmbeddingModel = run.best_model().to(choose_device(run.settings.device))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _embedded(
    model: EmbeddingModel, run: Run, photos: Sequence[Photo], used: np.ndarray, *, progress: bool
) -> tuple[np.ndarray, dict[int, str]]:
    """Return vectors (photos, d), zero where not `used`, and the reasons why photos are unreadable."""
    reader = ForgivingReader([photos[i] for i in used], run.preprocessing)
    embedded = embed_photos(model, reader, len(used), run.preprocessing, progress=progress)
    vectors = np.zeros((len(photos), embedded.shape[1]), dtype=np.float32)
    vectors[used] = embedded
    return vectors, {int(used[row]): reason for row, reason in reader.refused.items()}


def _without(split: EvaluationSplit, unreadable: np.ndarray) -> EvaluationSplit:
    queries, gallery = (part[~np.isin(part, unreadable)] for part in (split.queries, split.gallery))
    if not len(queries) or not len(gallery):
        raise DataError(
            f"no {'gallery' if len(queries) else 'query'} photo of the {split.name} items can be read",
            remedy=f"List all such photos with `{command('data', 'check', 'CATALOGUE')}`, then repair or remove them",
        )
    return EvaluationSplit(split.name, queries, gallery)


def _measured(run: Run, distance: str) -> dict[str, Any] | None:
    """Return the results of `evaluate` for a distance, or None if there are none yet."""
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
            f"{path} cannot be used: {error!r}", remedy=f"Write it again with `{command('evaluate', run.path)}`"
        ) from error
    return chosen


def _notes(explanation: Explanation, split: str, measured: Mapping[str, Any] | None) -> list[str]:
    """Return caveats on the explanation."""
    notes = []
    before = (measured or {}).get("splits", {}).get(split)
    if before:
        now = identification_metrics(explanation.rates) | {"queries": len(explanation.split.queries)}
        differing = [
            f"{name} {before[name]:.3g}, here {now[name]:.3g}"
            for name, most in (("FPIR", DIFFERS), ("TPIR", DIFFERS), ("queries", 0))
            if name in before and not abs(before[name] - now[name]) <= most
        ]
        if differing:
            notes.append(
                f"{MEASURED} is from other photos or another checkpoint ({'; '.join(differing)}): "
                f"run `{command('evaluate', 'RUN')}` again"
            )
    if not explanation.rates.mated_queries:
        notes.append("no query's item has a photo in the gallery, so that misses cannot be measured")
    if explanation.utilities is None:
        notes.append("utilities need at least two items, one of them with two photos")
    return notes
