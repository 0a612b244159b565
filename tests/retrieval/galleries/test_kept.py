"""Contents that a gallery keeps beside its photos, of today and of version 0.2.0."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.database import POINT
from retrieval.galleries.kept import Kept, pack_draws, read_draws
from retrieval.measuring.draws import OWN, Probes
from tests.retrieval.measuring.test_drawing import LINE, at, by_id, draws_of, shop


def test_draws_are_kept_and_read(tmp_path: Path) -> None:
    probes = {"probe": Probes(np.stack([at(8.0), at(9.0)]), ["q0", "q1"], ["b", "stranger"])}
    with shop(tmp_path / "g", LINE) as gallery:
        assert read_draws(gallery) is None
        made = draws_of(gallery, probes, ["c"])
        gallery.keep({Kept.DRAWS: pack_draws(made)}, "measure")
        read = read_draws(gallery)
        assert read is not None
        assert (read.model, read.fitted, read.version, read.photos, read.has_rivals) == ("m", {"c"}, 1, 5, True)
        assert read.mark == made.mark == (5, 10, 5)
        assert gallery.snapshot().changes_since(read.mark) == 0
        assert set(read.sources) == {OWN, "probe", "2 photos", "3 photos", "4 photos"}
        for name, source in made.sources.items():
            for field, value in source.arrays().items():
                np.testing.assert_array_equal(read.sources[name].arrays()[field], value)
        assert by_id(read.sources["probe"], "nearest_items") == {"q0": "a", "q1": "b"}  # b is left out of q0's search
        assert set(read.sources[OWN].items) == {"a", "b", "d"}
        assert by_id(read.sources[OWN], "nearest_items")["d0"] == "c"  # fitted items are found
        gallery.remove(photo_ids=["a0"])
        assert gallery.snapshot().changes_since(read.mark) == 1
        gallery._database._connection.execute("UPDATE kept SET content = 'x' WHERE name = ?", (Kept.DRAWS,))
        assert read_draws(gallery) is None


@pytest.mark.parametrize("about", [b"{", b"{}", b'{"model": 1}', b"[" * 100_000], ids=len)
def test_content_that_makes_no_sense_is_none(tmp_path: Path, about: bytes) -> None:
    file = io.BytesIO()
    np.savez(file, about=np.frombuffer(about, np.uint8))
    with shop(tmp_path / "g", LINE) as gallery:
        for content in (about, file.getvalue()):
            gallery.keep({Kept.DRAWS: content, POINT: None}, "measure")
            assert read_draws(gallery) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("wrong", np.ones(4)), ("ids", np.arange(5)), ("nearest", np.ones(5)), ("own", np.ones((5, 1)))],
    ids=["one is missing", "numbers for texts", "fractions for ids of photos", "a column"],
)
def test_draws_with_an_array_of_another_length_or_kind_are_damaged(
    tmp_path: Path, field: str, value: np.ndarray[Any, Any]
) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        made = draws_of(gallery)
        assert len(made.sources[OWN]) == 5
        damaged = replace(made.sources[OWN], **{field: value})
        gallery.keep({Kept.DRAWS: pack_draws(replace(made, sources={OWN: damaged}))}, "measure")
        assert read_draws(gallery) is None
