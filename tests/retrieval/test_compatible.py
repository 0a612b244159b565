"""A bundle that is compatible with an earlier one, in a gallery of the earlier model: searches, threshold, changes."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED, Bundle, write_bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.compatibility import in_gallery
from retrieval.errors import BundleMismatch
from retrieval.images import Preprocessing
from retrieval.indexing.pipeline import index_catalogue
from retrieval.result import RANKED
from retrieval.retriever import Retriever
from retrieval.threshold.drawn_distances import LABELLED, UNKNOWN
from retrieval.threshold.gallery_calibration import propose
from serving.app import create_app

from ..world import DIM, SIZE, draw, encode, make_bundle, write_folder, write_model

pytestmark = pytest.mark.usefixtures("empty_pictures")
POINT = OperatingPoint(0.5, "estimated", 0.2, {"fpir": 0.05}, min_certainty=0.01)


class Shop(NamedTuple):
    old: Bundle
    new: Bundle  # another crop, so another embedding
    gallery: Path  # of the old one

    def calibrate(self, bundle: Bundle, *options: str) -> str:
        words = ["calibrate", str(bundle.path), str(self.gallery), *options]
        done = CliRunner().invoke(group, words, catch_exceptions=False)
        assert done.exit_code == 0
        return done.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("compatible")
    files = {FITTED: Fitted.of([], []).pack()}
    old = make_bundle(folder, name="old", point=POINT, files=files)
    new = write_bundle(
        folder / "new",
        model=write_model(folder / "tiny.onnx"),
        preprocessing=Preprocessing(size=SIZE, view=0.95),
        dim=DIM,
        operating_point=POINT,
        files=files,
        compatible_with=old.embedding_id,
    )
    photos = write_folder(folder / "photos", items=range(24), photos=range(2))
    index_catalogue(old, read_catalogue(photos), folder / "gallery", progress=False)
    lines = ["path,item_id"]
    for item in (*range(22), *range(100, 122)):
        draw(item, 9).save(folder / f"{item}.png")
        lines.append(f"{item}.png,{f'item-{item:02d}' if item < 24 else ''}")
    (folder / "labelled.csv").write_text("\n".join(lines))
    return Shop(old, new, folder / "gallery")


@pytest.fixture
def shop(made: Shop, tmp_path: Path) -> Shop:
    shutil.copytree(made.gallery, tmp_path / "gallery")
    return made._replace(gallery=tmp_path / "gallery")


def labelled(shop: Shop) -> Path:
    return shop.old.path.with_name("labelled.csv")


def test_the_manifest_names_the_earlier_model_and_older_bundles_name_none(made: Shop) -> None:
    assert made.new.embedding_id != made.old.embedding_id
    assert Bundle.open(made.new.path).compatible_with == made.old.embedding_id
    assert made.old.compatible_with is None
    assert "compatible_with" not in made.old.manifest


def test_without_a_threshold_of_the_gallery_searches_only_rank(made: Shop) -> None:
    """The bundle's threshold was measured with its own vectors on both sides."""
    with Retriever.open(made.new.path, made.gallery) as retriever:
        result = retriever.search(encode(draw(3, 5)))
        assert (result.decision, result.ranked[0].item_id) == (RANKED, "item-03")
        assert retriever.fpir_forecast() is None
        assert retriever.bundle.operating_point.min_certainty == POINT.min_certainty
    assert made.new.operating_point == POINT


