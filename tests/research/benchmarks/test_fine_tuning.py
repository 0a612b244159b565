"""Benchmark of fine-tuning: the items of a training never measure it, and gains are those over the head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from research.benchmarks.fine_tuning import FOLDS, HEAD, LONG, UNTRAINED, Cell, measured, record_part
from research.benchmarks.tables import Recorder, parser_of
from retrieval.catalogue.read import Photo

ITEMS, PHOTOS, DIM = 24, 4, 6


@pytest.fixture(scope="module")
def photos() -> list[Photo]:
    """Return photos of items of which two thirds are for training."""
    return [
        Photo(
            photo_id=f"{item}-{number}",
            item_id=f"item {item}",
            path=Path(f"{item}-{number}.jpg"),
            partition="train" if item % 3 else "test",
            role="gallery" if number % 2 else "query",
        )
        for item in range(ITEMS)
        for number in range(PHOTOS)
    ]


def test_a_fold_is_measured_by_the_training_items_that_it_was_not_trained_on(photos: list[Photo]) -> None:
    held = []
    for fold in FOLDS:
        splits, rest = measured(photos, fold)
        assert splits is not None
        assert {photo.partition for photo in rest} == {"train"}
        assert not set(splits.fit) & {photo.item_id for photo in rest}
        held += [photo.item_id for photo in rest]
    assert len(set(held)) * PHOTOS == len(held) == sum(photo.partition == "train" for photo in photos)
    assert {photo.partition for photo in measured(photos, UNTRAINED)[1]} == {"test"}


def test_gains_are_over_the_head(photos: list[Photo], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    items = np.array([int(photo.item_id.split()[1]) for photo in photos])
    cells = {recipe: Cell("drawn", UNTRAINED, recipe, 0) for recipe in (HEAD, LONG)}
    for recipe, noise in ((HEAD, 1.5), (LONG, 0.1)):
        vectors = generator.normal(size=(ITEMS, DIM))[items] + noise * generator.normal(size=(len(items), DIM))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        facts = json.dumps({"epoch": 3, "seconds": 90.0})
        np.savez(cells[recipe].path(tmp_path), vectors=vectors, facts=facts)
    arguments = parser_of(None).parse_args(["--results", str(tmp_path / "made.json")])
    with Recorder("made", arguments) as record:
        record.table("figures", ("a", "b", "c", "d", "e", "f", "g"))
        gains = record_part(cells, photos, tmp_path, record)
    assert [row[0] for row in gains] == ["drawn, untrained items, last blocks, 240 steps"]
    assert float(gains[0][1].split()[0]) > 0.1
    assert float(gains[0][4]) < 0  # OPIS falls
