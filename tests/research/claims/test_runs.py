"""Runs: figures by class agree with the metrics, label noise has its share, and a stopped benchmark continues."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from research.claims.measures import anchored_by_class, opis_of, ranked_by_class, utility_by_class
from research.claims.plan import TCM, run_claim
from research.claims.sets import Held, LabelledSet
from research.claims.store import OutOfTime, Runs, key_of
from research.claims.training import Task, training_labels, vectors_of
from research.claims.verdicts import Comparison, tcm_rows
from retrieval.metrics.consistency import opis
from retrieval.metrics.ranks import map_at_r, recall_at_k

WIDTH, CLASSES, PHOTOS = 8, 40, 6


@pytest.fixture(scope="module")
def small() -> LabelledSet:
    """Return classes around random centres, 40 of each part."""
    generator = np.random.default_rng(0)

    def part() -> tuple[torch.Tensor, np.ndarray]:
        centres = generator.normal(size=(CLASSES, 1, WIDTH))
        photos = (centres + 0.6 * generator.normal(size=(CLASSES, PHOTOS, WIDTH))).reshape(-1, WIDTH)
        return torch.from_numpy(photos).float(), np.repeat(np.arange(CLASSES), PHOTOS)

    fit, held = part(), [part() for _ in range(2)]
    first = np.arange(CLASSES * PHOTOS) % PHOTOS < PHOTOS // 2
    parts = [Held(inputs, labels, first) for inputs, labels in held]
    return LabelledSet("small", fit[0][None], fit[1], *parts, partial(nn.Linear, WIDTH, WIDTH), steps=4, dim=WIDTH)


def test_figures_by_class_average_to_the_metrics(small: LabelledSet) -> None:
    held = small.test
    vectors = vectors_of(nn.Identity(), held)
    found = ranked_by_class(vectors, held.labels)
    both = (vectors, held.labels, vectors, held.labels)
    assert found["R@1"].mean() == pytest.approx(recall_at_k(*both, exclude_self=True)[1])
    assert found["MAP@R"].mean() == pytest.approx(map_at_r(*both, exclude_self=True))
    assert opis_of(utility_by_class(vectors, held.labels)) == pytest.approx(opis(vectors, held.labels).value, rel=1e-6)


def test_anchored_rates_lie_near_the_target_and_below_the_best(small: LabelledSet) -> None:
    held = small.test
    rates = anchored_by_class(vectors_of(nn.Identity(), held), held.labels, held.in_gallery)
    assert all(len(values) == CLASSES for values in rates.values())
    assert 0 < rates["FPIR, anchored"].mean() < 0.15
    assert 0.2 < rates["TPIR, exact"].mean() < 1
    random = np.random.default_rng(1).normal(size=(len(held.labels), WIDTH)).astype(np.float32)
    unit = random / np.linalg.norm(random, axis=1, keepdims=True)
    blind = anchored_by_class(unit, held.labels, held.in_gallery)
    assert blind["TPIR, exact"].mean() < 0.1


def test_noise_changes_the_asked_share_of_labels_and_half_of_the_classes_are_left() -> None:
    labels = np.repeat(np.arange(100), 20)
    rows, noisy = training_labels(labels, Task("smooth_ap", label_noise=0.4), np.random.default_rng(0))
    assert np.mean(noisy != labels[rows]) == pytest.approx(0.4, abs=0.04)
    assert set(noisy) == set(range(100))
    rows, kept = training_labels(labels, Task("smooth_ap", classes=0.5), np.random.default_rng(0))
    assert len(rows) == 1000
    assert set(kept) == set(range(50))


@pytest.mark.slow
def test_a_stopped_benchmark_continues_and_trains_nothing_twice(
    small: LabelledSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("research.claims.plan.TCM_BASES", ("smooth_ap",))
    stopped = Runs(lambda: small, tmp_path, until=time.monotonic() - 1)
    with pytest.raises(OutOfTime):
        run_claim(TCM, stopped, seeds=1)
    runs = Runs(lambda: small, tmp_path)
    run_claim(TCM, runs, seeds=1)
    files = {path: path.read_text() for path in tmp_path.glob("*.json")}
    task = runs.tuned("smooth_ap")
    stored = json.loads(files[tmp_path / f"test-{key_of(task)}.json"])
    assert Task(**stored["task"]) == task

    def unread() -> LabelledSet:
        raise AssertionError("the set is loaded again")

    finished = Runs(unread, tmp_path, until=time.monotonic() - 1)
    run_claim(TCM, finished, seeds=1)
    rows = list(tcm_rows("small", Comparison(finished, 1)))
    assert {path: path.read_text() for path in tmp_path.glob("*.json")} == files
    assert [row[0].split()[1] for row in rows] == ["smooth_ap"]
    assert rows[0][-1] in {"yes", "no", "not decided by this data"}
