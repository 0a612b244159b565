"""Twins: pairs of items that look like one item under two ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.gallery import Gallery
from index.groups import GROUP
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import Draws
from retrieval.measuring.twins import suspected_twins
from tests.index.vectors import DIM
from tests.retrieval.measuring.samples import sample
from tests.retrieval.measuring.test_drawing import shop


def split_products(path: Path, seed: int, *, groups: bool = False) -> tuple[Gallery, set[tuple[str, str]]]:
    """Return a gallery of 40 products with 2 to 5 photos per id, and the pairs of ids of the ten that have two."""
    generator = np.random.default_rng(seed)
    names, centres = generator.permutation(100)[:50].tolist(), generator.normal(size=(40, DIM))
    centres = np.concatenate([centres, centres[:10]])
    gallery = Gallery.create(path, dim=DIM, embedding_id="e")
    for row in generator.permutation(50).tolist():
        count = int(generator.integers(2, 6))
        vectors = centres[row] + generator.normal(0, 0.2, size=(count, DIM))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        metadata = [{GROUP: f"product {row % 40}"} if groups else {}] * count
        gallery.add(
            [f"{names[row]}/{n}" for n in range(count)], [f"id{names[row]}"] * count, vectors, metadata=metadata
        )
    pairs = [sorted((f"id{names[row]}", f"id{names[row + 40]}")) for row in range(10)]
    return gallery, {(one, other) for one, other in pairs}


def test_most_products_under_two_ids_are_suspected_and_hardly_any_other_pair(tmp_path: Path) -> None:
    found, false = 0, 0
    for seed in range(5):
        gallery, pairs = split_products(tmp_path / f"g{seed}", seed)
        with gallery:
            suspects = suspected_twins(Drawing(gallery.snapshot(), ItemDistance()).own())
        assert suspects == sorted(suspects)
        found, false = found + len(pairs & set(suspects)), false + len(set(suspects) - pairs)
    assert found >= 40  # of 50
    assert false <= 1


def test_two_ids_of_one_group_are_not_suspected(tmp_path: Path) -> None:
    gallery, pairs = split_products(tmp_path / "g", 0, groups=True)
    with gallery:
        suspects = suspected_twins(Drawing(gallery.snapshot(), ItemDistance()).own())
    assert not pairs & set(suspects)


def test_items_with_one_photo_are_suspected_only_if_it_is_a_copy(tmp_path: Path) -> None:
    photos = {"b0": ("b", 0.0), "a0": ("a", 5.0), "d0": ("d", 40.0), "c0": ("c", 65.0), "e0": ("e", 120.0)}
    with shop(tmp_path / "g", photos) as gallery:
        suspects = suspected_twins(Drawing(gallery.snapshot(), NEAREST_PHOTO).own())
    assert suspects == [("a", "b")]  # c and d are the nearest of each other, too


@pytest.mark.parametrize(
    ("count", "found", "before", "suspected"),
    [(8, 6, 3, True), (8, 8, 3, True), (8, 5, 5, False), (8, 6, 2, False), (8, 8, 8, True), (20, 15, 6, True)],
)
def test_two_items_are_suspected_by_three_quarters_and_three_tenths_of_their_draws(
    count: int, found: int, before: int, suspected: bool
) -> None:
    """Of the draws of `b` and as many of `a`, some find the other item, and some of these find it before their own."""
    order = np.random.default_rng(found).permutation(count)
    items = np.array(["b", "a"] * (count // 2))
    other = np.where(np.arange(count) < found, np.array(["a", "b"] * (count // 2)), [f"x{i}" for i in range(count)])
    wrong = np.where(np.arange(count) < before, 0.3, np.inf)
    near = np.full(count, 0.4)
    made = sample(items, near, nearest_items=other, own=near, own_plain=near, wrong=wrong)
    chosen = Draws(**{name: values[order] for name, values in made.arrays().items()})
    assert suspected_twins(chosen) == ([("a", "b")] if suspected else [])
