"""Items and photos over HTTP, batches, feedback, reload, keys, drift: each as a client or an operator meets it."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DiskFull
from retrieval.images import Appearance
from retrieval.indexing import plan
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.worker import FILE
from retrieval.retriever import Retriever
from retrieval.search.result import SearchResult
from serving.access.keys import KeyRing, add_key, read_keys, remove_keys
from serving.app import create_app
from serving.errors import KeyFileError
from serving.ops.drift import EFFECT, FIRST, LEAST, DriftMonitor, drift_warning, largest_difference
from serving.ops.logs import JsonFormatter, TextFormatter, concerns_people
from serving.ops.metrics import METRICS
from serving.pool import BatchingEmbedder
from serving.reloads import Places
from serving.settings import ServeSettings

from ..gallery_contents import contents
from ..world import draw, encode, make_bundle

MINE = encode(draw(3, 5))
STRANGER = encode(draw(77, 0))


@pytest.fixture
def client(shop: Path) -> Iterator[TestClient]:
    settings = ServeSettings(feedback=shop / "feedback.jsonl")
    with TestClient(create_app(Retriever.open(shop / "bundle", shop / "gallery"), settings=settings, page=False)) as it:
        yield it


def search(client: TestClient, image: bytes = MINE, **parameters: Any) -> dict[str, Any]:
    answer = client.post("/v1/search", params=parameters, content=image)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_photo_put_over_http_is_the_row_that_indexing_writes(client: TestClient, shop: Path, tmp_path: Path) -> None:
    """Indexing the same file again skips it: the rows are equal in everything, the hash of the content too."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "new.jpg").write_bytes(STRANGER)
    (tmp_path / "more.csv").write_text("path,photo_id,item_id,brand\nmore/new.jpg,new.jpg,new,x\n")
    photos, bundle = read_catalogue(tmp_path / "more.csv"), Bundle.open(shop / "bundle")
    body = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new", "metadata": {"brand": "x"}}
    assert client.put("/v1/photos/new.jpg", json=body).status_code == 200
    index_catalogue(bundle, photos, tmp_path / "indexed", progress=False)
    with Gallery.open(shop / "gallery") as over_http, Gallery.open(tmp_path / "indexed") as indexed:
        photo_id, item_id, metadata = indexed.photo("new.jpg")
        assert metadata.pop(FILE)  # an upload is no file
        assert over_http.photo("new.jpg") == (photo_id, item_id, metadata)
        assert over_http.thumbnail("new.jpg") == indexed.thumbnail("new.jpg")
        (answer,) = over_http.search(contents(indexed)[2], 1)
        assert (answer[0].photo_id, answer[0].distance) == ("new.jpg", 0)
    report = index_catalogue(bundle, photos, shop / "gallery", progress=False)
    assert (report.added, report.skipped) == (0, 1)


def test_a_photo_that_is_added_to_an_item_has_the_item_s_group(client: TestClient, shop: Path) -> None:
    """Else the item would lose its group once the photos that have it are indexed anew, and come after this one."""
    image, groups = base64.b64encode(STRANGER).decode(), {}
    for name, item, metadata in (
        ("first.jpg", "mug", {"group": "mugs"}),
        ("second.jpg", "mug", {"name": "Mug"}),
        ("moved.jpg", "mug", {"group": "cups"}),
        ("alone.jpg", "plate", {"name": "Plate"}),
    ):
        body = {"image": image, "item_id": item, "metadata": metadata}
        assert client.put(f"/v1/photos/{name}", json=body).status_code == 200
        groups[name] = client.get(f"/v1/photos/{name}").json()["metadata"].get("group")
    assert groups == {"first.jpg": "mugs", "second.jpg": "mugs", "moved.jpg": "cups", "alone.jpg": None}


