"""Photos of judged answers: kept only with --feedback-photos, as they were sent, within limits."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from retrieval.retriever import Retriever
from retrieval.threshold.feedback import Feedback, owner_folder, read_feedback
from retrieval.threshold.judged import parts_of
from serving import kept_photos, recent_answers
from serving.app import create_app
from serving.config import ServeSettings
from serving.http.callers import Caller
from serving.kept_photos import KeptPhotos, encoded, photo_name

from ..world import draw, encode

MINE, OTHER = encode(draw(3, 5)), encode(draw(4, 5))


def judged(retriever: Retriever, folder: Path, *, keep: bool = True) -> list[Feedback]:
    """Search with several photos, judge some of the answers, and return the feedback."""
    settings = ServeSettings(feedback=folder / "feedback.jsonl", feedback_photos=folder / "kept" if keep else None)
    with TestClient(create_app(retriever, settings=settings, page=False)) as client:
        for image, verdict in ((MINE, "right"), (MINE, "unknown"), (OTHER, None)):
            request_id = client.post("/v1/search", content=image).json()["request_id"]
            if verdict is not None:
                client.post("/v1/feedback", json={"request_id": request_id, "verdict": verdict}).raise_for_status()
    return read_feedback(folder / "feedback.jsonl")


def test_photos_of_judged_answers_are_kept_as_they_were_sent(retriever: Retriever, tmp_path: Path) -> None:
    first, second = judged(retriever, tmp_path)
    assert first.photos == second.photos == (photo_name(MINE),)
    assert first.gallery_version == retriever.gallery.version
    files = {file.name: file.read_bytes() for file in (tmp_path / "kept").iterdir()}
    assert files == {photo_name(MINE): MINE}
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) & 0o077 == 0
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "kept").iterdir())


def test_no_photo_is_kept_unless_the_operator_asks_for_it(retriever: Retriever, tmp_path: Path) -> None:
    assert [verdict.photos for verdict in judged(retriever, tmp_path, keep=False)] == [(), ()]
    assert [file.name for file in tmp_path.iterdir()] == ["feedback.jsonl"]


def test_a_full_folder_takes_no_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_photos, "MOST_BYTES", len(MINE))
    kept = KeptPhotos(tmp_path / "kept")
    assert kept.keep([MINE]) == kept.keep([MINE]) == (photo_name(MINE),)
    assert kept.keep([OTHER]) == ()
    assert KeptPhotos(tmp_path / "kept").keep([OTHER]) == ()  # what is there counts
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_a_part_of_a_photo_is_kept_as_png(tmp_path: Path) -> None:
    part = draw(3, 5).crop((4, 4, 20, 20))
    (name,) = KeptPhotos(tmp_path).keep([part])
    assert name.endswith(".png")
    assert list(Image.open(tmp_path / name).tobytes()) == list(part.tobytes())
    assert encoded(tmp_path / name) == (tmp_path / name).read_bytes()


def test_photos_of_old_answers_are_dropped_and_the_answers_kept(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_answers, "PHOTO_BYTES_PER_KEY", 2 * len(MINE))
    answers, result = recent_answers.RecentAnswers(), parts_of(retriever.search(MINE))
    for number in range(3):
        answers.add(Caller("web"), str(number), result, [MINE])
    answers.add(Caller("app"), "0", result, [MINE])
    found = [answers.find(Caller("web"), str(number)) for number in range(3)]
    assert [answer is not None and len(answer.photos) for answer in found] == [0, 1, 1]
    other = answers.find(Caller("app"), "0")
    assert other is not None
    assert other.photos == (MINE,)


def test_a_folder_that_cannot_be_written_takes_no_photo(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptPhotos(tmp_path / "kept")
    (tmp_path / "kept").rmdir()
    assert kept.keep([MINE]) == ()
    assert "feedback is recorded without its photo" in caplog.text
    (tmp_path / "kept").mkdir()
    assert kept.keep([MINE]) == (photo_name(MINE),)


def test_one_key_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = [b"\xff\xd8" + bytes([number]) * 98 for number in range(20)]
    monkeypatch.setattr(kept_photos, "MOST_BYTES", 1200)
    monkeypatch.setattr(kept_photos, "COUNTED_S", 0.0)
    busy, late = KeptPhotos(tmp_path), KeptPhotos(tmp_path)  # of two workers
    assert [bool(busy.keep([photo], "busy")) for photo in photos[:8]] == [True] * 6 + [False] * 2
    assert [bool(late.keep([photo], "late")) for photo in photos[8:13]] == [True] * 3 + [False] * 2
    assert busy.keep([photos[0]], "busy")  # it is there already
    (name,) = KeptPhotos(tmp_path).keep([photos[13]])  # of a server without keys
    assert {path.name for path in tmp_path.iterdir()} == {owner_folder("busy"), owner_folder("late"), name}
    for file in (tmp_path / owner_folder("busy")).iterdir():
        file.unlink()
    assert busy.keep([photos[7]], "busy")  # the operator made room
