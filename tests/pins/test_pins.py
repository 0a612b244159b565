"""Ten galleries are measured and answer as they did before the redesign, to the last digit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from .galleries import GALLERIES
from .layers import LAYERS
from .record import differences, measured, read, table


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("gallery", GALLERIES)
def test_a_gallery_is_as_it_was(gallery: str, tmp_path: Path, test_data: Path) -> None:
    now = measured(gallery, tmp_path, test_data)
    found = {layer: list(differences(read(layer)[gallery], now[layer])) for layer in LAYERS}
    told = [
        f"{layer}: {len(some)} differences (recorded → now)\n{table(some)}" for layer, some in found.items() if some
    ]
    assert not told, "\n".join([gallery, *told])


def test_a_difference_in_the_last_digit_is_reported() -> None:
    recorded = {"first": {"evidence": {"fpir": 0.1}, "found": [1, math.inf]}, "gone": 1}
    now = {"first": {"evidence": {"fpir": 0.1, "new": 2}, "found": [1.0, math.inf]}, "more": 2}
    assert list(differences(recorded, now)) == [
        ("first › found[0]", "1", "1.0"),
        ("gone", "1", "nothing"),
        ("more", "nothing", "2"),
    ]
    now = {"first": {"evidence": {"fpir": math.nextafter(0.1, 1)}, "found": [1, math.inf]}, "gone": 1}
    assert list(differences(recorded, now)) == [("first › evidence › fpir", "0.1", "0.10000000000000002")]
