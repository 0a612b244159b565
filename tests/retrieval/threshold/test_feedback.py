from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter
from retrieval.search.result import Match, SearchResult
from retrieval.threshold.anchor import remeasure
from retrieval.threshold.calibration import propose
from retrieval.threshold.feedback import MAX_BYTES, Feedback, append_feedback, feedback_on, read_feedback
from retrieval.threshold.judged import parts_of
from retrieval.threshold.verdicts import feedback_cap, weigh

from ...world import make_bundle
from .simulated import simulated

pytestmark = pytest.mark.usefixtures("empty_pictures")


class Shop(NamedTuple):
    bundle: Bundle  # whose threshold is the one that its gallery gets
    gallery: Path

    def point(self, feedback: Sequence[Feedback] = (), trusted: Sequence[str] = (), **options: float) -> OperatingPoint:
        """Return the operating point that calibration would set."""
        with Gallery.open(self.gallery, read_only=True) as gallery:
            return propose(self.bundle, gallery, feedback=feedback, trusted=trusted, **options).after

    def copy(self, folder: Path) -> Shop:
        shutil.copytree(self.gallery, folder / "gallery")
        return Shop(self.bundle, folder / "gallery")

    def calibrate(self, feedback: Sequence[Feedback] = (), **options: float) -> OperatingPoint:
        """Set the threshold of the gallery and return its operating point."""
        with Gallery.open(self.gallery) as gallery:
            proposal = propose(self.bundle, gallery, feedback=feedback, trusted=["shop"], **options)
            proposal.write(gallery)
            return proposal.after


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("feedback")
    vectors, labels = simulated(300, 2, seed=0)
    files = {FITTED: Fitted.of([], []).pack()}
    bundle = make_bundle(folder / "first", files=files)
    with Gallery.create(folder / "gallery", dim=vectors.shape[1], embedding_id=bundle.embedding_id) as gallery:
        gallery.add([f"p{i}" for i in range(len(labels))], [f"item-{label}" for label in labels], vectors)
        point = propose(bundle, gallery, target_fpir=0.05).after
        bundle = make_bundle(folder / "second", point=replace(point, evidence={}), files=files)
        propose(bundle, gallery).write(gallery)
    return Shop(bundle, folder / "gallery")


@pytest.fixture(scope="module")
def bundle(shop: Shop) -> Bundle:
    return shop.bundle


def told(bundle: Bundle, distances: np.ndarray, verdict: str = "unknown", key: str = "shop") -> list[Feedback]:
    ids = {
        "embedding_id": bundle.embedding_id,
        "distance_form": bundle.distance_form.key,
        "bundle_id": bundle.bundle_id,
    }
    return [
        Feedback(verdict, "match", "item-1", float(d), 300, **ids, request_id=f"{key}-{n}-{d}", key=key, asked_by=key)
        for n, d in enumerate(distances)
    ]


def strangers(bundle: Bundle, shift: float, key: str = "shop") -> list[Feedback]:
    """Return 200 searches of unknown items, one of twenty of which lies below the threshold plus `shift`."""
    return told(bundle, bundle.threshold + shift + np.linspace(-0.05, 0.95, 200), key=key)


def cap(bundle: Bundle, feedback: list[Feedback], *trusted: str) -> float:
    return feedback_cap(weigh(bundle, feedback, trusted=trusted), 0.05)


def test_too_many_answers_to_strangers_tighten_and_are_not_forgotten(shop: Shop, tmp_path: Path) -> None:
    bundle, own = shop.bundle, shop.copy(tmp_path)
    tighter = own.calibrate(strangers(bundle, -0.2))
    assert bundle.threshold - 0.22 < tighter.threshold < bundle.threshold - 0.19
    assert tighter.status == "certified"  # what held at a larger threshold holds here
    again = own.calibrate()
    assert (again.threshold, again.status) == (tighter.threshold, tighter.status)
    assert {**again.evidence, "gallery_version": 0} == {**tighter.evidence, "gallery_version": 0}
    assert own.calibrate(target_fpir=0.02).threshold == own.calibrate(target_fpir=0.02).threshold
    assert own.calibrate(target_fpir=0.02).threshold <= tighter.threshold
    looser = own.calibrate(target_fpir=0.1)
    assert looser.threshold > bundle.threshold  # asked for by name
    assert own.calibrate(target_fpir=0.05).threshold == tighter.threshold  # the verdicts are not forgotten meanwhile


