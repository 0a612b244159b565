"""The log of verdicts, labels of photos made of it, and the exported table."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from retrieval.catalogue.photos import QUERIES
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter
from retrieval.feedback import (
    CONTRADICTED,
    GONE,
    NO_LABEL,
    NOT_KEPT,
    Feedback,
    append_feedback,
    labelled_photos,
    read_feedback,
)

from ..world import draw, encode

CONTENTS = [encode(draw(item, 0)) for item in range(4)]
A, B, C, D = NAMES = [f"{number:032x}.jpg" for number in range(4)]
BOX = (0.0, 0.0, 20.0, 20.0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for name, content in zip(NAMES, CONTENTS, strict=True):
        (folder / name).write_bytes(content)
    return folder


def said(
    verdict: Any, photo: str = A, *, key: str = "web", decision: Any = "match", item: str = "cup", right: str = ""
) -> Feedback:
    return Feedback(
        verdict=verdict,
        decision=decision,
        item_id=item,
        distance=0.4,
        bundle_id="bundle",
        gallery_version=7,
        time="2026-01-02T03:04:05+00:00",
        request_id="r",
        key=key,
        right_item_id=right,
        photo=photo,
    )


def labels(kept: Path, *feedback: Feedback) -> dict[str, str]:
    return {photo.path.name: photo.item_id for photo in labelled_photos(feedback, kept)[0]}


# the log


def test_a_verdict_survives_its_file(tmp_path: Path) -> None:
    given = [said("unknown"), replace(said("wrong", right="mug"), bbox=BOX)]
    for feedback in given:
        append_feedback(tmp_path / "feedback.jsonl", feedback)
    assert stat.S_IMODE((tmp_path / "feedback.jsonl").stat().st_mode) == 0o600
    assert read_feedback(tmp_path / "feedback.jsonl") == given


@pytest.mark.parametrize("wrong", [{"verdict": "nice"}, {"verdict": "right", "right_item_id": "mug"}])
def test_a_verdict_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((InvalidParameter, ValueError)):
        replace(said("right"), **wrong)


LINE = asdict(said("right"))
HOSTILE = [
    {"distance": float("nan")},
    {"distance": float("-inf")},
    {"distance": "0.5"},
    {"distance": True},
    {"distance": None},
    {"distance": 10**400},
    {"gallery_version": -1},
    {"gallery_version": 1.5},
    {"verdict": ["right"]},
    {"decision": "maybe"},
    {"key": None},
    {"request_id": 7},
    {"item_id": "a" * 20_000},
    {"item_id": "\ud800"},
    *({"photo": name} for name in ("../../etc/passwd", "a.jpg", "0" * 32 + "/x.jpg", 1, [A])),
    *({"bbox": box} for box in ([0, 0, 1], "0 0 1 1", [0, 0, 0, 5], [0, 0, 1e400, 5])),
]


@pytest.mark.parametrize(
    "line",
    [
        *("not JSON", "{}", "[1]", "[" * 10_000, '{"distance": ' + "9" * 5000 + "}", "\xff"),
        *(json.dumps({**LINE, **wrong}) for wrong in HOSTILE),
    ],
)
def test_an_invalid_line_of_an_untrusted_file_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "feedback.jsonl").write_bytes(b" \n" + json.dumps(LINE).encode() + b"\n" + line.encode("latin-1"))
    with pytest.raises(DataError, match="line 3 is not a verdict") as refused:
        read_feedback(tmp_path / "feedback.jsonl")
    assert len(str(refused.value)) < 1000


def test_another_table_and_a_missing_file_are_refused_with_the_file_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "cat.csv").write_text("path,item_id\na.jpg,x\n")
    with pytest.raises(DataError, match=r"cat\.csv has no verdicts: line 1 is not a verdict: Invalid JSON") as table:
        read_feedback(tmp_path / "cat.csv")
    with pytest.raises(DataError, match="cannot be read: No such file") as missing:
        read_feedback(tmp_path / "none.jsonl")
    assert table.value.remedy == missing.value.remedy == "Name the file that `retrieval serve --feedback` writes"
    assert "line 2" not in table.value.message


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(DataError, match=r"is not a file|cannot be read"):
            read_feedback(place)
    file = tmp_path / "feedback.jsonl"
    with file.open("wb") as large:
        large.truncate(100 * 2**30)  # of one line, which is not read to its end
    with pytest.raises(DataError, match="line 1 is not a verdict: it has more than 16,384 bytes"):
        read_feedback(file)


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "feedback.jsonl"
    append_feedback(file, said("right"))
    before, write = file.read_bytes(), os.write
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda number, line: write(number, line[:5]))
        with pytest.raises(OSError, match="No space left"):
            append_feedback(file, said("right"))
    assert file.read_bytes() == before


# labels


@pytest.mark.parametrize(
    ("verdict", "item"),
    [
        (said("right"), "cup"),
        (said("right", decision="ranked"), "cup"),
        (said("right", decision="no_match"), ""),
        (said("unknown"), ""),
        (said("unknown", decision="no_match"), ""),
        (said("wrong", right="mug"), "mug"),
        (said("wrong", decision="no_match", right="cup"), "cup"),  # the nearest item, beyond the threshold
    ],
)
def test_a_verdict_says_which_item_the_photo_shows(kept: Path, verdict: Feedback, item: str) -> None:
    assert labels(kept, verdict) == {A: item}


def test_the_last_verdict_of_a_key_counts(kept: Path) -> None:
    assert labels(kept, said("right"), said("wrong", right="mug")) == {A: "mug"}
    assert labels(kept, said("wrong", right="mug"), said("right")) == {A: "cup"}


SECOND = replace(said("wrong", right="bowl"), request_id="s")


def test_a_verdict_that_was_undone_does_not_count_and_the_one_before_it_does(kept: Path) -> None:
    undone = said("undone")
    assert labels(kept, said("wrong", right="mug"), said("right"), undone) == {A: "mug"}
    assert labels(kept, said("right"), undone, undone, said("wrong", right="mug")) == {A: "mug"}
    assert labels(kept, said("right"), SECOND, undone) == {A: "bowl"}  # of another answer to the photo
    others = said("right", key="boss"), replace(undone, asked_by="somebody else")
    assert labels(kept, said("unknown", B), *others) == {A: "cup", B: ""}
    with pytest.raises(DataError, match="labels a photo"):
        labels(kept, said("right"), undone)


@pytest.mark.parametrize("second", [said("unknown"), said("wrong"), said("right", item="mug")])
def test_contradictory_verdicts_label_nothing(kept: Path, second: Feedback) -> None:
    other = replace(second, key="app")
    photos, left_out = labelled_photos([said("right"), other, said("right", B), said("right", B, key="app")], kept)
    assert [(photo.path.name, photo.metadata["reviews"]) for photo in photos] == [(B, 2)]
    assert left_out == {CONTRADICTED: 2}


def test_wrong_alone_contradicts_only_what_was_answered(kept: Path) -> None:
    match, no_match = said("wrong", key="app"), said("wrong", key="app", decision="no_match")
    assert labels(kept, no_match, said("wrong", right="cup", decision="no_match")) == {A: "cup"}
    assert labels(kept, match, said("unknown")) == {A: ""}


def test_what_is_left_out_is_counted(kept: Path) -> None:
    gone = "0" * 31 + "f.jpg"
    feedback = [said("right", ""), said("wrong", B), said("right", gone), said("unknown", C)]
    photos, left_out = labelled_photos(feedback, kept)
    assert left_out == {NOT_KEPT: 1, NO_LABEL: 1, GONE: 1}
    assert [photo.item_id for photo in photos] == [""]
    with pytest.raises(DataError, match=r"1 verdicts labels a photo: 1 without a kept photo.*--feedback-photos"):
        labelled_photos(feedback[:1], kept)
    with pytest.raises(DataError, match="there are none"):
        labelled_photos([], kept)


def test_parts_of_a_photo_have_labels_of_their_own(kept: Path) -> None:
    photos, _ = labelled_photos([replace(said("right"), bbox=BOX), said("unknown")], kept)
    assert [(photo.bbox, photo.item_id) for photo in photos] == [(BOX, "cup"), (None, "")]
    assert len({photo.photo_id for photo in photos}) == 2


def test_a_link_is_not_a_photo_that_the_server_kept(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(CONTENTS[0])
    (tmp_path / A).symlink_to(tmp_path / "secret")
    (tmp_path / B).write_bytes(CONTENTS[1])
    photos, left_out = labelled_photos([said("right"), said("right", B)], tmp_path)
    assert ([photo.path.name for photo in photos], left_out) == ([B], {GONE: 1})


# the table


def run(file: Path, kept: Path, output: Path, *options: str) -> str:
    words = ["feedback", "export", str(file), "--photos", str(kept), "-o", str(output), *options]
    done = CliRunner().invoke(group, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def log(path: Path, feedback: Sequence[Feedback]) -> Path:
    for verdict in feedback:
        append_feedback(path, verdict)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_table_is_a_catalogue_with_unknown_items_and_boxes(kept: Path, tmp_path: Path, suffix: str) -> None:
    boxed = replace(said("right", item="mug"), bbox=BOX)
    file = log(tmp_path / "feedback.jsonl", [said("right"), boxed, said("unknown", B), said("wrong", D)])
    output = tmp_path / "deep" / f"reviewed{suffix}"
    told = run(file, kept, output)
    assert "3 reviewed photos: 2 photos of 2 known items, 1 photo of unknown items." in told
    assert f"Left out: 1 verdict {NO_LABEL}." in told
    photos = read_catalogue(output, labels=QUERIES)
    assert [(photo.item_id, photo.bbox) for photo in photos] == [("cup", None), ("mug", BOX), ("", None)]
    assert [photo.read() for photo in photos] == [CONTENTS[0], CONTENTS[0], CONTENTS[1]]
    facts = photos[0].metadata
    assert (photos[0].source, facts["verdict"], facts["gallery_version"]) == ("feedback", "right", 7)
    run(file, kept, output)  # again, in place of the first
    found = json.loads(run(file, kept, output, "--json"))
    assert found == {"photos": 3, "items": 2, "unknown": 1, "left_out": {NO_LABEL: 1}}


def test_an_output_of_another_kind_is_refused(kept: Path, tmp_path: Path) -> None:
    file = log(tmp_path / "feedback.jsonl", [said("right")])
    words = ["feedback", "export", str(file), "--photos", str(kept), "-o", str(tmp_path / "reviewed.xlsx")]
    assert "--output must end in .csv or .parquet" in str(CliRunner().invoke(group, words).exception)


def test_the_facts_of_a_photo_are_those_of_the_newest_verdict_whoever_spoke_before(kept: Path) -> None:
    times = [f"2026-01-02T03:04:0{second}+00:00" for second in range(3)]
    spoken = [
        replace(said("right", key=key), time=time) for key, time in zip(("web", "ann", "web"), times, strict=True)
    ]
    ((photo,), _) = labelled_photos(spoken, kept)
    assert photo.metadata["time"] == times[2]
    assert (photo.metadata["reviewed_by"], photo.metadata["reviews"]) == ("web", 2)


def test_a_verdict_is_written_under_a_lock_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr("retrieval.feedback.fcntl.flock", lambda _, kind: done.append(kind))
    write = os.write
    monkeypatch.setattr("retrieval.feedback.os.write", lambda *args: (done.append("write"), write(*args))[1])
    monkeypatch.setattr("retrieval.feedback.os.fsync", lambda _: done.append("fsync"))
    append_feedback(tmp_path / "feedback.jsonl", said("right"))
    assert done == [fcntl.LOCK_EX, "write", "fsync"]
