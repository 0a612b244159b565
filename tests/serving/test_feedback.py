"""Feedback over HTTP: whose answers can be judged, by any process, and the photos of judged answers."""

from __future__ import annotations

import errno
import json
import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from retrieval.errors import InvalidParameter, RetrievalError
from retrieval.feedback import labelled_photos, read_feedback
from retrieval.retriever import Retriever
from serving import feedback
from serving.access.keys import Caller, add_key
from serving.app import create_app
from serving.feedback import FeedbackRecorder
from serving.settings import ServeSettings

from ..world import draw, encode

MINE = encode(draw(3, 5))


@contextmanager
def server(world: Path, folder: Path, **settings: Any) -> Iterator[TestClient]:
    settings = {"feedback": folder / "feedback.jsonl", **settings}
    retriever = Retriever.open(world / "bundle", world / "gallery")
    with TestClient(create_app(retriever, settings=ServeSettings(**settings), page=False)) as client:
        yield client


def search(client: TestClient, image: bytes = MINE, path: str = "/v1/search", **options: Any) -> str:
    return str(client.post(path, content=image, **options).json()["request_id"])


def judge(client: TestClient, request_id: str, verdict: str = "right", **options: Any) -> int:
    item = options.pop("item_id", "")
    body = {"request_id": request_id, "verdict": verdict, "item_id": item}
    return client.post("/v1/feedback", json=body, **options).status_code


def test_an_answer_of_one_process_can_be_judged_at_another(world: Path, tmp_path: Path) -> None:
    with server(world, tmp_path) as one, server(world, tmp_path) as other:
        assert judge(other, search(one), "wrong", item_id="item-04") == 200
    (line,) = read_feedback(tmp_path / "feedback.jsonl")
    assert (line.item_id, line.right_item_id, line.photo) == ("item-03", "item-04", "")
    table = tmp_path / "feedback.jsonl.answers.sqlite"
    assert stat.S_IMODE(table.stat().st_mode) == 0o600


def test_what_is_not_in_the_gallery_or_was_not_answered_is_refused(world: Path, tmp_path: Path) -> None:
    with server(world, tmp_path) as client:
        request_id = search(client)
        assert judge(client, "other") == 404
        assert judge(client, request_id, "wrong", item_id="no such item") == 404
        assert judge(client, request_id, "right", item_id="item-04") == 422
        assert judge(client, request_id, "nice") == 422
    assert not (tmp_path / "feedback.jsonl").exists()
    with server(world, tmp_path, feedback=None) as client:
        assert judge(client, search(client)) == 404  # this server takes none


