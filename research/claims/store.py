"""Runs on disk, one JSON file each, and the choice of hyper-parameters on validation classes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from .measures import figures, ranked_by_class, summary
from .sets import LabelledSet
from .training import Task, train, vectors_of

# losses with the values that are tried; a name may have arguments of training too (`training.Task`)
GRIDS: dict[str, Sequence[Mapping[str, Any]]] = {
    "smooth_ap": [{"temperature": value} for value in (0.01, 0.03, 0.1)],
    "recall_at_k": [{"similarity_temperature": value} for value in (0.01, 0.03)],
    "proxy_nca": [{"scale": value} for value in (4.5, 9.0, 16.0)],
    "arcface": [{"scale": s, "margin": m} for s, m in ((16.0, 0.3), (32.0, 0.3))],
    "proxy_anchor": [{"margin": value} for value in (0.1, 0.3)],
    "vmf_nca": [{"samples": 5, "concentration": c, "norm": n} for c, n in ((20.0, 20.0), (50.0, 60.0))],
    "multi_similarity": [{"base": value} for value in (0.5, 0.7)],
    "contextual_sum": [{"contextual_weight": value} for value in (0.4, 0.8, 0.95)],
    "class_averaged_contrastive": [{"positive_margin": p, "negative_margin": n} for p, n in ((0.02, 0.3), (0.2, 0.6))],
    "mean_field_contrastive": [
        {"positive_margin": p, "negative_margin": n, "proxy_rate": rate}
        for (p, n), rate in itertools.product(((0.02, 0.3), (0.2, 0.6)), (0.01, 0.2))
    ],
    "class_wise_multi_similarity": [{"delta": value} for value in (0.2, 0.5)],
    "mean_field_class_wise_multi_similarity": [
        {"delta": delta, "proxy_rate": rate} for delta, rate in itertools.product((0.2, 0.5), (0.01, 0.2))
    ],
}
JOINT, JOINT_WEIGHTS = "vmf_nca + anchor", (0.3, 1.0, 3.0)
PAPER_MARGINS = (0.9, 0.5)
WEIGHTS = (0.3, 3.0, 10.0)  # of TCM, tried beside 1 with the best margins
TOLERANCE = 0.01  # loss of R@1 that still counts as none
VALIDATION, TEST = "validation", "test"


class OutOfTime(Exception):
    """Raised when the time for new trainings is over; finished runs are stored."""


class Runs:
    """Figures of tasks on one set: read from files, else trained and stored."""

    def __init__(self, load: Callable[[], LabelledSet], folder: Path, *, until: float = float("inf")) -> None:
        self._load, self._folder, self._until = load, folder, until
        self._data: LabelledSet | None = None
        self._known: dict[Path, dict[str, Any]] = {}

    def validation(self, task: Task) -> dict[str, Any]:
        """Return R@1, OPIS and similarity quantiles on the validation classes."""
        return self._figures(task, VALIDATION)

    def test(self, task: Task) -> dict[str, Any]:
        """Return the figures by test class; those of a curve are R@1 at each checkpoint (C, T)."""
        return self._figures(task, TEST)

    def tuned(self, loss: str) -> Task:
        """Return the task of a loss with the arguments of highest R@1 on the validation classes of seed 0."""
        if loss == JOINT:
            base = self.tuned("vmf_nca")
            grid = [Task("vmf_nca", {**base.arguments, "anchor_weight": weight}) for weight in JOINT_WEIGHTS]
        else:
            grid = [Task(loss, arguments) for arguments in GRIDS[loss]]
        return max(grid, key=lambda task: self.validation(task)["R@1"])

    def tuned_tcm(self, task: Task) -> Task:
        """Return a task with the margins and weight of TCM of the lowest validation OPIS at no loss of R@1.

        Where all lose R@1, those that lose least.
        """
        bare = self.validation(task)
        first = self._best_tcm([dataclasses.replace(task, tcm=(*m, 1.0)) for m in margins_for(bare)], bare["R@1"])
        assert first.tcm is not None  # noqa: S101, for mypy
        others = [dataclasses.replace(task, tcm=(*first.tcm[:2], weight)) for weight in WEIGHTS]
        return self._best_tcm([first, *others], bare["R@1"])

    def _best_tcm(self, grid: Sequence[Task], bare: float) -> Task:
        found = [(task, self.validation(task)) for task in grid]
        allowed = [pair for pair in found if pair[1]["R@1"] >= bare - TOLERANCE]
        if not allowed:
            return max(found, key=lambda pair: pair[1]["R@1"])[0]
        return min(allowed, key=lambda pair: pair[1]["OPIS"])[0]

    def _figures(self, task: Task, part: str) -> dict[str, Any]:
        path = self._folder / f"{part}-{key_of(task)}.json"
        if path not in self._known:
            if not path.exists():
                self._write(path, task, self._run(task, part))
            self._known[path] = json.loads(path.read_text(encoding="utf-8"))["figures"]
        return self._known[path]

    def _run(self, task: Task, part: str) -> dict[str, Any]:
        if time.monotonic() > self._until:
            raise OutOfTime(f"stopped before {task}")
        data = self.data
        if part == VALIDATION:
            vectors = vectors_of(train(data, task), data.validation)
            return summary(vectors, data.validation.labels)
        curve: list[list[float]] = []

        def watch(model: nn.Module) -> None:
            by_class = ranked_by_class(vectors_of(model, data.test), data.test.labels)
            curve.append(by_class["R@1"].round(5).tolist())

        model = train(data, task, watch=watch)
        if task.curve:
            return {"curve": curve}
        return figures(vectors_of(model, data.test), data.test.labels, data.test.in_gallery)

    @property
    def data(self) -> LabelledSet:
        """Return the set, loaded at the first use."""
        if self._data is None:
            self._data = self._load()
        return self._data

    def _write(self, path: Path, task: Task, figures: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".partial")
        aside.write_text(json.dumps({"task": dataclasses.asdict(task), "figures": figures}), encoding="utf-8")
        aside.replace(path)
        print(f"{path.parent.name}: {task}", flush=True)


def key_of(task: Task) -> str:
    """Return the name of a task's file; equal tasks have the same name."""
    text = json.dumps(dataclasses.asdict(task), sort_keys=True)
    return f"{task.loss}-{task.seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def margins_for(bare: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return margins (positive, negative) to try with a loss: the paper's, and those at its own similarities.

    The negative margin is the cosine at a false-accept rate of 10 % or 1 %, the positive one that of 1 % (Appendix
    A.3.1 of the paper) or the median of positive pairs, on the validation classes.
    """
    negative, positive = bare["quantiles"]["negative"], bare["quantiles"]["positive"]
    far_10, far_1, median = (negative[90], negative[99], positive[50])  # SHARES has one value per percent
    pairs = [PAPER_MARGINS, (far_1, far_10), (max(median, far_1), far_1), (max(median, far_10), far_10)]
    return list(dict.fromkeys((round(p, 3), round(n, 3)) for p, n in pairs))
