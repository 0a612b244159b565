from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.errors import BundleError, BundleMismatch, GalleryError, InvalidParameter
from serving.cli import EXAMPLES, example_files, serve

from ..world import draw


def test_help_shows_a_worked_example() -> None:
    told = CliRunner().invoke(serve, ["--help"]).output
    for word in ("retrieval serve bundles/", "/v1/search", "--host", "--port", "--threads", "--no-page", "--examples"):
        assert word in told


def test_what_cannot_be_served_is_refused_before_it_listens(world: Path, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "other", dim=48, embedding_id="another").close()
    bundle, gallery = str(world / "bundle"), str(world / "gallery")
    for arguments, kind in (
        ([str(tmp_path / "nothing"), gallery], BundleError),
        ([bundle, str(tmp_path / "nothing")], GalleryError),
        ([bundle, str(tmp_path / "other")], BundleMismatch),
        ([bundle, gallery, "--threads", "0"], InvalidParameter),
        ([bundle, gallery, "--examples", str(tmp_path / "nothing")], InvalidParameter),
    ):
        with pytest.raises(kind):
            CliRunner().invoke(serve, arguments, catch_exceptions=False)


def test_examples_are_picked_evenly(tmp_path: Path) -> None:
    assert example_files([]) == []
    for number in range(30):
        draw(0, number).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "notes.txt").write_text("no photo")
    found = example_files([tmp_path])
    assert len(set(found)) == EXAMPLES
    assert (found[0].name, found[-1].name) == ("00.png", "29.png")
    assert example_files([tmp_path / "07.png"]) == [tmp_path / "07.png"]