def test_a_key_judges_its_own_answers_and_an_admin_all(world: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {name: add_key(file, name, "admin" if name == "boss" else "search") for name in ("ann", "bob", "boss")}
    headers = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
    with server(world, tmp_path, keys=file) as client:
        named = {"X-Request-ID": "same"}  # both keys use one id
        for name in ("ann", "bob"):
            assert search(client, headers={**headers[name], **named}) == "same"
        only_anns = search(client, headers=headers["ann"])
        assert judge(client, only_anns, headers=headers["bob"]) == 404
        for name in ("ann", "bob"):
            assert judge(client, "same", headers=headers[name]) == 200
        assert judge(client, only_anns, headers=headers["boss"]) == 200
    lines = read_feedback(tmp_path / "feedback.jsonl")
    assert [(line.asked_by, line.key) for line in lines] == [("ann", "ann"), ("bob", "bob"), ("ann", "boss")]


def test_a_verdict_is_undone_by_who_gave_it_and_the_answer_is_as_it_was(world: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {name: add_key(file, name, "admin" if name == "boss" else "search") for name in ("ann", "bob", "boss")}
    ann, bob, boss = ({"Authorization": f"Bearer {key}"} for key in keys.values())
    with server(world, tmp_path, keys=file, feedback_photos=tmp_path / "judged") as client:
        request_id = search(client, headers=ann)

        def undo(name: str = request_id, **options: Any) -> int:
            return client.delete(f"/v1/feedback/{name}", **options).status_code

        assert undo(headers=ann) == undo("other", headers=ann) == 404  # nobody has judged it
        assert judge(client, request_id, headers=ann) == 200
        assert (undo(headers=bob), undo()) == (404, 401)
        assert undo(headers=ann) == 200
        assert client.get("/v1/admin/answers", headers=boss).json() == []  # a match that nobody judged
        assert undo(headers=ann) == 404
        assert judge(client, request_id, "wrong", headers=ann, item_id="item-04") == 200
        assert client.delete("/v1/items/item-03", headers=ann).status_code == 403  # other changes are for admins
    lines = read_feedback(tmp_path / "feedback.jsonl")
    assert [line.verdict for line in lines] == ["right", "undone", "wrong"]
    (photo,), _ = labelled_photos(lines, tmp_path / "judged")
    assert photo.item_id == "item-04"


def test_of_answers_to_two_keys_with_one_id_photo_verdict_and_item_are_those_of_the_newest(
    world: Path, tmp_path: Path
) -> None:
    """Clients may choose the id: nobody's photo may come to the answer or the verdict of somebody else."""
    file, folder, other = tmp_path / "keys.json", tmp_path / "judged", encode(draw(5, 5))
    keys = {name: add_key(file, name, "admin" if name == "boss" else "search") for name in ("ann", "bob", "boss")}
    ann, bob, boss = ({"Authorization": f"Bearer {key}", "X-Request-ID": "same"} for key in keys.values())
    with server(world, tmp_path, keys=file, feedback_photos=folder) as client:

        def shown() -> tuple[list[tuple[str, str]], bytes]:
            listed = client.get("/v1/admin/answers", headers=boss).json()
            photo = client.get("/v1/admin/answers/same/photo", headers=boss).content
            return [(one["item_id"], one["verdict"]) for one in listed], photo

        search(client, headers=bob)
        assert judge(client, "same", headers=bob) == 200
        assert shown() == ([("item-03", "right")], MINE)
        search(client, other, headers=ann)
        assert shown() == ([], other)  # that verdict was on another answer
        assert judge(client, "same", "wrong", headers=boss, item_id="item-07") == 200
        assert shown() == ([("item-05", "wrong")], other)


def test_a_verdict_does_not_pass_to_a_later_answer_with_the_same_id(world: Path, tmp_path: Path) -> None:
    with server(world, tmp_path, feedback_photos=tmp_path / "judged") as client:
        named = {"X-Request-ID": "same"}
        search(client, headers=named)
        assert judge(client, "same", "wrong", item_id="item-07") == 200
        assert [one["verdict"] for one in client.get("/v1/admin/answers").json()] == ["wrong"]
        search(client, encode(draw(5, 5)), headers=named)
        assert client.get("/v1/admin/answers").json() == []  # a match that nobody judged
        assert judge(client, "same") == 200
        (shown,) = client.get("/v1/admin/answers").json()
        assert (shown["item_id"], shown["verdict"], shown["right_item_id"]) == ("item-05", "right", "")


def test_a_line_that_was_cut_off_spoils_neither_the_next_verdict_nor_the_list_of_answers(
    world: Path, tmp_path: Path
) -> None:
    file = tmp_path / "feedback.jsonl"
    file.write_text('{"verdict":"wro')
    with server(world, tmp_path, feedback_photos=tmp_path / "judged") as client:
        assert judge(client, search(client)) == 200
        assert [one["verdict"] for one in client.get("/v1/admin/answers").json()] == ["right"]
    broken, verdict, end = file.read_text().split("\n")
    assert (broken, end) == ('{"verdict":"wro', "")
    assert json.loads(verdict)["verdict"] == "right"


def test_a_verdict_that_does_not_fit_on_the_disk_says_so_and_can_be_sent_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "feedback.jsonl"))

    with server(world, tmp_path) as client:
        request_id = search(client)
        with monkeypatch.context() as disk:
            disk.setattr(feedback, "append_feedback", full)
            assert judge(client, request_id) == 507
        assert judge(client, request_id) == 200
    assert len(read_feedback(tmp_path / "feedback.jsonl")) == 1


def test_a_table_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    (tmp_path / "feedback.jsonl.answers.sqlite").write_bytes(b"no table" * 1000)
    with pytest.raises(RetrievalError, match=r"feedback\.jsonl\.answers\.sqlite.* file is not a database"):
        feedback.FeedbackRecorder(file)


def test_processes_that_start_together_all_take_feedback(tmp_path: Path) -> None:
    """To make the table wait for another process fails at once in some of SQLite's journal modes."""
    for number in range(20):
        file = tmp_path / f"{number}.jsonl"
        with ThreadPoolExecutor(4) as pool:  # a connection each, as in processes
            recorders = list(pool.map(FeedbackRecorder, [file] * 4))
        for recorder in recorders:
            recorder.close()


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"feedback must be a file.*feedback\.jsonl"):
        feedback.FeedbackRecorder(tmp_path)


def test_a_file_in_place_of_the_folder_for_photos_is_named(tmp_path: Path) -> None:
    (tmp_path / "photos").write_bytes(b"")
    with pytest.raises(FileExistsError, match=r"photos'$"):
        feedback.FeedbackRecorder(tmp_path / "feedback.jsonl", tmp_path / "photos")