def test_feedback_for_a_lower_target_leaves_the_limit_of_a_higher_one(shop: Shop, tmp_path: Path) -> None:
    bundle, own = shop.bundle, shop.copy(tmp_path)
    first = own.calibrate(strangers(bundle, -0.2))
    own.calibrate(strangers(bundle, -0.25), target_fpir=0.03)
    assert own.calibrate(target_fpir=0.05).threshold == first.threshold


def test_growth_that_tightens_keeps_the_cap(shop: Shop, tmp_path: Path) -> None:
    own = shop.copy(tmp_path)
    tight = own.calibrate(strangers(shop.bundle, -0.1))
    vectors, _ = simulated(300, 2, seed=0)
    with Gallery.open(own.gallery) as gallery:
        names = [f"near-{i}" for i in range(60)]
        near = vectors[::10] + 0.06 * np.random.default_rng(1).normal(size=(60, vectors.shape[1]))
        gallery.add(names, names, near / np.linalg.norm(near, axis=1, keepdims=True))
        after = remeasure(shop.bundle, gallery).after
    assert after is not None
    assert after.threshold < tight.threshold
    assert after.evidence["feedback_caps"] == tight.evidence["feedback_caps"]


def test_later_feedback_loosens_no_cap(shop: Shop, tmp_path: Path) -> None:
    """The first verdicts tighten by 0.2; later ones that would allow 0.1 more, or anything at all, change nothing."""
    bundle, own = shop.bundle, shop.copy(tmp_path)
    tight = own.calibrate(strangers(bundle, -0.2))
    for shift in (-0.1, 0.3):
        later = own.calibrate(strangers(bundle, shift))
        assert later.threshold == tight.threshold
        assert later.evidence["feedback_caps"] == tight.evidence["feedback_caps"]
    assert own.calibrate(strangers(bundle, -0.3)).threshold < tight.threshold - 0.09


def test_few_answers_to_strangers_loosen_nothing(shop: Shop) -> None:
    for shift in (0.05, 0.2):
        assert shop.point(strangers(shop.bundle, shift), ["shop"]).threshold == shop.bundle.threshold


def test_right_no_matches_count_and_other_models_do_not(bundle: Bundle) -> None:
    unknown = strangers(bundle, 0.0)
    quiet = [replace(f, verdict="right", decision="no_match") for f in unknown[50:]] + unknown[:50]
    expected = cap(bundle, unknown, "shop")
    assert cap(bundle, quiet, "shop") == expected
    noise = [replace(f, embedding_id="other") for f in unknown] + told(bundle, np.linspace(0.01, 0.02, 500), "wrong")
    noise = [replace(f, request_id=f"{f.request_id}-noise") for f in noise]
    assert cap(bundle, [*noise, *unknown], "shop") == expected
    with pytest.raises(DataError, match=r"99 searches of unknown items.* takes 100"):
        cap(bundle, [*noise, *unknown[:99]], "shop")


def test_a_verdict_survives_its_file(bundle: Bundle, tmp_path: Path) -> None:
    nearest = Match("item-3", "photo-3", 0.4)
    result = parts_of(SearchResult((nearest,), "match", "", 0.5, 0.4, 1.0, nearest, bundle.bundle_id, 7))[None]
    made = feedback_on(result, "unknown", bundle, gallery_items=12)
    assert made.of_unknown_item
    for feedback in (made, replace(made, verdict="right")):
        append_feedback(tmp_path / "feedback.jsonl", feedback)
    assert stat.S_IMODE((tmp_path / "feedback.jsonl").stat().st_mode) == 0o600
    again = read_feedback(tmp_path / "feedback.jsonl")
    assert again == [made, replace(made, verdict="right")]
    assert [f.of_unknown_item for f in again] == [True, False]
    with pytest.raises(InvalidParameter, match="right, wrong, unknown"):
        feedback_on(result, "nonsense", bundle, gallery_items=12)


