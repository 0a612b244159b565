"""The list of what a model was fitted on: what it contains, and its bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from retrieval.bundle.fitted import Fitted, content_hash

BOX = (0.0, 0.0, 5.0, 5.0)


def test_a_photo_is_its_file_and_its_box() -> None:
    hashes = {content_hash(data, box) for data in (b"one", b"two") for box in (None, BOX, (0.0, 0.0, 5.0, 6.0))}
    assert len(hashes) == 6
    assert content_hash(b"one", None) == hashlib.sha256(b"oneNone").hexdigest()  # galleries keep it


def test_items_and_photos_are_told_apart_and_survive_packing() -> None:
    photo = content_hash(b"one", BOX)
    fitted = Fitted.of(["b", "a", "b"], [photo, photo])
    for read in (fitted, Fitted.unpack(fitted.pack())):
        assert (len(read.items), len(read.photos)) == (2, 1)
        assert read.contains("a", None)
        assert read.contains("new", photo)
        assert read.contains("b", content_hash(b"two", BOX))
        assert not read.contains("new", None)
        assert not read.contains("new", content_hash(b"two", BOX))
        assert not read.contains(photo, "a")  # an item id is no photo, a photo no item id


def test_the_hashes_are_the_first_eight_bytes_of_sha256() -> None:
    """Bundles that are there already hold them so."""
    fitted = Fitted.of(["a"], [])
    assert fitted.items.tolist() == [0xCA978112CA1BBDCA]  # sha256("a") begins so
    assert (fitted.items.dtype, fitted.photos.dtype) == (np.uint64, np.uint64)


def test_a_photo_that_several_fold_models_were_not_fitted_on_has_no_fold() -> None:
    parts = [Fitted.of(["b", "c"], ["q", "r"]), Fitted.of(["a", "c"], ["r"]), Fitted.of(["a", "b"], ["q"])]
    fitted = Fitted.of(["a", "b", "c"], ["p", "q", "r"]).with_folds(parts)
    for read in (fitted, Fitted.unpack(fitted.pack())):
        assert [read.fold_of(name) for name in "abcpqr"] == [0, 1, 2, None, 1, 2]
        assert all(read.contains("new", photo) for photo in "pqr")
        assert [read.seen_by_all(photo) for photo in "pqrs"] == [True, False, False, False]
        alone = ~np.isin(read.items, read.photos)
        older = replace(read, items=read.items[alone], folds=read.folds[alone])  # as of version 0.2.0
        assert not older.seen_by_all("p")


def test_a_group_of_which_items_are_in_several_folds_has_no_fold() -> None:
    parts = [Fitted.of(["b", "c", "family"], []), Fitted.of(["a", "c", "family"], []), Fitted.of(["a", "b"], [])]
    fitted = Fitted.of(["a", "b", "c", "family", "of none"], []).with_folds(parts)
    for read in (fitted, Fitted.unpack(fitted.pack())):
        assert [read.fold_of(name) for name in ("a", "b", "c", "family", "of none")] == [0, 1, 2, 2, None]
        assert read.contains("of none", None)


@pytest.mark.parametrize("name", ["items", "photos", "folds"])
def test_arrays_of_another_shape_are_refused(name: str) -> None:
    fitted = Fitted.of(["a", "b"], ["p", "q"])
    whole = fitted.with_folds([Fitted.of(["b"], []), Fitted.of(["a"], [])])
    assert Fitted.unpack(whole.pack()).folds.tolist() == whole.folds.tolist()
    wrong = replace(whole, **{name: np.zeros((2, 2), np.uint8)})
    with pytest.raises(ValueError, match="other shapes"):
        Fitted.unpack(wrong.pack())
    assert len(fitted.with_folds([]).folds) == 0


def test_the_union_has_the_items_and_photos_of_both_and_no_folds() -> None:
    one = Fitted.of(["b", "a"], ["p", "q"]).with_folds([Fitted.of(["b"], ["q"]), Fitted.of(["a"], ["p"])])
    other = Fitted.of(["c", "a"], ["q", "r", "s"])
    assert one.union(None) is one
    assert [one.fold_of(name) for name in "abcpq"] == [0, 1, None, 0, 1]
    assert not one.contains("c", None)
    for both in (one.union(other), other.union(one)):
        assert (len(both.photos), len(both.folds)) == (4, 0)
        assert all(both.contains(item, None) for item in "abc")
        assert all(both.contains("new", photo) for photo in "pqrs")
        assert (len(both.folds), both.fold_of("a"), both.fold_of("b")) == (0, None, None)
    assert (len(other), len(Fitted.of([], []))) == (5, 0)
    assert (other.folds.tolist(), other.fold_of("a")) == ([], None)
