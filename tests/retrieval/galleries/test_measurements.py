"""Measurements of a gallery: their summaries, and how they are written."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from retrieval.galleries.kept import Kept
from retrieval.galleries.measured import GalleryMeasurement
from retrieval.measuring.draws import OWN
from retrieval.measuring.measure import Measurement
from retrieval.measuring.point import CERTIFIED, ESTIMATED, GALLERY, Point
from tests.retrieval.measuring.samples import all_draws, draws, set_point


@pytest.mark.parametrize(
    ("items", "status", "told"),
    [
        (5, ESTIMATED, "its FPIR no longer"),
        (40, ESTIMATED, r"its FPIR of 7\d\.\d% no longer"),
        (40, CERTIFIED, r"its FPIR of up to 8\d\.\d% no longer"),
    ],
)
def test_a_proposal_says_that_a_threshold_was_tightened_with_its_rate_if_there_is_one(
    items: int, status: str, told: str
) -> None:
    source = draws(np.linspace(0.1, 0.5, items), np.arange(items))
    before, point = Point(0.4, status, 0.1, GALLERY), Point(0.2, status, 0.1, GALLERY)
    kept = all_draws({OWN: source})
    summary = GalleryMeasurement(SimpleNamespace(), Measurement(kept, point), before, before).summary()  # type: ignore[arg-type]
    assert re.search(f"tightened from 0.4000 to 0.2000, because {told} kept the target of 10.0%", summary)


def test_a_proposal_says_that_a_threshold_is_certified_no_longer() -> None:
    kept = all_draws({OWN: draws(np.linspace(0.3, 0.5, 40), np.arange(40))})
    before, point = Point(0.2, CERTIFIED, 0.1, GALLERY), Point(0.2, ESTIMATED, 0.1, GALLERY)
    summary = GalleryMeasurement(SimpleNamespace(), Measurement(kept, point), before, before).summary()  # type: ignore[arg-type]
    assert summary == "The threshold 0.2000 is no longer certified: it is estimated for the items left."


def test_a_proposal_is_written_under_the_lock_of_the_gallery() -> None:
    source, called = draws(np.linspace(0.5, 1, 40), np.arange(40)), []

    class Calls:
        def lock(self) -> None:
            called.append("lock")

        def keep(self, contents: dict[str, bytes], action: str, *, actor: str | None) -> None:
            called.append(f"keep {', '.join(contents)}: {action} by {actor}")

        def kept(self, name: str) -> None:
            assert called == ["lock"], name  # nothing is compared before the lock is held

    point, bundle, gallery = set_point({OWN: source}, 0.1, items=40), SimpleNamespace(), Calls()
    kept = all_draws({OWN: source})
    found = GalleryMeasurement(bundle, Measurement(kept, point), point, point, made_of=(hash(None),) * 5)  # type: ignore[arg-type]
    found.write(gallery, actor="me")  # type: ignore[arg-type]
    assert called == ["lock", f"keep {Kept.DRAWS}: measure the threshold by me"]
