"""Labels of photos from feedback: single verdicts, several verdicts on one photo, and the exported table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.catalogue.photos import QUERIES
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.cli.main import group
from retrieval.errors import DataError
from retrieval.threshold.feedback import Feedback, append_feedback, owner_folder, read_feedback
from retrieval.threshold.reviewed_photos import ALL_JUDGED, GONE, NO_LABEL, NOT_KEPT, reviewed_photos
from serving.kept_photos import photo_name

from ...world import draw, encode

CONTENTS = [encode(draw(item, 0)) for item in range(4)]
A, B, C, D = NAMES = [photo_name(content) for content in CONTENTS]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for name, content in zip(NAMES, CONTENTS, strict=True):
        (folder / name).write_bytes(content)
    return folder


def said(
    verdict: str, photo: str = A, *, key: str = "web", decision: str = "match", item: str = "cup", right: str = ""
) -> Feedback:
    known = Feedback(verdict, decision, item, 0.4, 10, "embedding", "plain", "bundle", key=key, right_item_id=right)
    return replace(known, photos=(photo,) if photo else (), gallery_version=7, time="2026-01-02T03:04:05+00:00")


def labels(kept: Path, feedback: Sequence[Feedback], **options: Sequence[str]) -> dict[str, str]:
    return {photo.path.name: photo.item_id for photo in reviewed_photos(feedback, kept, **options).photos}


@pytest.mark.parametrize(
    ("verdict", "item"),
    [
        (said("right"), "cup"),
        (said("right", decision="no_match"), ""),
        (said("unknown"), ""),
        (said("unknown", decision="no_match"), ""),
        (said("wrong", right="mug"), "mug"),
        (said("wrong", decision="no_match", right="mug"), "mug"),
        (said("wrong", decision="no_match", right="cup"), "cup"),  # the nearest item, beyond the threshold
    ],
)
def test_a_verdict_says_which_item_the_photo_shows(kept: Path, verdict: Feedback, item: str) -> None:
    assert labels(kept, [verdict]) == {A: item}


def test_the_last_verdict_of_a_key_counts(kept: Path) -> None:
    assert labels(kept, [said("right"), said("wrong", right="mug")]) == {A: "mug"}
    assert labels(kept, [said("wrong", right="mug"), said("right")]) == {A: "cup"}


@pytest.mark.parametrize("second", [said("unknown", key="app"), said("wrong", key="app"), said("right", item="mug")])
def test_contradictory_verdicts_label_nothing(kept: Path, second: Feedback) -> None:
    second = replace(second, key="app")
    found = reviewed_photos([said("right"), second, said("right", B), said("right", B, key="app")], kept)
    assert [photo.path.name for photo in found.photos] == [B]
    (contradiction,) = found.contradictions
    assert contradiction.photo == A
    assert "key 'web' says cup" in str(contradiction)
    assert found.photos[0].metadata["reviews"] == 2


def test_wrong_alone_contradicts_only_what_was_answered(kept: Path) -> None:
    match, no_match = said("wrong", key="app"), said("wrong", key="app", decision="no_match")
    assert labels(kept, [no_match, said("wrong", right="cup", decision="no_match")]) == {A: "cup"}
    assert labels(kept, [match, said("unknown")]) == {A: ""}
    for other, alone in ((said("right"), match), (said("unknown"), no_match)):
        with pytest.raises(DataError, match="1 photos with contradictory verdicts"):
            reviewed_photos([other, alone], kept)


def test_trusted_keys_replace_the_others(kept: Path) -> None:
    feedback = [said("right", key="shop"), said("unknown", key="web"), said("unknown", key="app")]
    assert labels(kept, feedback, trusted=["shop"]) == {A: "cup"}
    assert labels(kept, feedback[1:], trusted=["shop"]) == {A: ""}


def test_what_is_left_out_is_counted(kept: Path) -> None:
    gone = "0" * 32 + ".jpg"
    feedback = [said("right", ""), said("wrong", B), said("right", gone), said("unknown", C)]
    found = reviewed_photos(feedback, kept)
    assert found.left_out == {NOT_KEPT: 1, NO_LABEL: 1, GONE: 1}
    assert (found.items, found.unknown, len(found.photos)) == (0, 1, 1)
    with pytest.raises(
        DataError, match=r"none of the 1 verdicts labels a photo: 1 without a kept photo.*--feedback-ph"
    ):
        reviewed_photos(feedback[:1], kept)
    with pytest.raises(DataError, match="there are none"):
        reviewed_photos([], kept)


def test_all_photos_of_a_query_get_its_label(kept: Path) -> None:
    assert labels(kept, [replace(said("right"), photos=(A, B, C))]) == {A: "cup", B: "cup", C: "cup"}


ONE, TWO = (0.0, 0.0, 20.0, 20.0), (20.0, 0.0, 40.0, 20.5)


def boxed(verdict: str, bbox: tuple[float, float, float, float], *, item: str = "cup", request: str = "r") -> Feedback:
    return replace(said(verdict, item=item), bbox=bbox, request_id=request, found_items=2)


def test_each_box_of_a_photo_gets_its_own_label(kept: Path) -> None:
    found = reviewed_photos([boxed("right", ONE), boxed("unknown", TWO, item="mug")], kept)
    assert [(photo.bbox, photo.item_id) for photo in found.photos] == [(ONE, "cup"), (TWO, "")]
    assert len({photo.photo_id for photo in found.photos}) == 2
    assert [photo.metadata[ALL_JUDGED] for photo in found.photos] == [True, True]
    assert found.boxes == 2
    (alone,) = reviewed_photos([boxed("right", ONE)], kept).photos
    assert alone.metadata[ALL_JUDGED] is False  # the answer had another item
    other = reviewed_photos([boxed("right", ONE), boxed("right", TWO, request="another search")], kept)
    assert [photo.metadata[ALL_JUDGED] for photo in other.photos] == [False, False]
    (whole,) = reviewed_photos([said("unknown")], kept).photos
    assert whole.metadata[ALL_JUDGED] is True


def test_a_box_with_an_item_contradicts_a_photo_without_one(kept: Path) -> None:
    none = replace(said("unknown", key="app"), distance_form="plain, regions auto")
    found = reviewed_photos([boxed("right", ONE), none, boxed("right", TWO), boxed("wrong", TWO)], kept)
    assert [photo.bbox for photo in found.photos] == [ONE]
    (contradiction,) = found.contradictions
    assert (contradiction.photo, contradiction.bbox) == (A, None)


@pytest.mark.parametrize("bbox", [[0, 0, 1], "0 0 1 1", [0, 0, 0, 5], [0, 0, 1e400, 5]])
def test_boxes_in_an_untrusted_file_are_checked(tmp_path: Path, bbox: object) -> None:
    line = json.dumps({**vars(said("right")), "bbox": bbox})
    (tmp_path / "feedback.jsonl").write_text(line)
    with pytest.raises(DataError, match="line 1 is no feedback"):
        read_feedback(tmp_path / "feedback.jsonl")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_table_has_the_boxes(kept: Path, tmp_path: Path, suffix: str) -> None:
    for verdict in (boxed("right", ONE), boxed("right", TWO, item="mug"), said("unknown", B)):
        append_feedback(tmp_path / "feedback.jsonl", verdict)
    told = run(tmp_path / "feedback.jsonl", kept, tmp_path / f"reviewed{suffix}")
    assert "3 reviewed photos (2 of them boxes): 2 of known items (2 items), 1 of unknown items." in told
    photos = read_catalogue(tmp_path / f"reviewed{suffix}", labels=QUERIES)
    assert [(photo.item_id, photo.bbox) for photo in photos] == [("cup", ONE), ("mug", TWO), ("", None)]
    assert photos[0].read() == photos[1].read() == CONTENTS[0]


def test_photos_of_each_key_are_found_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / owner_folder("web/../shop")).mkdir()
    (tmp_path / owner_folder("web/../shop") / A).write_bytes(CONTENTS[0])
    verdict = replace(said("right"), asked_by="web/../shop")
    assert labels(tmp_path, [verdict, replace(said("right", key="app"), asked_by="other")]) == {A: "cup"}
    (tmp_path / owner_folder("web/../shop") / A).rename(tmp_path / A)  # as earlier versions kept them
    assert labels(tmp_path, [verdict]) == {A: "cup"}


def run(file: Path, kept: Path, output: Path, *options: str) -> str:
    words = ["feedback", "export", str(file), "--photos", str(kept), "-o", str(output), *options]
    done = CliRunner().invoke(group, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("feedback") / "feedback.jsonl"
    for verdict in (
        said("right"),
        said("unknown", B),
        said("right", C),
        said("unknown", C, key="app"),
        said("wrong", D),
    ):
        append_feedback(path, verdict)
    return path


def contents(photos: Sequence[Photo]) -> dict[str, bytes]:
    return {photo.item_id: photo.read() for photo in photos}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_table_is_a_catalogue_with_unknown_items(file: Path, kept: Path, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / "deep" / f"reviewed{suffix}"
    told = run(file, kept, output)
    assert "2 reviewed photos: 1 of known items (1 items), 1 of unknown items." in told
    assert "1 photos left out because their verdicts contradict each other" in told
    assert f"Left out: 1 {NO_LABEL}." in told
    output = output.rename(tmp_path / f"moved{suffix}") if suffix == ".parquet" else output
    photos = read_catalogue(output, labels=QUERIES)
    assert contents(photos) == {"cup": CONTENTS[0], "": CONTENTS[1]}
    facts = photos[0].metadata
    assert (photos[0].source, facts["verdict"], facts["bundle_id"], facts["gallery_version"]) == (
        *("feedback", "right", "bundle"),
        7,
    )
    assert str(facts["time"]).startswith("2026-01-02")
    run(file, kept, tmp_path / "deep" / f"reviewed{suffix}")  # again, in place of the first


def test_the_export_as_json(file: Path, kept: Path, tmp_path: Path) -> None:
    found = json.loads(run(file, kept, tmp_path / "reviewed.csv", "--json"))
    assert (found["photos"], found["unknown"], found["left_out"]) == (2, 1, {NO_LABEL: 1})
    assert [entry["photo"] for entry in found["contradictions"]] == [C]


@pytest.mark.parametrize(
    "photos", [["../../etc/passwd"], ["a.jpg"], "0" * 32, [f"{'0' * 32}.jpg"] * 9, [1], ["0" * 32 + "/x.jpg"]]
)
def test_names_of_photos_in_an_untrusted_file_are_checked(tmp_path: Path, photos: object) -> None:
    line = json.dumps({**vars(said("right")), "photos": photos})
    (tmp_path / "feedback.jsonl").write_text(line)
    with pytest.raises(DataError, match="line 1 is no feedback: photos must be a list of at most 8 names"):
        read_feedback(tmp_path / "feedback.jsonl")


def test_an_output_of_another_kind_is_refused(file: Path, kept: Path, tmp_path: Path) -> None:
    words = ["feedback", "export", str(file), "--photos", str(kept), "-o", str(tmp_path / "reviewed.xlsx")]
    done = CliRunner().invoke(group, words)
    assert "--output must end in .csv or .parquet" in str(done.exception)


def test_a_link_is_not_a_photo_that_the_server_kept(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(CONTENTS[0])
    (tmp_path / A).symlink_to(tmp_path / "secret")
    (tmp_path / B).write_bytes(CONTENTS[1])
    found = reviewed_photos([said("right"), said("right", B)], tmp_path)
    assert [photo.path.name for photo in found.photos] == [B]
    assert found.left_out == {GONE: 1}
