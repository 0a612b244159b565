"""Points that serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from retrieval.galleries import points
from retrieval.galleries.points import as_served
from retrieval.measuring.draws import OWN, AllDraws
from retrieval.measuring.point import ESTIMATED, GALLERY, Point
from tests.retrieval.measuring.samples import draws


@pytest.mark.parametrize(("photos", "changed", "known"), [(1000, 0, True), (1000, 10, True), (1000, 11, False)])
def test_rates_are_known_until_more_than_a_hundredth_of_the_photos_has_changed(
    photos: int, changed: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = (photos, 0, photos)
    kept = AllDraws("model", {OWN: draws(np.linspace(0.5, 1, 400), np.arange(400))}, frozenset(), mark=mark)
    monkeypatch.setattr(points, "read_draws", lambda _: kept)
    monkeypatch.setattr(points, "_groups", lambda *_: 400)
    now = SimpleNamespace(mark=mark, changes_since=lambda since: changed if since == mark else photos)
    gallery: Any = SimpleNamespace(snapshot=lambda: now)
    assert (as_served(Point(0.5, ESTIMATED, 0.1, GALLERY), gallery, "model")[1] is not None) == known
    assert as_served(Point(0.5, ESTIMATED, 0.1, GALLERY), gallery, "another model")[1] is None
    assert as_served(Point(0.5, ESTIMATED, 0.1), gallery, "model")[1] is None
