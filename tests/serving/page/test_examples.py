"""Examples on the page: photos of the gallery, evenly spaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.gallery import Gallery
from serving.page.page import _evenly_spaced
from tests.index.vectors import filled


@pytest.mark.parametrize("count", [1, 2, 5, 7, 36, 37, 100])
def test_photos_that_are_evenly_spaced_lie_in_the_middles_of_equal_parts(tmp_path: Path, count: int) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p3", "p17", "p30"])
        now = gallery.snapshot()
    live, parts = np.flatnonzero(now.live), min(count, 37)
    assert _evenly_spaced(now, count).tolist() == [int(live[int((part + 0.5) * 37 / parts)]) for part in range(parts)]


def test_an_empty_gallery_has_no_evenly_spaced_photos(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=2, embedding_id="e") as gallery:
        assert _evenly_spaced(gallery.snapshot(), 3).tolist() == []
