"""Draws of a gallery: which items the model was fitted on, and that all is read of one version."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from index.gallery import Gallery
from index.groups import GROUP, group_key, groups_by_item
from index.search.item_distance import NEAREST_PHOTO
from retrieval.bundle.fitted import Fitted
from retrieval.galleries import measured
from retrieval.galleries.kept import Kept
from retrieval.galleries.measured import TRIES, draw_gallery
from retrieval.measuring.draws import OWN, PROBE, AllDraws, Probes
from tests.index.vectors import DIM, unit
from tests.retrieval.measuring.test_drawing import LINE, at, shop


def bundle(fitted: Fitted, probes: Probes | None = None) -> Any:
    """Return what draws need of a bundle, with some probes as its calibration photos."""
    calibration = None
    if probes is not None:
        scores = SimpleNamespace(labels=np.array(probes.items))
        photo_ids = np.array(probes.ids)
        queries = {"vectors": probes.vectors, "photo_ids": photo_ids, "looks": None}
        calibration = SimpleNamespace(scores=scores, gallery=probes, **queries)
    return SimpleNamespace(
        fitted=fitted,
        calibration=calibration,
        calibration_features={},
        features_key="",
        folds_key="",
        text_key="",
        looks_twice=False,
        verifier=None,
        item_distance=NEAREST_PHOTO,
        draws_id="m",
    )


def drawn(gallery: Gallery, fitted: Collection[str] = (), contents: Collection[str] = (), **given: Any) -> AllDraws:
    """Return the draws of a gallery by a model that was fitted on some items and photos."""
    return draw_gallery(bundle(Fitted.of(fitted, contents), **given), gallery)[1]


def test_items_of_the_group_of_a_fitted_one_are_not_drawn_but_found(tmp_path: Path) -> None:
    """A new colour of a product that the model was fitted on is as far from other products as the old colour."""
    groups = {"a": "mug", "c": "mug", "d": "cup", "e": "cup"}
    items = ["c", "a", "b", "e", "d", "c", "b", "a", "f"]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        abouts = [{GROUP: groups[item]} if item in groups else {} for item in items]
        gallery.add([f"p{row}" for row in range(9)], items, unit(9, 8), metadata=abouts)
        made = drawn(gallery, ["a"])
        assert made.fitted == {"a", "c"}
        assert set(made.sources[OWN].items) == {"b", "d", "e", "f"}
        assert {"a", "c"} & set(made.sources[OWN].nearest_items.tolist())
        assert drawn(gallery, ["b"]).fitted == {"b"}
        probes = Probes(unit(3, 5), ["x", "y", "z"], ["new mug", "new jar", "a"], groups=["mug", "jar", "mug"])
        asked = drawn(gallery, ["a"], probes=probes).sources[PROBE]
        assert set(asked.items) == {"new jar", "a"}  # those of fitted items are left out where a threshold is set


def test_variants_of_fitted_items_that_are_gone_are_not_drawn(tmp_path: Path) -> None:
    """A bundle knows the groups of the items that its model was fitted on."""
    groups = {"c": "mug", "b": "jar"}
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        items = ["c", "b", "d", "c", "e", "b"]
        abouts = [{GROUP: groups[item]} if item in groups else {} for item in items]
        gallery.add([f"p{row}" for row in range(6)], items, unit(6, 8), metadata=abouts)
        seen = {group_key("", "mug"), group_key("", "cup"), "gone"}
        probes = Probes(unit(3, 5), ["x", "y", "z"], ["new mug", "new cup", "new jar"], groups=["mug", "cup", "jar"])
        made = drawn(gallery, seen, probes=probes)
    assert made.fitted == {"c"}
    assert set(made.sources[OWN].items) == {"b", "d", "e"}
    assert set(made.sources[PROBE].items) == {"new jar"}


def test_the_group_of_an_item_is_that_of_its_first_photo(tmp_path: Path) -> None:
    """Later photos may come from a table that names no groups, or others."""
    photos = [("c", "mug"), ("a", "mug"), ("b", "jar"), ("c", ""), ("b", "mug"), ("d", ""), ("d", "mug")]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        for row, (item, group) in enumerate(photos):
            gallery.add([f"p{9 - row}"], [item], unit(1, row), metadata=[{GROUP: group} if group else {}])
        assert groups_by_item(gallery.values(GROUP)) == {"c": "mug", "a": "mug", "b": "jar", "d": ""}
        assert drawn(gallery, ["a"]).fitted == {"a", "c"}


def test_draws_are_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes an item while what the draws are made of is read."""
    probes = Probes(np.stack([at(11.0)]), ["q"], ["b"], groups=[""])
    with shop(tmp_path / "g", LINE) as writer, Gallery.open(tmp_path / "g", read_only=True) as reader:

        def removed_meanwhile(*_: object) -> None:
            writer.remove(item_ids=["b"])

        monkeypatch.setattr(measured, "read_parts", removed_meanwhile)
        made = drawn(reader, probes=probes)
        assert made.sources[PROBE].nearest_items.tolist() == ["a"]
        assert reader.snapshot().changes_since(made.mark) == 0  # that of the version after the removal
        assert made.version == reader.version


def test_what_was_read_of_one_version_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process would remove an item during the last of the readings."""
    probes, read = Probes(np.stack([at(11.0)]), ["q"], ["b"], groups=[""]), []
    with shop(tmp_path / "g", LINE) as writer, Gallery.open(tmp_path / "g", read_only=True) as reader:

        def removed_at_last(gallery: Gallery, _: Kept) -> None:
            read.append(gallery)
            if len(read) == TRIES:
                writer.remove(item_ids=["b"])

        monkeypatch.setattr(measured, "read_parts", removed_at_last)
        made = drawn(reader, probes=probes)
        assert made.sources[PROBE].nearest_items.tolist() == ["a"]  # b is left out of the search for it
        assert reader.snapshot().changes_since(made.mark) == 0
    assert len(read) == 1


def test_an_item_is_fitted_if_the_model_was_fitted_on_any_of_its_photos(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        for photo_id, (item, _) in LINE.items():
            assert drawn(gallery, contents=[photo_id]).fitted == {item}
        gallery.remove(item_ids=["b"])
        assert drawn(gallery, contents=["b0"]).fitted == set()
