"""The file of a promise suffices for other languages: decisions in plain Python, by the steps that `neighbours` names.

Nothing of this project and no numpy takes part in them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.promise.promise import Promise

from .shops import measured, promise_of, queries_of, shop

ROOT = math.sqrt(2)


@dataclass(frozen=True)
class Plain:
    """What a program in another language reads: the JSON, and the arrays of the .npz file as lists."""

    values: dict[str, Any]
    arrays: dict[str, list[Any]]

    def decide(self, query: list[float], neighbours: list[tuple[str, float]]) -> tuple[str, dict[str, float]]:
        """Return the item that matches, or "", and the item distances by item, best first."""
        length = math.sqrt(sum(x * x for x in query))
        query = [x / length for x in query]
        rows = {item: row for row, item in enumerate(self.arrays["ids"])}
        near: dict[str, float] = {}
        for item, score in sorted(neighbours, key=lambda pair: -pair[1]):
            near.setdefault(item, self.plain(score))
        last = max(self.plain(score) for _, score in neighbours)
        to_mean, average = dict(near), {}
        for item, row in rows.items():
            mean = self.arrays["means"][row]
            size = math.sqrt(sum(x * x for x in mean))
            to_mean[item] = math.sqrt(sum((x - y / size) ** 2 for x, y in zip(query, mean, strict=True)))
            average[item] = sum(x * y for x, y in zip(query, mean, strict=True)) * self.arrays["cosines"][row]
        absent = [item for item in rows if item not in near]
        is_partial = any(average[item] > 1 - last**2 / 2 + 0.002 for item in absent)
        added = sum(item not in rows for item in near)
        is_short = is_partial or len(near) < min(24, len(rows) + added)
        answers = list(near)[:24]
        rivals = [*near, *absent] if is_short else answers
        for item in absent:
            near[item] = min(last, math.sqrt(max(0, 2 - 2 * average[item])))
        own = {item: self.own(near[item], to_mean[item]) for item in rivals}
        groups = {item: self.arrays["groups"][rows[item]] if item in rows else item for item in rivals}
        answers.sort(key=lambda item: own[item])
        distances = {}
        for item in answers:
            others = sorted(min(max(own[each], 0), ROOT) for each in rivals if groups[each] != groups[item])
            gaps = [ROOT - each for each in others[:5]] + [0.0]
            constants = self.values["item_distance"]
            surcharge = constants["rival"] * gaps[0] + constants["rivals"] * sum(gaps) / 5
            distances[item] = max(0.0, own[item] + surcharge)
        is_first = is_partial or not is_short or all(own[answers[0]] < own[item] for item in absent)
        matches = distances[answers[0]] <= self.threshold and is_first
        return answers[0] if matches else "", distances

    @property
    def threshold(self) -> float:
        (level,) = (each for each in self.values["thresholds"] if each["target_fpir"] == self.values["target_fpir"])
        return float(level["item_distance"]["threshold"])

    def plain(self, score: float) -> float:
        assert self.values["metric"] == "cosine"
        return math.sqrt(max(0, 2 - 2 * score))

    def own(self, nearest: float, mean: float) -> float:
        constants = self.values["item_distance"]
        copy = max(0, 1 - nearest / constants["copy"])
        return float(constants["nearest"] * nearest + constants["mean"] * mean - 3 * copy)


@pytest.mark.parametrize("k", [1, 7, 25, 1000])
def test_plain_python_has_the_item_distances_and_decisions_of_the_program(tmp_path: Path, k: int) -> None:
    """Also of copies, of items of one group, of items that the file does not know, and behind a filter."""
    here = shop(41, items=60, largest=20)
    promise_of(here, target_fpir=0.1).save(tmp_path / "p")
    with np.load(tmp_path / "p.npz") as file:
        arrays = {name: file[name].astype(float if name == "means" else file[name].dtype).tolist() for name in file}
    plain = Plain(json.loads((tmp_path / "p").read_text()), arrays)
    promise = Promise.load(tmp_path / "p")
    assert promise.means is not None
    matched = 0
    for number, query in enumerate(queries_of(here, 18)):
        neighbours = here.neighbours(query, k)
        if number % 3 == 1:
            neighbours = [("new", neighbours[0][1] - 1e-3), *neighbours]
        if number % 3 == 2:
            hidden = neighbours[0][0]
            neighbours = [pair for pair in here.neighbours(query, 2 * k) if pair[0] != hidden][:k]
        if not neighbours:
            continue
        item, distances = plain.decide(query.tolist(), neighbours)
        found = measured(promise.means, query, neighbours)
        assert distances == pytest.approx(dict(zip(found.items, found.distances.tolist(), strict=True)), abs=1e-6)
        assert [*distances] == found.items
        answer = promise.decide(query, neighbours)
        if answer.reason != "twins":
            assert (answer.item_id or "") * answer.matched == item
        matched += answer.matched
    assert matched or k == 1