def test_a_table_changes_items_and_metadata_without_images(client: TestClient, shop: Path) -> None:
    for name in ("new/1.jpg", "new/2.jpg"):
        body = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new", "metadata": {"brand": "x"}}
        assert client.put(f"/v1/photos/{name}", json=body).status_code == 200
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        rows = [{"photo_id": name, "item_id": item, "metadata": facts} for name, item, facts in gallery.photos()]
    for row in rows:
        row["metadata"] = {key: value for key, value in row["metadata"].items() if not key.startswith("_")}
    rows[0] |= {"item_id": "renamed", "metadata": {"price": 3}}
    count = len(rows)
    version = client.get("/v1/info").json()["gallery"]["version"]
    table = {"photos": [*rows[:-1], {"photo_id": "absent", "item_id": "x"}], "prune": True}
    expected = {"updated": 1, "unchanged": count - 2, "missing": 1, "missing_photos": ["absent"], "gone": 1}
    expected |= {"gone_photos": [rows[-1]["photo_id"]], "etags": {}}
    planned = client.post("/v1/admin/sync", json={**table, "dry_run": True}).json()
    assert planned == {**expected, "gallery_version": version}
    done = client.post("/v1/admin/sync", json=table).json()
    assert done == {**expected, "gallery_version": version + 2}
    photo = client.get(f"/v1/photos/{rows[0]['photo_id']}").json()
    assert (photo["item_id"], photo["metadata"]) == ("renamed", {"price": 3})
    assert search(client, STRANGER)["matches"][0]["photo_id"] == "new/1.jpg"
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        assert [change.action for change in gallery.changes(2)] == ["remove", "update"]
        assert len(gallery) == count - 1
        assert gallery.photo(rows[0]["photo_id"])[2]["_content_sha256"]
    for bad in ([rows[0], rows[0]], [{**rows[0], "metadata": {"_file": "x"}}], [{"photo_id": "", "item_id": "x"}]):
        assert client.post("/v1/admin/sync", json={"photos": bad}).status_code == 422


