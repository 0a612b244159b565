"""Learning from feedback, with the commands and the HTTP API that a user has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.galleries.kept import read_queries
from retrieval.measuring.draws import LABELLED, UNKNOWN
from retrieval.measuring.labelled import by_source
from retrieval.retriever import Retriever
from serving.app import create_app
from serving.settings import ServeSettings
from training.loop.run import Run

from ..world import draw, encode

pytestmark = pytest.mark.usefixtures("empty_pictures")
NEW = 40  # an item that is new in the catalogue, and that the model has never seen


@pytest.fixture(scope="module")
def trained(run: Run) -> Run:
    return run


def cli(*words: object) -> str:
    done = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def judge(bundle: Path, gallery: Path, folder: Path) -> None:
    """Search with photos of known items and unknown ones, and say what each shows."""
    settings = ServeSettings(feedback=folder / "feedback.jsonl", feedback_photos=folder / "judged")
    with TestClient(create_app(Retriever.open(bundle, gallery), settings=settings, page=False)) as client:
        for item in (*range(20), *(NEW,) * 4, *range(60, 82)):
            photo = encode(draw(item, 50 + len(list(folder.glob("judged/*")))))
            answer = client.post("/v1/search", content=photo).json()
            first = answer["nearest"]["item_id"]
            verdict = {"verdict": "unknown"}
            if item < 60:
                name = "novel" if item == NEW else f"item-{item:02d}"
                right = answer["decision"] == "match" and first == name
                verdict = {"verdict": "right"} if right else {"verdict": "wrong", "item_id": name}
            client.post("/v1/feedback", json={"request_id": answer["request_id"], **verdict}).raise_for_status()


@pytest.mark.end_to_end
def test_reviewed_photos_calibrate_a_gallery_and_train_the_next_model(trained: Run, tmp_path: Path) -> None:
    folder, gallery, catalogue = tmp_path, tmp_path / "gallery", trained.settings.catalogue
    loose = "--target-fpir", 0.3  # the calibration items are of two groups
    cli("export", trained.path, "-o", folder / "bundle", *loose)
    cli("index", folder / "bundle", catalogue, "-o", gallery)
    (folder / "new").mkdir()
    for number in range(2):
        draw(NEW, number).save(folder / "new" / f"{number}.png")
    (folder / "new.csv").write_text("path,item_id\nnew/0.png,novel\nnew/1.png,novel\n")
    cli("index", folder / "bundle", folder / "new.csv", "-o", gallery)

    judge(folder / "bundle", gallery, folder)
    table = folder / "reviewed.csv"
    told = cli("feedback", "export", folder / "feedback.jsonl", "--photos", folder / "judged", "-o", table)
    assert "46 reviewed photos: 24 photos of 21 known items, 22 photos of unknown items." in told

    cli("calibrate", folder / "bundle", gallery, "--queries", table)
    with Gallery.open(gallery, read_only=True) as opened:
        queries = read_queries(opened)
    assert queries is not None
    assert {name: len(part.ids) for name, part in by_source(queries).items()} == {LABELLED: 24, UNKNOWN: 22}

    cli("train", table, "--from", trained.path, "--epochs", 1, "-o", folder / "run-2")
    later = Run.open(folder / "run-2")
    assert "novel" in {*later.splits.fit, *later.splits.validation}  # as the hash of its name and the shares decide
    assert len([photo for photo in later.photos() if photo.path.parent == folder / "judged"]) == 24

    cli("export", folder / "run-2", "-o", folder / "bundle-2", *loose)
    better = Bundle.open(folder / "bundle-2")
    assert all(better.fitted.contains(item, None) for item in later.splits.fit)
    assert set(trained.splits.fit) <= set(later.splits.fit)
    assert not any(better.fitted.contains(item, None) for item in (*trained.splits.test, *trained.splits.calibration))
    cli("index", better.path, catalogue, "-o", folder / "gallery-2")
    cli("index", better.path, folder / "new.csv", "-o", folder / "gallery-2")
    judge(better.path, folder / "gallery-2", folder)
    lines = [json.loads(line) for line in (folder / "feedback.jsonl").read_text().splitlines()]
    assert [line["bundle_id"] for line in lines[46:]] == [better.bundle_id] * 46
