"""Tables of trainers on the same features: metrics, gains with intervals clustered by item, and CPU seconds.

Symbols: b = resamples of the items, n = queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from retrieval.catalogue.read import Photo
from retrieval.metrics.identification import SearchScores, search_scores

from .anchoring import TARGET, Data, repeat_exact
from .pretrained import in_gallery
from .tables import NONE, Recorder

RESAMPLES, REPETITIONS = 300, 20
TIMED = 2  # the first trainers, whose time is recorded
METRICS = ("R@1", "MAP@R", "TPIR at exactly 0.05", "OPIS")
SHARES = (0.5, 0.7, 0.9)  # of the highest mean TPIR of the first trainer

Results = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
Floats = np.ndarray


def weighted_tpir(unknown: SearchScores, known: SearchScores, weights: Mapping[str, Floats]) -> Floats:
    """Return the TPIR at exactly the target (b,) for several weights (b,) of each item.

    The threshold is that of the weighted searches for unknown items, each item weighted as a whole.
    """
    _, codes, counts = np.unique(unknown.labels, return_inverse=True, return_counts=True)
    order = np.argsort(unknown.impostor, kind="stable")
    each = np.stack([weights[str(item)] for item in unknown.labels], axis=1) / counts[codes]
    accepted = np.cumsum(each[:, order], axis=1) / np.maximum(each.sum(axis=1, keepdims=True), 1e-12)
    excess = np.append(unknown.impostor[order], np.inf)[(accepted <= TARGET + 1e-9).sum(axis=1)]
    found = (known.own < excess[:, None]) & (known.own < known.impostor)
    share = np.stack([weights[str(item)] for item in known.labels], axis=1)
    return np.asarray((found * share).sum(axis=1) / np.maximum(share.sum(axis=1), 1e-12))


def resampled(items: Sequence[str], *, seed: int = 0) -> dict[str, Floats]:
    """Return weights (b + 1,) of each item: one for the measured data, then how often each resample draws it."""
    generator, names = np.random.default_rng(seed), sorted(set(items))
    drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES)
    return dict(zip(names, np.concatenate([np.ones((1, len(names))), drawn]).T, strict=True))


def measures(vectors: Floats, photos: Sequence[Photo], weights: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return R@1, MAP@R and TPIR (b + 1,) of unit vectors of untrained items, for weights of the items."""
    items, shown = np.array([photo.item_id for photo in photos]), in_gallery(photos)
    data = Data("untrained", vectors, items, shown)
    asked, gallery = ~shown, shown
    scores = search_scores(vectors[asked], items[asked], vectors[gallery], items[gallery])
    each = np.stack([weights[str(item)] for item in items[asked]], axis=1)
    values = {"R@1": scores.own < scores.impostor, "MAP@R": _precision(vectors, items, asked, gallery)}
    found = {name: (each * value).sum(axis=1) / each.sum(axis=1) for name, value in values.items()}
    runs = [repeat_exact(data, number) for number in range(REPETITIONS)]
    found["TPIR at exactly 0.05"] = np.mean([weighted_tpir(run.unknown, run.known, weights) for run in runs], axis=0)
    return found


def _precision(vectors: Floats, items: Floats, asked: Floats, gallery: Floats) -> Floats:
    """Return the average precision at R of each query (n,), for R photos of its item in the gallery."""
    order = np.argsort(-(vectors[asked] @ vectors[gallery].T), axis=1, kind="stable")
    right = items[gallery][order] == items[asked][:, None]
    ranks = np.arange(1, right.shape[1] + 1)
    wanted = right.sum(axis=1, keepdims=True)
    precision = np.cumsum(right, axis=1) / ranks * right * (ranks <= wanted)
    return np.asarray(precision.sum(axis=1) / wanted[:, 0])