LINE = {
    "verdict": "right",
    "decision": "match",
    "item_id": "i",
    "distance": 0.5,
    "gallery_items": 3,
    "embedding_id": "e",
    "distance_form": "plain",
    "bundle_id": "b",
}
HOSTILE = [
    {"distance": float("nan")},
    {"distance": float("-inf")},
    {"distance": "0.5"},
    {"distance": True},
    {"distance": None},
    {"distance": 10**400},
    {"gallery_items": -1},
    {"gallery_items": 1.5},
    {"verdict": ["right"]},
    {"decision": "perhaps"},
    {"key": None},
    {"key": {}},
    {"request_id": 7},
    {"item_id": "a" * 20_000},
    {"item_id": "\ud800"},
    {"note": float("nan")},  # a field that is not read
]


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "{}",
        "[1]",
        json.dumps({"verdict": "right"}),
        "[" * 10_000,
        '{"distance": ' + "9" * 5000 + "}",
        "\xff",
        *[json.dumps({**LINE, **wrong}) for wrong in HOSTILE],
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "feedback.jsonl").write_bytes(json.dumps(LINE).encode() + b"\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(DataError, match="line 2 is no feedback") as refused:
        read_feedback(tmp_path / "feedback.jsonl")
    assert len(str(refused.value)) < 1000


def test_a_line_of_an_older_server_is_read(tmp_path: Path) -> None:
    (tmp_path / "feedback.jsonl").write_text(" \t\n" + json.dumps(LINE) + "\n\n")  # and empty lines are none
    (line,) = read_feedback(tmp_path / "feedback.jsonl")
    assert (line.distance, line.request_id, line.key, line.asked_by) == (0.5, "", "", "")


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(DataError, match=r"is no file|cannot be read"):
            read_feedback(place)
    file = tmp_path / "feedback.jsonl"
    with file.open("wb") as large:
        large.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match="more than"):
        read_feedback(file)
    with pytest.raises(DataError, match="is full"):
        append_feedback(file, Feedback(**LINE))


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "feedback.jsonl"
    append_feedback(file, Feedback(**LINE))
    before, write = file.read_bytes(), os.write
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda number, line: write(number, line[:5]))
        with pytest.raises(OSError, match="No space left"):
            append_feedback(file, Feedback(**LINE))
    assert file.read_bytes() == before


def test_the_command_says_what_the_feedback_did(shop: Shop, tmp_path: Path) -> None:
    file, own = tmp_path / "feedback.jsonl", shop.copy(tmp_path)
    for feedback in strangers(shop.bundle, -0.2):
        append_feedback(file, feedback)
    words = ["calibrate", str(shop.bundle.path), str(own.gallery), "--feedback", str(file), "--trust-key", "shop"]
    listed = CliRunner().invoke(group, [*words, "--dry-run", "--json"], catch_exceptions=False)
    report = json.loads(listed.output)
    changed = report["answers"]["changed"]
    assert report["answers"]["searched"] == {"judged answer": 200}
    after = report["after"]["threshold"]
    assert {entry["name"] for entry in changed} == {
        f.request_id for f in strangers(shop.bundle, -0.2) if after < f.distance <= shop.bundle.threshold
    }
    assert {(entry["before"], entry["after"]) for entry in changed} == {("item-1", "no match")}
    result = CliRunner().invoke(group, words, catch_exceptions=False)
    assert f"The threshold goes down from {shop.bundle.threshold:.4f} to {after:.4f}." in result.output
    assert f"Answers that change: {len(changed)} of 200 judged answers." in result.output
    assert f"judged answer {changed[0]['name']}: item-1 -> no match" in result.output
    assert own.point().threshold == after
