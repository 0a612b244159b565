"""Other engines and other galleries give the records and the answers of the local ones."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever

from ...gallery_contents import contents
from ...world import draw, make_bundle, write_folder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what other libraries say of each other


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    make_bundle(tmp_path)
    folder = write_folder(tmp_path / "photos", items=range(5))
    (folder / "item-00" / "bad.jpg").write_bytes(b"no image")
    index_catalogue(Bundle.open(tmp_path / "bundle"), read_catalogue(folder), tmp_path / "local", progress=False)
    return tmp_path


def test_ray_makes_the_records_of_the_local_engine(shop: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    bundle, photos = Bundle.open(shop / "bundle"), read_catalogue(shop / "photos")
    report = index_catalogue(bundle, photos, shop / "ray", engine="ray", batch_size=4, progress=False)
    assert [photo_id for photo_id, _ in report.refused] == ["item-00/bad.jpg"]
    with Gallery.open(shop / "local") as one, Gallery.open(shop / "ray") as other:
        assert contents(one)[:2] == contents(other)[:2]
        assert contents(one)[2].tobytes() == contents(other)[2].tobytes()
        assert sorted(one.values("_content_sha256")) == sorted(other.values("_content_sha256"))
        assert all(one.thumbnail(photo) == other.thumbnail(photo) for photo in {photo[0] for photo in one.photos()})
    again = index_catalogue(bundle, photos, shop / "ray", engine="ray", batch_size=4, progress=False)
    assert (again.added, again.skipped, len(again.refused)) == (0, len(photos) - 1, 1)
    with pytest.raises(InvalidParameter, match="engine must be one of local, ray"):
        index_catalogue(bundle, photos, shop / "never", engine="spark", progress=False)


def test_milvus_answers_as_the_local_gallery(shop: Path) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    address = f"milvus+{shop}/lite.db/shop"
    words = ["index", str(shop / "bundle"), str(shop / "photos"), "-o", address]
    told = CliRunner().invoke(group, words)
    assert told.exit_code == 0, told.output
    assert "15 photos added" in told.output
    local = Retriever.open(shop / "bundle", shop / "local")
    there = Retriever.open(shop / "bundle", address)
    for item in range(8):  # three of them unknown
        draw(item, 5).save(shop / "query.png")
        one, other = (retriever.search(shop / "query.png") for retriever in (local, there))
        assert one.decision == other.decision
        assert [(m.item_id, m.distance) for m in one.matches] == [(m.item_id, m.distance) for m in other.matches]
    there.gallery.close()
