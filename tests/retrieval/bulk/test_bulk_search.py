"""Searches with many photos: every photo gets one answer, in order, also after a kill."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval.bulk.answers_file import open_answers
from retrieval.bulk.parquet import FIELDS
from retrieval.bulk.search import KnownItems
from retrieval.catalogue.photos import Photo
from retrieval.cli.main import main
from retrieval.result import Match, SearchResult
from retrieval.retriever import Retriever

from ...world import draw, encode


class CommandLine:
    """Runs `retrieval search` on the shared gallery."""

    def __init__(self, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self._monkeypatch, self._capsys = world, monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, *words: object, lines: str = "") -> int:
        """Return the exit status."""
        told = ["retrieval", "search", self.world / "bundle", self.world / "gallery", *words]
        self._monkeypatch.setattr("sys.argv", [str(word) for word in told])
        self._monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        status = 0
        try:
            main()
        except SystemExit as done:
            status = int(done.code or 0)
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def search(world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(world, monkeypatch, capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of photos: five of known items, one of an unknown item, and a damaged one."""
    folder = tmp_path_factory.mktemp("queries")
    for item in range(5):
        draw(item, 7).save(folder / f"{item}.png")
    (folder / "below").mkdir()
    draw(77, 0).save(folder / "below" / "stranger.png")
    (folder / "bad.jpg").write_bytes(b"no image")
    return folder


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head and the answers of a file."""
    head, *lines = (json.loads(line) for line in path.read_text().splitlines())
    return head["head"], lines


def test_a_folder_gets_the_answers_of_single_searches(search: CommandLine, folder: Path, tmp_path: Path) -> None:
    assert search(folder, "-o", tmp_path / "a.jsonl", "--batch-size", 2, "--threads", 2) == 0
    assert "Wrote " in search.out
    assert "6 photos answered: 5 matches, 1 without a match, 1 refused." in search.out
    head, lines = read(tmp_path / "a.jsonl")
    assert head["top_k"] == 10
    assert [line["photo_id"] for line in lines] == [
        "0.png", "1.png", "2.png", "3.png", "4.png", "bad.jpg", "below/stranger.png",
    ]  # fmt: skip
    assert "this is not a JPEG" in lines[5]["error"]
    with Retriever.open(search.world / "bundle", search.world / "gallery") as retriever:
        for line in (*lines[:5], lines[6]):
            single = retriever.search(folder / line["photo_id"]).to_dict()
            assert line["decision"] == single["decision"]
            assert line["nearest"]["photo_id"] == single["nearest"]["photo_id"]
            assert line["nearest"]["distance"] == pytest.approx(single["nearest"]["distance"], abs=1e-6)
    assert [line["item_id"] for line in lines[:5]] == [f"item-{item:02d}" for item in range(5)]
    assert lines[6]["item_id"] is None


def test_a_stopped_search_continues_where_it_was(search: CommandLine, folder: Path, tmp_path: Path) -> None:
    whole, file = tmp_path / "whole.jsonl", tmp_path / "a.jsonl"
    assert search(folder, "-o", whole) == 0
    content = whole.read_bytes()
    starts = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    for cut in (0, 10, starts[0], starts[2], starts[2] + 25, len(content) - 1):  # in the head, in a line, between lines
        file.write_bytes(content[:cut])
        assert search(folder, "-o", file) == 0
        assert file.read_bytes() == content
    assert search(folder, "-o", file) == 0
    assert file.read_bytes() == content


def test_other_options_and_other_files_are_refused(search: CommandLine, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    assert search(folder, "-o", file) == 0
    before = file.read_bytes()
    assert search(folder, "-o", file, "--top-k", 3) == 1
    assert "answers with the top k 10, and this search has 3. Choose a new name" in search.err
    assert search(folder / "below", "-o", file) == 1
    assert file.read_bytes() == before
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    assert search(folder, "-o", tmp_path / "notes.jsonl") == 1
    assert "is not a file of answers" in search.err
    assert search(folder, "-o", tmp_path / "a.txt") == 1
    assert "output must end in .jsonl or .parquet" in search.err


def test_parquet_has_the_same_answers_and_is_continued(search: CommandLine, folder: Path, tmp_path: Path) -> None:
    whole, file = tmp_path / "whole.jsonl", tmp_path / "a.parquet"
    assert search(folder, "-o", whole) == 0
    assert search(folder, "-o", file) == 0
    head, lines = read(whole)
    rows = pq.read_table(file).to_pylist()
    assert [row["item_id"] for row in rows] == [line.get("item_id") for line in lines]
    assert [row["matches"] and row["matches"][0]["distance"] for row in rows] == [
        line.get("matches") and line["matches"][0]["distance"] for line in lines
    ]
    assert not list(tmp_path.glob("*.partial"))
    partial = tmp_path / "a.parquet.partial"
    kept = [json.dumps({"head": head}), *(json.dumps(line) for line in lines[:3])]
    partial.write_text("".join(f"{line}\n" for line in kept))  # killed before the file was made anew
    assert search(folder, "-o", file) == 0
    assert pq.read_table(file).to_pylist() == rows
    assert not partial.exists()
    draw(6, 7).save(folder / "new.png")
    try:
        assert search(folder, "-o", file) == 0
    finally:
        (folder / "new.png").unlink()
    assert pq.read_table(file).to_pylist()[:7] == rows
    assert pq.read_table(file)["photo_id"].to_pylist()[7:] == ["new.png"]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    assert search(folder, "-o", tmp_path / "other.parquet") == 1
    assert "is not a file of answers" in search.err


def test_every_value_of_an_answer_has_a_column() -> None:
    match = Match("item", "photo", 0.1)
    result = SearchResult((match,), "match", "", 0.5, 0.1, 1.0, match, "bundle", 1)
    assert set(result.to_dict()) - {"bundle_id", "timings_ms"} <= set(FIELDS)
    assert set(match.to_dict()) == {field.name for field in FIELDS["nearest"]}


def test_the_standard_input_has_paths_or_json(
    search: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    lines = '0.png\n\n{"path": "1.png", "photo_id": "one", "item_id": "item-01"}\nmissing.png\n'
    assert search("-", lines=lines) == 0
    answers = [json.loads(line) for line in search.out.splitlines()]
    assert [line["photo_id"] for line in answers] == ["0.png", "one", "missing.png"]
    assert answers[1]["item_id"] == "item-01"
    assert "cannot be read" in answers[2]["error"]
    assert "2 photos answered: 2 matches, 1 refused." in search.err
    assert search("-", lines="missing.png\n") == 1
    assert "Nothing was answered: every photo was refused." in search.err
    assert search("-", lines='{"photo_id": "x"}\n') == 1
    assert "It needs `path`" in search.err
    assert search("-", lines="{broken\n") == 1
    assert "line 1 of the standard input is not a JSON object" in search.err


def test_a_table_without_items_is_enough(search: CommandLine, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(
        f"path,photo_id,bbox\n{folder / '3.png'},whole,\n{folder / '3.png'},part,0 0 30 40\n"
    )
    assert search(tmp_path / "q.csv") == 0
    whole, part = (json.loads(line) for line in search.out.splitlines())
    assert (whole["photo_id"], whole["item_id"]) == ("whole", "item-03")
    assert part["photo_id"] == "part"
    assert part["nearest_distance"] != whole["nearest_distance"]


def test_truth_measures_the_rates_and_shows_the_worst(
    search: CommandLine, folder: Path, tmp_path: Path, world: Path
) -> None:
    rows = [(folder / f"{item}.png", f"item-{item:02d}") for item in range(3)]
    rows += [(folder / "3.png", "item-04"), (folder / "4.png", "nowhere"), (folder / "below" / "stranger.png", "")]
    rows += [(folder / "bad.jpg", "item-01"), (world / "photos" / "item-05" / "0.png", "item-05")]
    with (tmp_path / "q.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "sku"), *rows])
    words = (tmp_path / "q.csv", "--truth", "sku", "-o", tmp_path / "a.jsonl")
    assert search(*words, "--report", tmp_path / "worst.html", "--json") == 0
    rates = json.loads(search.out)["rates"]
    assert (rates["items"], rates["unknown_ids"], rates["copies"]) == (4, 1, 1)
    assert (rates["tpir"]["value"], rates["tpir"]["photos"]) == (0.75, 4)
    assert rates["r_at_1"]["value"] == 0.75
    assert rates["misidentification"]["value"] == 0.25
    assert (rates["fpir"]["value"], rates["fpir"]["photos"]) == (0.5, 2)
    assert rates["tpir"]["lower"] < 0.75 < rates["tpir"]["upper"]
    page = (tmp_path / "worst.html").read_text()
    assert "Unknown items that return a match: 1" in page
    assert "Photos that match another item first: 1" in page
    assert "shows item-04; the answer is item-03" in page
    assert page.count("<img") == 2 + 3  # query and answer; and the right item's photo
    assert search(*words) == 0
    assert "4 photos of 4 items of the gallery (95 % intervals):" in search.out
    assert "return a match (FPIR): 50.0%" in search.out
    assert "; the target is at most 5.0%" in search.out


def test_names_of_refused_photos_cannot_control_the_terminal(search: CommandLine, tmp_path: Path) -> None:
    lines = [json.dumps({"path": "missing.jpg", "photo_id": f"a\x1b[2J\n{number}"}) for number in range(2)]
    (tmp_path / "q.jsonl").write_text("\n".join(lines) + "\n")
    assert search(tmp_path / "q.jsonl", "-o", tmp_path / "a.jsonl") == 1
    assert "\x1b" not in search.out + search.err
    assert "  a\\x1b[2J\\n0: " in search.out
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1])["photo_id"] == "a\x1b[2J\n0"


def test_the_items_of_the_gallery_are_known(world: Path) -> None:
    with Retriever.open(world / "bundle", world / "gallery") as retriever:
        photos = [Photo(str(n), Path("a"), item) for n, item in enumerate(("item-01", "nowhere", "", "item-02"))]
        assert KnownItems.of(retriever, photos).items == {"item-01", "item-02"}


def test_the_folders_of_photos_are_their_items(search: CommandLine, world: Path) -> None:
    assert search(world / "photos", "--truth", "item_id") == 0
    assert "30 photos in the gallery, where they find themselves" in search.err
    assert search(world / "photos", "--truth", "sku") == 1
    assert "truth must be item_id for a folder of photos" in search.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--combine"], "--combine must be left out"),
        (["--report", "x.html"], "--report must be used with --truth"),
        (["--top-k", "0"], "top_k must be a whole number"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    search: CommandLine, folder: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    assert search(folder, "-o", tmp_path / "a.jsonl", *words) == 1
    assert told in search.err
    assert not (tmp_path / "a.jsonl").exists()


def test_an_invalid_filter_can_be_corrected(search: CommandLine, folder: Path, tmp_path: Path) -> None:
    assert search(folder, "-o", tmp_path / "a.jsonl", "--where", "nonsense = ") == 1
    assert search(folder, "-o", tmp_path / "a.jsonl") == 0


def test_one_photo_still_gets_one_answer(search: CommandLine, folder: Path) -> None:
    assert search(folder / "0.png") == 0
    assert search.out.startswith("  1  ")
    assert search(folder / "0.png", folder / "1.png") == 1
    assert "or --output FILE to search with each" in search.err
    (folder.parent / "same.jpg").write_bytes(encode(draw(0, 7)))
    assert search(folder, folder) == 1
    assert "two photos have the id 0.png" in search.err


def test_names_that_utf8_cannot_encode_are_answered_and_continued(
    search: CommandLine, folder: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / os.fsdecode(b"\xff.png")).write_bytes((folder / "0.png").read_bytes())
    lines = (
        f'{odd}/\udcff.png\n{odd}/\udcfe.png\n{{"path": "a\\u0000b.png"}}\n{{"path": "c.png", "photo_id": "\\ud800"}}'
    )
    for name in ("a.jsonl", "a.parquet"):
        for _ in range(2):
            assert search("-", "-o", tmp_path / name, lines=lines) == 0
        rows = pq.read_table(tmp_path / name).to_pylist() if name == "a.parquet" else read(tmp_path / name)[1]
        assert [row["photo_id"] for row in rows] == [f"{odd}/\\udcff.png", f"{odd}/\\udcfe.png", "a\0b.png", "\\ud800"]
        assert rows[0]["item_id"] == "item-00"
        assert all("cannot be read" in row["error"] for row in rows[1:])
    assert search(odd / os.fsdecode(b"\xff.png"), odd, "-o", tmp_path / "b.jsonl") == 0  # the head names the place too


def test_hostile_lines_and_places_are_refused(search: CommandLine, folder: Path, tmp_path: Path) -> None:
    assert search("-", lines='{"path": ' + "[" * 100_000) == 1
    assert "line 1 of the standard input is not a JSON object" in search.err
    (tmp_path / "deep.jsonl").write_text('{"path": ' + "[" * 100_000)
    assert search(tmp_path / "deep.jsonl") == 1
    assert "line 1 is not JSON" in search.err
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert search(folder, "-o", tmp_path / "pipe.jsonl") == 1
    assert "is not a regular file" in search.err


def test_a_write_that_takes_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(io.FileIO):
        """Writes at most 7 bytes at a time."""

        def write(self, content: Any) -> int:
            return super().write(bytes(content[:7]))

    monkeypatch.setattr("os.fdopen", lambda number, *_, **__: Slow(number, "r+b"))
    with open_answers(tmp_path / "a.jsonl", {}) as answers:
        answers.append([{"photo_id": "a photo with a long name"}])
    assert read(tmp_path / "a.jsonl")[1] == [{"photo_id": "a photo with a long name"}]
