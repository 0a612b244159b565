"""Packed local features: what goes in comes out, and damaged bytes are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import GalleryCorrupt, InvalidParameter
from retrieval.verification.features import LocalFeatures, unpack_words


def made(count: int, seed: int = 0) -> LocalFeatures:
    generator = np.random.default_rng(seed)
    return LocalFeatures(
        generator.integers(0, 256, (count, 128), dtype=np.uint8),
        generator.uniform(0, 400, (count, 2)).astype(np.float16),
        generator.integers(0, 2**16, count, dtype=np.uint16),
        480,
        400,
    )


@pytest.mark.parametrize("count", [0, 1, 300])
def test_features_survive_packing(count: int) -> None:
    features = made(count)
    packed = features.pack()
    assert len(packed) == 16 + 134 * count
    again = LocalFeatures.unpack(packed)
    assert (again.width, again.height, len(again)) == (480, 400, count)
    for name in ("descriptors", "positions", "words"):
        assert np.array_equal(getattr(again, name), getattr(features, name))
    assert np.array_equal(unpack_words(packed), features.words)


@given(st.data())
def test_one_changed_byte_is_noticed(data: st.DataObject) -> None:
    packed = bytearray(made(3).pack())
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    if place in range(6, 10):  # width and height, which the checksum does not cover
        return
    for read in (LocalFeatures.unpack, unpack_words):
        with pytest.raises(GalleryCorrupt, match="damaged"):
            read(bytes(packed))


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(GalleryCorrupt, match="damaged"):
        LocalFeatures.unpack(data)


@pytest.mark.parametrize("cut", [0, 5, 15, 16, 100, -1])
def test_cut_off_bytes_are_refused(cut: int) -> None:
    with pytest.raises(GalleryCorrupt, match="damaged"):
        LocalFeatures.unpack(made(3).pack()[:cut])


def test_wrong_arrays_are_refused() -> None:
    good = made(3)
    for name, wrong in (
        ("descriptors", good.descriptors[:, :64]),
        ("positions", good.positions.astype(np.float32)),
        ("words", good.words[:2]),
    ):
        arrays = {"descriptors": good.descriptors, "positions": good.positions, "words": good.words, name: wrong}
        with pytest.raises(InvalidParameter, match=name):
            LocalFeatures(**arrays, width=10, height=10)
    with pytest.raises(InvalidParameter, match="size"):
        LocalFeatures.empty(0, 10)
    with pytest.raises(InvalidParameter, match="at most 4,096 rows"):
        made(4097)


def test_relative_positions_are_shares_of_the_sides() -> None:
    relative = made(2).relative(np.array([[240, 100], [480, 400]], np.float16))
    assert relative.tolist() == [[0.5, 0.25], [1, 1]]