def test_a_table_that_lacks_most_photos_removes_none(client: TestClient, shop: Path) -> None:
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        rows = [{"photo_id": name, "item_id": item} for name, item, _ in gallery.photos()]
    count, version = len(rows), client.get("/v1/info").json()["gallery"]["version"]
    few = {"photos": rows[: count // 2 - 1], "prune": True}
    strange = {"photos": [{"photo_id": "typo", "item_id": "x"}], "prune": True, "prune_at_most": 1}
    for table, told in ((few, "share of 0.5"), (strange, "keep none")):
        for dry_run in (True, False):
            answer = client.post("/v1/admin/sync", json={**table, "dry_run": dry_run})
            assert (answer.status_code, answer.json()["type"]) == (409, "/problems/prune-refused")
            assert f"of the gallery's {count} photos" in answer.json()["title"]
            assert told in answer.json()["title"]
    assert "prune_at_most" in client.post("/v1/admin/sync", json=few).json()["detail"]
    for bad in ({"photos": []}, {**few, "prune_at_most": 1.1}):
        assert client.post("/v1/admin/sync", json=bad).status_code == 422
    assert client.get("/v1/info").json()["gallery"]["version"] == version
    removed = client.post("/v1/admin/sync", json={**few, "prune_at_most": 0.9}).json()["gone"]
    assert removed == count - len(few["photos"])
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        assert len(gallery) == len(few["photos"])


def test_photos_are_added_found_replaced_and_removed(client: TestClient) -> None:
    assert search(client, STRANGER)["decision"] == "no_match"
    version = client.get("/v1/info").json()["gallery"]["version"]
    body = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new/item", "metadata": {"brand": "x"}}
    stored = client.put("/v1/photos/new%2F1.jpg", json=body).json()
    etag = stored.pop("etag")
    assert stored == {"photo_id": "new/1.jpg", "item_id": "new/item", "replaced": False, "gallery_version": version + 1}
    found = search(client, STRANGER)
    assert (found["decision"], found["matches"][0]["item_id"]) == ("match", "new/item")
    assert found["gallery_version"] == version + 1
    assert found["margin"] == found["threshold"] - found["nearest_distance"]
    photo = {"photo_id": "new/1.jpg", "item_id": "new/item", "metadata": {"brand": "x"}, "etag": etag}
    assert client.get("/v1/photos/new%2F1.jpg").json() == photo
    assert client.get("/v1/items/new%2Fitem").json() == {"item_id": "new/item", "photos": [photo]}
    assert client.get("/v1/thumbnails/new%2F1.jpg").headers["content-type"] == "image/jpeg"
    again = client.put("/v1/photos/new%2F1.jpg?item_id=other", content=STRANGER, headers={"content-type": "image/jpeg"})
    assert again.json()["replaced"] is True
    assert search(client, STRANGER)["matches"][0]["item_id"] == "other"
    assert client.delete("/v1/photos/new%2F1.jpg").json()["photos"] == 1
    assert client.get("/v1/photos/new%2F1.jpg").status_code == 404
    assert search(client, STRANGER)["decision"] == "no_match"
    assert client.delete("/v1/items/item-03").json()["photos"] == 3
    assert client.delete("/v1/items/item-03").status_code == 404
    assert search(client)["decision"] == "no_match"


@pytest.mark.parametrize("address", ["/v1/photos/caf%E9?item_id=a", "/v1/photos/p?item_id=%FF", "/v1/items?find=%C3"])
def test_an_address_that_is_not_utf_8_is_refused(client: TestClient, address: str) -> None:
    """Its bytes would all become one character, and photos with such ids would replace each other."""
    method, content = ("GET", None) if "find" in address else ("PUT", STRANGER)
    answer = client.request(method, address, content=content)
    assert (answer.status_code, answer.json()["title"]) == (400, "the address is not UTF-8")
    assert client.get("/v1/items?find=%C3%A9").status_code == 200


def test_a_gallery_that_the_server_may_not_write_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    with monkeypatch.context() as disk:
        disk.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
        for answer in (client.put("/v1/photos/p?item_id=a", content=STRANGER), client.delete("/v1/items/item-01")):
            assert (answer.status_code, "the gallery is read-only here" in answer.text) == (409, True)
    assert client.delete("/v1/items/item-01").status_code == 200


def test_a_table_of_answers_without_room_costs_no_search(
    shop: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "feedback.jsonl.answers.sqlite").write_bytes(b"no table" * 1000)
    settings = ServeSettings(feedback=tmp_path / "feedback.jsonl")
    retriever = Retriever.open(shop / "bundle", shop / "gallery")
    with TestClient(create_app(retriever, settings=settings, page=False)) as client:
        assert search(client)["matches"][0]["item_id"] == "item-03"
        judged = client.post("/v1/feedback", json={"request_id": "a", "verdict": "right"})
        assert (judged.status_code, "does not accept feedback" in judged.text) == (404, True)
    assert "feedback is not accepted" in caplog.text


def test_items_are_listed_page_by_page(client: TestClient) -> None:
    first = client.get("/v1/items?limit=7").json()
    assert (first["items"][0], len(first["items"]), first["next"]) == ("item-00", 7, "item-06")
    rest = client.get("/v1/items", params={"limit": 7, "after": first["next"]}).json()
    assert rest == {"items": ["item-07", "item-08", "item-09"], "next": None}


def test_what_cannot_be_stored_changes_nothing(client: TestClient) -> None:
    before = client.get("/v1/info").json()["gallery"]["version"]
    encoded = base64.b64encode(STRANGER).decode()
    for body, status in (
        ({"image": "no base64!", "item_id": "i"}, 400),
        ({"image": base64.b64encode(b"no image").decode(), "item_id": "i"}, 400),
        ({"image": encoded, "item_id": ""}, 422),
        ({"image": encoded, "item_id": "i", "metadata": {"_hidden": 1}}, 422),
        ({"image": encoded, "item_id": "i", "threshold": 9}, 422),
    ):
        assert client.put("/v1/photos/p", json=body).status_code == status, body
    assert client.put("/v1/photos/p", content=STRANGER).status_code == 422  # of which item?
    assert client.get("/v1/info").json()["gallery"]["version"] == before


def test_another_writer_is_told_apart_from_a_failure(client: TestClient, shop: Path) -> None:
    with Gallery.open(shop / "gallery") as other:
        other.remove(photo_ids=["nothing"])  # it is the writer until it closes
        busy = client.delete("/v1/items/item-01")
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert client.delete("/v1/items/item-01").status_code == 200


def test_a_photo_is_refused_if_the_gallery_keeps_other_features_than_the_bundle_computes(
    client: TestClient, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bundle, "features_key", property(lambda _: "of a verifier"))
    body = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new"}
    answer = client.put("/v1/photos/new.jpg", json=body)
    assert (answer.status_code, "does not compute" in answer.text) == (409, True)
    with Gallery.open(shop / "gallery") as gallery:
        assert gallery.photo("new.jpg") is None


def test_a_photo_that_was_changed_since_is_neither_replaced_nor_removed_where_that_is_asked(client: TestClient) -> None:
    body = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new"}
    new, name = {"If-None-Match": "*"}, "/v1/photos/new.jpg"
    added = client.put(name, json=body, headers=new)
    mine = added.json()["etag"]
    assert (added.status_code, client.get(name).json()["etag"]) == (200, mine)
    assert [photo["etag"] for photo in client.get("/v1/items/new").json()["photos"]] == [mine]
    assert client.put(name, json=body, headers=new).status_code == 412
    for change in ({"item_id": "other"}, {"metadata": {"brand": "x"}}, {"image": base64.b64encode(MINE).decode()}):
        assert client.put(name, json={**body, **change}).status_code == 200
        refused = client.delete(name, headers={"If-Match": mine})
        assert (refused.status_code, "somebody else has changed new.jpg" in refused.text) == (412, True), change
        assert client.put(name, json=body, headers={"If-Match": mine}).status_code == 412
    for known in (client.get(name).json()["etag"], "*"):
        assert client.put(name, json=body, headers={"If-Match": known}).json()["etag"] == mine  # as it was
    assert client.delete(name, headers={"If-Match": mine}).status_code == 200
    assert client.delete(name, headers={"If-Match": mine}).status_code == 412
    assert client.delete(name, headers={"If-Match": "*"}).status_code == 404
    assert client.put(name, json=body, headers={"If-Match": "*"}).status_code == 412


def test_a_table_changes_nothing_if_one_of_its_photos_was_changed_since(client: TestClient) -> None:
    seen = client.get("/v1/items/item-03").json()["photos"]
    moved = [{**photo, "item_id": "moved"} for photo in seen]
    theirs = {**seen[1], "metadata": {**seen[1]["metadata"], "brand": "theirs"}}
    (new,) = client.post("/v1/admin/sync", json={"photos": [theirs]}).json()["etags"].values()
    version = client.get("/v1/info").json()["gallery"]["version"]
    for dry_run in (True, False):
        refused = client.post("/v1/admin/sync", json={"photos": moved, "dry_run": dry_run})
        assert (refused.status_code, theirs["photo_id"] in refused.text) == (412, True)
    assert client.get("/v1/info").json()["gallery"]["version"] == version
    assert client.get(f"/v1/photos/{theirs['photo_id']}").json() == {**theirs, "etag": new}
    done = client.post("/v1/admin/sync", json={"photos": [moved[0], {**moved[1], "etag": new}, moved[2]]}).json()
    now = {photo["photo_id"]: photo["etag"] for photo in client.get("/v1/items/moved").json()["photos"]}
    assert (done["updated"], done["etags"]) == (3, now)
    unasked = [{name: value for name, value in photo.items() if name != "etag"} for photo in seen]
    assert client.post("/v1/admin/sync", json={"photos": unasked}).json()["etags"] == {}


@pytest.mark.parametrize(
    ("blocks", "told"), [(0, "disk is full; nothing was changed"), (1, "disk is full; a part of the table was written")]
)
def test_a_table_on_a_full_disk_says_whether_a_part_of_it_was_written(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, blocks: int, told: str
) -> None:
    monkeypatch.setattr(plan, "BATCH", 2)
    update, written = Gallery.update, list[int]()

    def filling(gallery: Gallery, photo_ids: list[str], *rest: Any, **options: Any) -> int:
        if len(written) == blocks:
            raise DiskFull("no room", remedy="Make room")
        written.append(len(photo_ids))
        return update(gallery, photo_ids, *rest, **options)

    monkeypatch.setattr(Gallery, "update", filling)
    photos = client.get("/v1/items/item-03").json()["photos"]
    table = {"photos": [{**photo, "item_id": "moved", "etag": ""} for photo in photos]}
    answer = client.post("/v1/admin/sync", json=table)
    assert (answer.status_code, told in answer.json()["title"]) == (507, True)
    moved = client.get("/v1/items/moved").json()
    assert len(moved.get("photos", [])) == 2 * blocks
    monkeypatch.setattr(Gallery, "update", update)
    rest = client.post("/v1/admin/sync", json=table)
    assert (rest.status_code, len(client.get("/v1/items/moved").json()["photos"])) == (200, 3)


def test_a_server_that_stops_leaves_no_threads(shop: Path) -> None:
    before = set(threading.enumerate())
    with TestClient(create_app(Retriever.open(shop / "bundle", shop / "gallery"), page=False)) as client:
        assert client.get("/readyz").status_code == 200
        started = [thread for thread in threading.enumerate() if thread not in before]
    ours = [thread for thread in started if thread.name.startswith(("following", "readiness"))]
    assert len(ours) == 2
    for thread in ours:
        thread.join(60)
        assert not thread.is_alive(), thread.name


def test_a_batch_answers_each_photo_and_refuses_each(client: TestClient) -> None:
    images = [MINE, b"no image", STRANGER]
    form = client.post("/v1/search/batch", files=[("images", (f"{i}.jpg", data)) for i, data in enumerate(images)])
    one, two, three = form.json()["answers"]
    assert (one["decision"], two["status"], three["decision"]) == ("match", 400, "no_match")
    assert client.post("/v1/search/batch", content=b"x").status_code == 400
    too_many = [("images", (f"{i}", MINE)) for i in range(65)]
    assert client.post("/v1/search/batch", files=too_many).status_code == 400


def test_a_filter_and_an_explanation(client: TestClient, shop: Path) -> None:
    with Gallery.open(shop / "gallery") as gallery:
        gallery.declare({"source": "text"})
    told = search(client, where="source = 'nowhere'", explain=True)
    assert (told["reason"], told["nearest"], told["margin"]) == ("filtered_out", None, None)
    assert told["explanation"]["items"] == []
    explained = search(client, explain=True)["explanation"]
    assert (explained["items"][0]["item_id"], explained["items"][0]["inliers"]) == ("item-03", 0)
    refused = client.post("/v1/search?where=colour = 'x'", content=MINE)
    assert refused.status_code == 422
    assert search(client)["explanation"] is None


def test_the_clients_own_request_id_is_taken_over_where_it_is_sane(client: TestClient) -> None:
    for told, kept in (
        ("abc-1.2_3", True),
        *((odd, False) for odd in ("a b", "x" * 65, "<script>", "../../x", "{{7*7}}", "%0d%0aX-Evil: 1", "a\r\nX: 1")),
    ):
        answer = client.post("/v1/search", content=MINE, headers={"X-Request-ID": told})
        assert (answer.headers["x-request-id"] == told) is kept
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


# another bundle


@pytest.fixture
def changing(shop: Path) -> Iterator[tuple[TestClient, Path]]:
    """Return a client of a server whose bundle is a link that may lead elsewhere."""
    make_bundle(shop, threshold=0.01, name="strict", files={})
    link = shop / "current"
    link.symlink_to(shop / "bundle")
    places = Places(link, shop / "gallery")
    app = create_app(places.open(), page=False, places=places)
    with TestClient(app) as client:
        yield client, link


def lead(link: Path, to: str) -> None:
    link.unlink()
    link.symlink_to(link.parent / to)


def test_what_does_not_verify_never_takes_over(
    changing: tuple[TestClient, Path], caplog: pytest.LogCaptureFixture
) -> None:
    client, link = changing
    manifest = link.parent / "strict" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("0.01", "0.9"))  # somebody edits a threshold
    lead(link, "strict")
    refused = client.post("/v1/admin/reload")
    assert (refused.status_code, str(link.parent) in refused.text) == (409, False)
    assert "was changed after it was written" in caplog.text
    lead(link, "nothing")
    assert client.post("/v1/admin/reload").status_code == 409
    assert search(client)["threshold"] == 0.5
    metrics = client.get("/metrics").text
    assert 'retrieval_reloads_total{outcome="refused"} 2.0' in metrics


# keys


@pytest.fixture
def keyed(shop: Path) -> Iterator[tuple[TestClient, dict[str, str], Path]]:
    file = shop / "keys.json"
    keys = {scope: add_key(file, scope, scope) for scope in ("search", "admin")}
    settings = ServeSettings(keys=file)
    with TestClient(create_app(Retriever.open(shop / "bundle", shop / "gallery"), settings=settings, page=False)) as it:
        yield it, keys, file


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_opens_what_its_scope_covers(keyed: tuple[TestClient, dict[str, str], Path]) -> None:
    client, keys, file = keyed
    paths = client.get("/openapi.json", headers=bearer(keys["admin"])).json()["paths"]
    operations = [(method, re.sub("{.*?}", "x", path)) for path, methods in paths.items() for method in methods]
    changing = [(m, path) for m, path in operations if m in ("put", "delete") or path.startswith("/v1/admin/")]
    changing.remove(("delete", "/v1/feedback/x"))  # whoever searches may undo a verdict of theirs
    assert len(changing) >= 4
    for method, path in changing:
        assert client.request(method, path, headers=bearer(keys["search"])).status_code == 403
        assert client.request(method, path, headers=bearer(keys["admin"])).status_code not in (401, 403)
    for key in keys.values():
        basic = {"Authorization": "Basic " + base64.b64encode(f"any:{key}".encode()).decode()}
        for headers in (bearer(key), {"X-API-Key": key}, {"Authorization": f"BEARER {key}"}, basic):
            assert client.post("/v1/search", content=MINE, headers=headers).status_code == 200
    for headers in (bearer("rk_wrong"), bearer(""), {"Authorization": "Basic !"}, {"X-API-Key": "é".encode()}):
        assert client.post("/v1/search", content=MINE, headers=headers).status_code == 401  # type: ignore[arg-type]
    assert not any(key in file.read_text() for key in keys.values())
    assert file.stat().st_mode & 0o077 == 0


def test_changes_are_logged_with_the_name_of_the_key(
    keyed: tuple[TestClient, dict[str, str], Path], client: TestClient
) -> None:
    """Without keys they are `http`'s, not those of the user who runs the server."""
    with_keys, keys, file = keyed
    photo = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new"}
    assert with_keys.put("/v1/photos/new.jpg", json=photo, headers=bearer(keys["admin"])).status_code == 200
    assert client.delete("/v1/photos/new.jpg").status_code == 200
    with Gallery.open(file.parent / "gallery", read_only=True) as gallery:
        # the removal, what it holds back, and the addition
        assert [change.actor for change in gallery.changes(3)] == ["http", "http", "admin"]


def test_keys_rotate_while_the_server_runs(keyed: tuple[TestClient, dict[str, str], Path]) -> None:
    client, keys, file = keyed
    new = add_key(file, "search", "search")
    for key in (keys["search"], new):
        assert client.get("/v1/items", headers=bearer(key)).status_code == 200
    assert remove_keys(file, "search", keep_newest=True) == 1
    assert client.get("/v1/items", headers=bearer(keys["search"])).status_code == 401
    assert client.get("/v1/items", headers=bearer(new)).status_code == 200
    file.write_text("{")  # half a file, for a moment
    assert client.get("/v1/items", headers=bearer(new)).status_code == 200
    with pytest.raises(KeyFileError):
        read_keys(file)
    with pytest.raises(KeyFileError):
        KeyRing(file.with_name("none.json"))


def test_pages_of_other_origins_change_nothing(client: TestClient) -> None:
    foreign = ("http://evil.example", "null", "http://testserver.evil.example", "http://evil-testserver")
    for origin, status in (*((each, 403) for each in foreign), ("http://testserver", 200)):
        answer = client.post("/v1/search", content=MINE, headers={"Origin": origin})
        assert answer.status_code == status
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.options("/v1/search", headers={"Origin": "http://evil.example"}).status_code == 403


def test_every_answer_has_its_headers(client: TestClient) -> None:
    for path in ("/healthz", "/nothing", "/v1/info", "/metrics"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src" in headers["content-security-policy"]


# what operators see


def test_metrics_count_what_happens(client: TestClient) -> None:
    search(client)
    search(client, STRANGER)
    client.post("/v1/search", content=b"no image")
    client.get("/v1/thumbnails/nothing")
    text = client.get("/metrics").text
    for line in (
        'retrieval_requests_total{route="/v1/search",status="200"} 2.0',
        'retrieval_requests_total{route="/v1/search",status="400"} 1.0',
        'retrieval_requests_total{route="/v1/thumbnails/{photo_id:any}",status="404"} 1.0',
        'retrieval_decisions_total{decision="match",reason=""} 1.0',
        'retrieval_decisions_total{decision="no_match",reason="beyond_threshold"} 1.0',
        'retrieval_stage_seconds_count{stage="embed"} 2.0',
        "retrieval_nearest_distance_count 2.0",
        "retrieval_gallery_items 10.0",
        "retrieval_threshold 0.5",
        'retrieval_drift_alarm{statistic="norm"} 0.0',
    ):
        assert line in text
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    optional: set[str] = set()
    optional |= {"retrieval_fpir", "retrieval_fpir_upper"}  # and this gallery no threshold
    created = {name for name in named if name.endswith("_created")}
    assert {name.removesuffix("_total") for name in named - created} == set(METRICS) - optional


def test_the_log_is_a_json_line_a_request(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="retrieval.access"):
        client.post("/v1/search?top_k=0", content=MINE, headers={"X-Request-ID": "mine"})
    (record,) = [record for record in caplog.records if record.name == "retrieval.access"]
    line = json.loads(JsonFormatter().format(record))
    assert {"request_id": "mine", "method": "POST", "route": "/v1/search", "status": 422}.items() <= line.items()
    assert line["ms"] > 0


def test_a_terminal_gets_a_short_line_a_search_and_none_for_thumbnails(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="retrieval"):
        client.post("/v1/search", content=MINE)
        client.get("/v1/thumbnails/item-00%2F0.png")
        client.get("/v1/thumbnails/nothing")
        logging.getLogger("retrieval.serving").warning("the disk is nearly full")
    lines = [TextFormatter().format(record) for record in caplog.records if concerns_people(record)]
    assert [re.sub(r"^\d\d:\d\d:\d\d  |\d+ ms$", "", line) for line in lines] == [
        "POST /v1/search  200  ",
        "GET /v1/thumbnails/{photo_id:any}  404  ",
        "warning: the disk is nearly full",
    ]
    assert len([record for record in caplog.records if record.name == "retrieval.access"]) == 3


def test_a_bundle_behind_a_link_stays_the_one_that_was_opened(changing: tuple[TestClient, Path]) -> None:
    client, link = changing
    lead(link, "nothing")
    assert search(client)["decision"] == "match"
    assert client.get("/v1/info").status_code == 200


def answer(norm: float, distance: float, brightness: float) -> SearchResult:
    made = SearchResult((), "no_match", "beyond_threshold", 0.5, distance, None, "b", 1)
    return replace(made, embedding_norm=norm, appearance=Appearance(brightness, 0.2, 0.1))


def test_drift_alarms_for_what_matters_and_not_before(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    monitor = DriftMonitor(Retriever.open(shop / "bundle", shop / "gallery").bundle)
    usual = {"norm": generator.normal(10, 1, 500), "brightness": generator.uniform(0.3, 0.7, 500)}
    monkeypatch.setattr(monitor, "_calibration", usual)
    for _ in range(LEAST - 1):
        monitor.observe(answer(float(generator.normal(10, 1)), 0.3, 0.05))  # too dark
    assert drift_warning(monitor.state()) == ""  # too few to tell
    monitor.observe(answer(10.0, 0.3, 0.05))
    assert "brightness" in drift_warning(monitor.state())
    assert "norm" not in drift_warning(monitor.state())
    alarms = {drift.statistic: drift.alarm for drift in monitor.state()}
    assert alarms == {
        "norm": False,
        "brightness": True,
        "contrast": False,  # nothing to compare with
        "sharpness": False,
        "nearest_distance": False,
    }


def test_nearest_distances_are_compared_with_the_first_of_the_gallery(shop: Path) -> None:
    generator = np.random.default_rng(1)
    monitor = DriftMonitor(Retriever.open(shop / "bundle", shop / "gallery").bundle)
    for _ in range(FIRST):
        monitor.observe(answer(1.0, float(generator.uniform(0.2, 0.8)), 0.5))
    assert "nearest distance" not in drift_warning(monitor.state())
    for _ in range(1000):
        monitor.observe(answer(1.0, float(generator.uniform(0.5, 1.1)), 0.5))
    assert "nearest distance" in drift_warning(monitor.state())


def test_the_statistic_is_the_largest_difference_of_shares() -> None:
    assert largest_difference(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == 1.0
    assert largest_difference(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 3.0, 9.0])) == 0.25
    generator = np.random.default_rng(2)
    by_chance = [largest_difference(*generator.normal(size=(2, LEAST))) for _ in range(300)]
    assert max(by_chance) < EFFECT


# company for a GPU


def test_photos_of_several_requests_are_embedded_together(world: Path) -> None:
    retriever = Retriever.open(world / "bundle", world / "gallery")
    runs: list[int] = []

    class Counting(Embedder):
        def embed_pixels(self, pixels: Any) -> Any:
            runs.append(len(pixels))
            if len(runs) == 1:
                started.set()
                assert go_on.wait(10)
            return super().embed_pixels(pixels)

    started, go_on = threading.Event(), threading.Event()
    retriever.embedder.__class__ = Counting
    batching = BatchingEmbedder(retriever.embedder, most=4)
    pixels = [batching.read([encode(draw(item, 1))]) for item in range(6)]
    answers: list[Any] = [None] * 6

    def ask(number: int) -> None:
        answers[number] = batching.embed_pixels(pixels[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    threads[0].start()
    assert started.wait(10)
    for thread in threads[1:]:
        thread.start()
    while batching._requests.qsize() < 5:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert runs == [1, 4, 1]
    alone = Embedder((world / "bundle" / "model.onnx").read_bytes(), retriever.embedder.preprocessing)
    for number in range(6):
        assert np.allclose(answers[number].vectors, alone.embed_pixels(pixels[number]).vectors, atol=1e-6)
    batching.close()


def test_a_failing_model_is_told_to_every_caller(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.open(world / "bundle", world / "gallery")
    batching = BatchingEmbedder(retriever.embedder, most=4)
    monkeypatch.setattr(retriever.embedder, "embed_pixels", lambda _: 1 / 0)
    with pytest.raises(Exception, match="division"):
        batching.embed_pixels(batching.read([MINE]))
    batching.close()


def test_settings_and_thresholds_are_no_parameters(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRIEVAL_THRESHOLD", "9")
    assert client.post("/v1/search?threshold=9", content=STRANGER).status_code == 422
    told = client.post("/v1/search", content=STRANGER, headers={"X-Threshold": "9"}).json()
    assert (told["threshold"], told["decision"]) == (0.5, "no_match")
    body = {"image": base64.b64encode(STRANGER).decode(), "threshold": 9}
    assert client.post("/v1/search", json=body).status_code == 422
    with pytest.raises(TypeError):
        ServeSettings(threshold=9)  # type: ignore[call-arg]