def gain(one: Floats, other: Floats) -> str:
    """Return the mean difference over seeds with its 95 % interval, of measures (seeds, b + 1).

    Resampling draws items and seeds; both trainers get the same draws.
    """
    difference = one - other
    generator = np.random.default_rng(0)
    seeds = generator.integers(len(difference), size=(difference.shape[1] - 1, len(difference)))
    drawn = difference[seeds, np.arange(1, difference.shape[1])[:, None]].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{difference[:, 0].mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def paired(one: Floats, other: Floats) -> str:
    """Return the mean difference with its 95 % interval of Student's t over seeds."""
    difference = one - other
    if len(difference) < 2:
        return f"{difference.mean():+.4f}"
    half = stats.t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / np.sqrt(len(difference))
    return f"{difference.mean():+.4f} ± {half:.4f}"


def seconds_to(curve: Sequence[Mapping[str, float]], level: float) -> float:
    """Return the CPU seconds after which the mean TPIR first reaches a level; infinity if it never does."""
    return next((float(point["seconds"]) for point in curve if point["mean TPIR"] >= level), np.inf)


def record_tables(results: Results, photos: Mapping[str, Sequence[Photo]], record: Recorder) -> None:
    """Record the metrics of each trainer, what the first one gains over the others, and the time."""
    names = list(dict.fromkeys(data for data, _ in results))
    measured: dict[tuple[str, str], dict[str, Floats]] = {}
    for (data, trainer), runs in results.items():
        weights = resampled([photo.item_id for photo in photos[data]])
        found = [measures(run["vectors"], photos[data], weights) for run in runs]
        measured[data, trainer] = {name: np.stack([each[name] for each in found]) for name in METRICS[:3]}
    record.table("untrained items", ("data and trainer", *METRICS, "epochs kept", "seeds"))
    for (data, trainer), runs in results.items():
        cells = [_spread(measured[data, trainer][name][:, 0], 3) for name in METRICS[:3]]
        cells.append(_spread(np.array([run["metrics"]["OPIS"] for run in runs]), 4))
        kept = ", ".join(str(run["epoch"]) for run in runs)
        record.add(f"{data}, {trainer}", *cells, kept, str(len(runs)))
    record.table("gains", ("gain of ours", *METRICS))
    for data in names:
        first, *others = [trainer for where, trainer in results if where == data]
        for other in others:
            both = min(len(results[data, first]), len(results[data, other]))
            pair = [{name: values[:both] for name, values in measured[data, each].items()} for each in (first, other)]
            opis = [np.array([run["metrics"]["OPIS"] for run in results[data, each][:both]]) for each in (first, other)]
            record.add(f"{data}, over {other}", *(gain(pair[0][n], pair[1][n]) for n in METRICS[:3]), paired(*opis))
    _record_time(results, names, record)


def _record_time(results: Results, names: Sequence[str], record: Recorder) -> None:
    """Record the median CPU seconds to shares of the first trainer's highest mean TPIR, and of a whole training."""
    shares = (f"CPU time to {share:.0%} of our highest" for share in SHARES)
    columns = ("data and trainer", "mean TPIR of the start", *shares, "whole training", "highest mean TPIR")
    record.table("time", columns)
    for data in names:
        trainers = [trainer for where, trainer in results if where == data]
        best = _median(results[data, trainers[0]], _highest)
        for trainer in trainers[:TIMED]:
            runs = results[data, trainer]
            reached = [_median(runs, partial(seconds_to, level=share * best)) for share in SHARES]
            start = _median(runs, lambda curve: float(curve[0]["mean TPIR"]))
            whole = _median(runs, lambda curve: float(curve[-1]["seconds"]))
            shown = [f"{value:.2f} s" if np.isfinite(value) else NONE for value in (*reached, whole)]
            record.add(f"{data}, {trainer}", f"{start:.3f}", *shown, f"{_median(runs, _highest):.3f}")


def _median(runs: Sequence[Mapping[str, Any]], measure: Callable[[Sequence[Mapping[str, float]]], float]) -> float:
    return float(np.median([measure(run["curve"]) for run in runs]))


def _highest(curve: Sequence[Mapping[str, float]]) -> float:
    return max(float(point["mean TPIR"]) for point in curve)


def _spread(values: Floats, digits: int) -> str:
    spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"