def test_the_threshold_of_the_mixed_case_is_set_by_queries_of_the_new_model(shop: Shop) -> None:
    told = shop.calibrate(shop.new, "--queries", str(labelled(shop)))
    assert "The gallery gets its first threshold" in told
    with Gallery.open(shop.gallery, read_only=True) as gallery:
        proposal = propose(shop.new, gallery)  # with the queries that the gallery keeps
        draws = proposal.anchored.draws
        assert {name: len(source.ids) for name, source in draws.sources.items()} == {
            "own": 0,
            LABELLED: 22,
            UNKNOWN: 22,
        }
        (row,) = np.flatnonzero(draws.sources[LABELLED].ids == "3.png")
        embedder = shop.new.embedder()
        query = embedder.embed([labelled(shop).with_name("3.png")]).vectors[0]
        stored = shop.old.embedder().embed([draw(3, number) for number in range(2)]).vectors
        expected = np.sqrt(2 - 2 * (stored @ query).max())
        assert draws.sources[LABELLED].own[row] == pytest.approx(expected, abs=1e-5)
    with Retriever.open(shop.new.path, shop.gallery) as retriever:
        assert retriever.point == proposal.before
        assert retriever.search(encode(draw(3, 5))).matches[0].item_id == "item-03"
        assert retriever.search(encode(draw(77, 0))).matches == ()


def test_both_models_keep_their_own_threshold_and_queries(shop: Shop) -> None:
    shop.calibrate(shop.old, "--queries", str(labelled(shop)))
    with Retriever.open(shop.old.path, shop.gallery) as retriever:
        before = retriever.point
    with Gallery.open(shop.gallery, read_only=True) as gallery:
        assert propose(shop.new, gallery).anchored.point is None  # the old model's queries say nothing here
    shop.calibrate(shop.new, "--queries", str(labelled(shop)))
    with Retriever.open(shop.old.path, shop.gallery) as retriever:
        assert retriever.point == before
    with Gallery.open(shop.gallery, read_only=True) as gallery:
        assert LABELLED in propose(shop.old, gallery).anchored.draws.sources


def test_only_the_bundle_of_the_gallery_adds_photos(shop: Shop, tmp_path: Path) -> None:
    photos = read_catalogue(write_folder(tmp_path / "more", items=range(30, 31)))
    with pytest.raises(BundleMismatch, match=r"can only search the gallery .* Use the bundle that made the gallery"):
        index_catalogue(shop.new, photos, shop.gallery, progress=False)
    with TestClient(create_app(Retriever.open(shop.new.path, shop.gallery), page=False)) as client:
        body = {"image": base64.b64encode(encode(draw(30, 0))).decode(), "item_id": "new"}
        answer = client.put("/v1/photos/new.jpg", json=body)
        assert answer.status_code == 409, answer.text
        assert "another model embeds its photos" in answer.text
        assert client.delete("/v1/items/item-05").status_code == 200
        assert client.post("/v1/search", content=encode(draw(5, 5))).json()["ranked"][0]["item_id"] != "item-05"
    done = CliRunner().invoke(group, ["audit", str(shop.new.path), str(shop.gallery)])
    assert isinstance(done.exception, BundleMismatch)


def test_photos_that_the_old_bundle_adds_are_found(shop: Shop, tmp_path: Path) -> None:
    shop.calibrate(shop.new, "--queries", str(labelled(shop)))
    index_catalogue(shop.old, read_catalogue(write_folder(tmp_path / "more", items=range(30, 31))), shop.gallery)
    with Retriever.open(shop.new.path, shop.gallery) as retriever:
        assert retriever.search(encode(draw(30, 5))).nearest.item_id == "item-30"  # type: ignore[union-attr]
        assert retriever.unmeasured
    told = shop.calibrate(shop.new)
    assert "Searches for unknown items that return a match" in told


def test_compatibility_has_one_direction(made: Shop, tmp_path: Path) -> None:
    photos = read_catalogue(write_folder(tmp_path / "few", items=range(2)))
    index_catalogue(made.new, photos, tmp_path / "gallery", progress=False)
    with pytest.raises(BundleMismatch, match="made by another model"):
        Retriever.open(made.old.path, tmp_path / "gallery")
    with Gallery.open(tmp_path / "gallery", read_only=True) as gallery:
        assert in_gallery(made.new, gallery) is made.new