def test_answers_and_their_photos_are_kept_for_a_day(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1e9
    monkeypatch.setattr(feedback.time, "time", lambda: now)
    with server(world, tmp_path, feedback_photos=tmp_path / "judged") as client:
        first = search(client)
        now += 3600.0
        second = search(client)
        now += 23 * 3600.0
        search(client)
        assert judge(client, first) == 200  # at 24 hours to the second
        now += 1.0
        third = search(client)
        assert [judge(client, request_id) for request_id in (first, second, third)] == [404, 200, 200]
        assert client.get(f"/v1/admin/answers/{first}/photo").status_code == 404
        assert client.get(f"/v1/admin/answers/{second}/photo").content == MINE


def test_the_answers_to_parts_of_a_photo_share_it(world: Path, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    with server(world, tmp_path, feedback_photos=folder) as client:
        path = "/v1/search/boxes?bbox=0,0,20,20&bbox=20,20,40,40"
        asked = [answer["request_id"] for answer in client.post(path, content=MINE).json()["answers"]]
        assert [judge(client, request_id) for request_id in asked] == [200, 200]
        database = sqlite3.connect(tmp_path / "feedback.jsonl.answers.sqlite")
        assert database.execute("SELECT count(*), count(photo) FROM recent").fetchone() == (2, 1)
        database.close()
    (photo,) = folder.iterdir()
    assert photo.read_bytes() == MINE
    assert [line.photo for line in read_feedback(tmp_path / "feedback.jsonl")] == [photo.name] * 2


def test_the_tables_of_an_older_version_are_dropped(world: Path, tmp_path: Path) -> None:
    table = tmp_path / "feedback.jsonl.answers.sqlite"
    with sqlite3.connect(table) as database:
        for name in ("answers", "photos", "verdicts"):
            database.execute(f"CREATE TABLE {name} (number INTEGER PRIMARY KEY, key TEXT)")
    database.close()
    with server(world, tmp_path) as client:
        assert judge(client, search(client)) == 200
        database = sqlite3.connect(table)
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        database.close()
    assert names == {"recent", "sqlite_sequence"}


def test_photos_of_judged_answers_are_kept_with_their_box(world: Path, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    with server(world, tmp_path, feedback_photos=folder) as client:
        whole, part = search(client), search(client, path="/v1/search?bbox=0,0,20,20")
        search(client, encode(draw(5, 5)))  # is not judged
        assert list(folder.iterdir()) == []
        assert judge(client, whole) == judge(client, part) == 200
        listed = [one["request_id"] for one in client.get("/v1/admin/answers").json()]
        codes = [client.get(f"/v1/admin/answers/{request_id}/photo").status_code for request_id in (whole, part)]
        assert (listed, codes) == ([whole], [200, 404])  # /manage would add the whole photo to the item of a part
    (photo,) = folder.iterdir()
    assert photo.read_bytes() == MINE
    assert stat.S_IMODE(photo.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    lines = read_feedback(tmp_path / "feedback.jsonl")
    assert [(line.photo, line.bbox) for line in lines] == [(photo.name, None), (photo.name, (0, 0, 20, 20))]


def test_an_answer_that_a_second_look_decided_is_about_the_whole_photo(world: Path, tmp_path: Path) -> None:
    retriever = Retriever.open(world / "bundle", world / "gallery")
    recorder = feedback.FeedbackRecorder(tmp_path / "feedback.jsonl", tmp_path / "judged")
    found = retriever.search(MINE)
    looked = replace(found, look="block", box=(2.0, 2.0, 30.0, 30.0))
    recorder.keep(Caller(is_admin=True), {"again": looked}, MINE)
    assert [answer["request_id"] for answer in recorder.recent()] == ["again"]
    recorder.record(retriever, Caller(is_admin=True), "again", "right")
    recorder.close()
    (line,) = read_feedback(tmp_path / "feedback.jsonl")
    assert line.bbox is None


def test_without_a_folder_neither_photo_nor_metadata_is_kept(world: Path, tmp_path: Path) -> None:
    with server(world, tmp_path) as client:
        assert judge(client, search(client)) == 200
        database = sqlite3.connect(tmp_path / "feedback.jsonl.answers.sqlite")
        ((answer, photo),) = database.execute("SELECT answer, photo FROM recent").fetchall()
        assert photo is None
        database.close()
    assert set(json.loads(answer)) == {"decision", "bundle_id", "gallery_version", "item_id", "distance", "bbox"}


def test_what_cannot_be_kept_costs_neither_the_answer_nor_the_verdict(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "judged"
    with server(world, tmp_path, feedback_photos=folder) as client:
        request_id = search(client)
        folder.rmdir()
        folder.write_text("no folder")
        assert judge(client, request_id) == 200
        with sqlite3.connect(tmp_path / "feedback.jsonl.answers.sqlite") as database:
            database.execute("DROP TABLE recent")
        database.close()
        assert client.post("/v1/search", content=MINE).json()["decision"] == "match"
        assert judge(client, request_id) == 500
    assert [line.photo for line in read_feedback(tmp_path / "feedback.jsonl")] == [""]
    assert "feedback.jsonl.answers.sqlite, the table of recent answers, cannot be used: no such table" in caplog.text
