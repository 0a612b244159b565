"""From the command line to the server, a gallery in shards works like one gallery of the same photos."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.errors import GalleryError
from retrieval.cli.main import group
from retrieval.retriever import Retriever
from serving.app import create_app

from ..retrieval.threshold.test_gallery_anchor import bundle_of
from ..world import draw, encode, write_folder

pytestmark = pytest.mark.usefixtures("empty_pictures")


def run(*words: object) -> str:
    """Return the output of a command that must succeed."""
    done = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a bundle, photos, and a gallery of them in one part and in three shards."""
    folder = tmp_path_factory.mktemp("shop")
    bundle, photos = bundle_of(folder), write_folder(folder / "photos", items=range(24), photos=range(2))
    run("index", bundle.path, photos, "-o", folder / "one")
    told = run("index", bundle.path, photos, "-o", folder / "divided", "--shards", 3)
    assert "48 photos added" in told
    assert "Index: flat in each of 3 shards; about 0 MiB in memory" in told
    draw(3, 5).save(folder / "query.png")
    return folder


def answer(shop: Path, gallery: str, *options: str) -> dict[str, Any]:
    found = json.loads(run("search", shop / "bundle", shop / gallery, shop / "query.png", "--json", *options))
    return {key: found[key] for key in ("decision", "threshold", "matches", "nearest", "review")}


def test_every_verb_takes_a_gallery_in_shards(shop: Path, tmp_path: Path) -> None:
    bundle, photos, one, divided = (shop / name for name in ("bundle", "photos", "one", "divided"))
    lines = [run("gallery", "info", gallery).splitlines() for gallery in (one, divided)]
    thresholds = [[line for line in some if "set in this gallery" in line] for some in lines]
    assert thresholds[0] == thresholds[1] != []
    assert answer(shop, "one") == answer(shop, "divided")
    for gallery in (one, divided):
        run("gallery", "declare", gallery, "colour:text")
        assert "1 photos removed." in run("gallery", "remove", gallery, "--photo", "item-00/0.png")
        assert "1 photos added" in run("index", bundle, photos, "-o", gallery)
        assert "48 photos are unchanged" in run("index", bundle, photos, "-o", gallery, "--dry-run")
        run("calibrate", bundle, gallery)
    assert answer(shop, "one") == answer(shop, "divided")
    assert answer(shop, "one", "--where", "colour = 'red'") == answer(shop, "divided", "--where", "colour = 'red'")
    with pytest.raises(GalleryError, match=r"divided has 3 shards, not 2\. .*gallery rebuild .*divided --shards 2"):
        run("index", bundle, photos, "-o", divided, "--shards", 2, "--dry-run")
    assert "48 photos are intact." in run("gallery", "verify", divided)
    assert "48 photos of 24 items" in run("audit", bundle, divided, "-o", tmp_path / "audit.html")
    new = write_folder(tmp_path / "new", items=range(2))
    assert "No problems found." in run("doctor", bundle, divided, "--probe", new)
    run("gallery", "report", bundle, divided, "-o", tmp_path / "report.html")
    actions = [re.split(r"\s{2,}", line.strip())[3] for line in run("gallery", "log", divided).splitlines()]
    assert actions[:4] == ["calibrate", "add", "remove", "declare colour"]
    run("gallery", "export", divided, tmp_path / "g.parquet")
    run("gallery", "import", tmp_path / "g.parquet", tmp_path / "copy", "--shards", 4)
    run("calibrate", bundle, tmp_path / "copy")
    assert "in each of 4 shards" in run("gallery", "info", tmp_path / "copy")
    many = [tmp_path / f"{gallery}.jsonl" for gallery in ("one", "divided")]
    for gallery, file in zip((one, divided), many, strict=True):
        run("search", bundle, gallery, photos, "-o", file, "--truth", "item_id")
    matches = [[json.loads(line).get("matches") for line in file.read_text().splitlines()] for file in many]
    assert matches[0] == matches[1]
    assert len(matches[0]) == 49
    assert "in each of 2 shards" in run("gallery", "rebuild", divided, "--shards", 2)
    assert answer(shop, "one") == answer(shop, "divided")


def test_a_server_adds_and_removes_photos_in_shards_and_notices_a_new_division(shop: Path, tmp_path: Path) -> None:
    bundle, place = shop / "bundle", tmp_path / "served"
    run("index", bundle, shop / "photos", "-o", place, "--shards", 3)
    with TestClient(create_app(Retriever.open(bundle, place), page=False)) as client:

        def search(image: bytes) -> dict[str, Any]:
            found = client.post("/v1/search", content=image)
            assert found.status_code == 200, found.text
            return dict(found.json())

        first = search(encode(draw(3, 5)))
        assert first["matches"][0]["item_id"] == "item-03"
        assert client.get("/v1/info").json()["gallery"]["index"]["shards"] == 3
        run("gallery", "rebuild", place, "--shards", 5)
        assert search(encode(draw(3, 5)))["matches"] == first["matches"]
        assert client.get("/v1/info").json()["gallery"]["index"]["shards"] == 5
        put = client.put("/v1/photos/new?item_id=item-99", content=encode(draw(99, 0), "PNG"))
        assert put.status_code in {200, 201}, put.text
        assert search(encode(draw(99, 0), "PNG"))["matches"][0]["item_id"] == "item-99"
        assert client.delete("/v1/photos/new").status_code in {200, 204}
        assert client.get("/v1/items/item-99").status_code == 404
    assert "48 photos are intact." in run("gallery", "verify", place)
