import datetime
import io
import json
import os
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index.groups import GROUP, group_of
from retrieval.catalogue.check import check_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError

from ...world import draw, encode, write_folder


def test_csv_and_parquet_say_the_same(tmp_path: Path) -> None:
    rows = [
        {"path": "a.jpg", "label": "x", "group": "g", "source": "s", "bbox": "1 2 30 40", "brand": "b"},
        {"path": "b.jpg", "label": "y", "group": "", "source": "", "bbox": "", "brand": ""},
    ]
    header = ",".join(rows[0])
    (tmp_path / "c.csv").write_text("\n".join([header, *(",".join(r.values()) for r in rows)]), encoding="utf-8-sig")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    one, other = read_catalogue(tmp_path / "c.csv"), read_catalogue(tmp_path / "c.parquet")
    assert one == other
    assert one[0].path == tmp_path / "a.jpg"
    assert (one[0].item_id, one[0].group, one[0].bbox) == ("x", "g", (1.0, 2.0, 30.0, 40.0))
    assert one[0].metadata == {"brand": "b"}
    assert one[1].metadata == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,name\na.jpg,x\n", "`item_id` or `label`"),
        ("label\nx\n", "It needs `path`"),
        ("path,label\na.jpg,\n", "line 2"),
        ("path,label\na.jpg,x\na.jpg,y\n", "twice"),
        ("path,label,role\na.jpg,x,judge\n", "gallery or query"),
        ("path,label,bbox\na.jpg,x,1 2 3\n", "left upper right lower"),
        ("path,label,bbox\na.jpg,x,10 10 10.4 60\n", "line 2: bbox '10 10 10.4 60' is empty"),  # less than a pixel
        ("path,label,bbox\na.jpg,x,1 2 inf 4\n", "left upper right lower"),
        ("path,label\n", "contains no photos"),
    ],
)
def test_a_bad_csv_is_refused_with_the_way_out(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_catalogue(tmp_path / "c.csv")


@pytest.mark.parametrize(
    "bbox", ["5", "true", "[null, 1, 2, 3]", "[[1], 2, 3, 4]", "[1, 2, 3, 1e999]", f"[1, 2, 3, 1{'0' * 400}]"]
)
def test_a_bbox_of_another_kind_is_refused_with_its_line(tmp_path: Path, bbox: str) -> None:
    (tmp_path / "c.jsonl").write_text(f'{{"path": "a.jpg", "item_id": "x", "bbox": {bbox}}}\n')
    with pytest.raises(DataError, match="line 1: bbox is"):
        read_catalogue(tmp_path / "c.jsonl")


def test_a_missing_group_is_not_the_group_nan_and_zero_is_a_group(tmp_path: Path) -> None:
    rows = ['{"path": "a.jpg", "item_id": "a", "group": NaN}', '{"path": "b.jpg", "item_id": "b", "group": 0}']
    (tmp_path / "c.jsonl").write_text("\n".join([*rows, '{"path": "c.jpg", "item_id": "c", "group": null}']))
    assert [photo.group for photo in read_catalogue(tmp_path / "c.jsonl")] == ["", "0", ""]
    for value, group in ((0, "0"), ("", ""), (None, ""), (False, ""), ("x", "x")):
        assert group_of("item", {GROUP: value}) == group


def test_a_missing_item_is_not_the_item_nan_and_a_table_names_no_places_in_files(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"path": "a.jpg", "item_id": NaN}\n')
    with pytest.raises(DataError, match="line 1: path or item_id is empty"):
        read_catalogue(tmp_path / "c.jsonl")
    for span in ("7", "[0, 9]"):
        (tmp_path / "c.jsonl").write_text(f'{{"path": "a.jpg", "item_id": "x", "_span": {span}}}\n')
        assert read_catalogue(tmp_path / "c.jsonl")[0].span is None


def test_a_date_that_python_does_not_have_is_refused(tmp_path: Path) -> None:
    dates = pa.array([2**30], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"path": ["a.jpg"], "item_id": ["x"], "since": dates}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet has a value that cannot be read.*Write it as text"):
        read_catalogue(tmp_path / "c.parquet")


def test_dates_become_text_and_empty_cells_nothing(tmp_path: Path) -> None:
    rows = [{"path": "a.jpg", "label": "x", "since": datetime.date(2026, 1, 2), "price": float("nan"), "stock": 3}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    assert read_catalogue(tmp_path / "c.parquet")[0].metadata == {"since": "2026-01-02", "stock": 3}


@pytest.mark.parametrize("name", ["c.csv", "c.jsonl", "c.parquet", "c.tar"])
def test_a_table_that_is_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    (tmp_path / "zero").mkdir()
    (tmp_path / "zero" / name).symlink_to("/dev/zero")
    for table in (tmp_path / name, tmp_path / "zero" / name):
        with pytest.raises(DataError, match="is not a file or a folder"):
            read_catalogue(table)


def test_what_is_no_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_catalogue(tmp_path / "none.csv")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(DataError, match="not a folder, CSV, parquet"):
        read_catalogue(tmp_path / "x.txt")
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(DataError, match="not a parquet"):
        read_catalogue(tmp_path / "x.parquet")


def test_check_finds_what_would_spoil_training(tmp_path: Path) -> None:
    write_folder(tmp_path / "c", items=range(3))
    (tmp_path / "c/item-00/bad.jpg").write_bytes(b"no image")
    (tmp_path / "c/item-01/copy.png").write_bytes((tmp_path / "c/item-01/0.png").read_bytes())
    (tmp_path / "c/lonely").mkdir()
    draw(9, 0).save(tmp_path / "c/lonely/only.png")
    photos = read_catalogue(tmp_path / "c")
    moved = [replace(p, partition="test" if p.photo_id.endswith("2.png") else "train") for p in photos]
    report = check_catalogue(moved, progress=False)
    assert [photo_id for photo_id, _ in report.unreadable] == ["item-00/bad.jpg"]
    assert report.duplicates == [["item-01/0.png", "item-01/copy.png"]]
    assert report.single_photo_items == ["lonely"]
    assert report.split_items == ["item-00", "item-01", "item-02"]
    assert not report.usable


def test_json_lines_say_the_same_as_csv(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(
        '{"path": "a.jpg", "item_id": "x", "bbox": [1, 2, 30, 40], "price": 3.5, "new": true}\n'
        '\n{"path": "b.jpg", "item_id": "y", "brand": "b"}\n'
    )
    photos = read_catalogue(tmp_path / "c.jsonl")
    assert [(p.photo_id, p.item_id, p.bbox) for p in photos] == [
        ("a.jpg", "x", (1.0, 2.0, 30.0, 40.0)),
        ("b.jpg", "y", None),
    ]
    assert [dict(p.metadata) for p in photos] == [{"price": 3.5, "new": True}, {"brand": "b"}]
    (tmp_path / "bad.jsonl").write_text('{"path": "a.jpg", "item_id": "x"}\n{"path"\n')
    with pytest.raises(DataError, match="line 2 is not a JSON object"):
        read_catalogue(tmp_path / "bad.jsonl")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    with pytest.raises(DataError, match="is not a JSON object"):
        read_catalogue(tmp_path / "list.jsonl")


def shard(path: Path, files: dict[str, bytes], *, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("column", ["path", "photo_id", "item_id", "group"])
@pytest.mark.parametrize("value", [{"a": 1}, ["x"]])
def test_an_object_or_a_list_is_no_id(tmp_path: Path, column: str, value: object) -> None:
    rows = [{"path": "a.jpg", "item_id": "x"}, {"path": "b.jpg", "item_id": "y", column: value}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=re.escape(f"line 2: {column} is {value!r}")) as error:
        read_catalogue(tmp_path / "c.jsonl")
    assert error.value.remedy == "Write ids and paths as text"


def test_shards_are_read_where_they_lie(tmp_path: Path) -> None:
    pictures = [encode(draw(item, 0)) for item in range(3)]
    folder = tmp_path / "shards"
    folder.mkdir()
    shard(
        folder / "a.tar",
        {
            "d/0001.jpg": pictures[0],
            "d/0001.json": b'{"item_id": "x", "brand": "b", "path": "/etc/passwd"}',
            "0002.side.png": pictures[1],
            "0002.cls": b"y\n",
            "0003.json": b'{"item_id": "z"}',
        },
    )
    shard(folder / "b.tar", {"0001.cls": b"x", "0001.png": pictures[2]})
    photos = read_catalogue(folder)
    assert [(p.photo_id, p.item_id) for p in photos] == [("a/d/0001.jpg", "x"), ("b/0001.png", "x")]
    photos = read_catalogue(folder / "b.tar")
    assert photos[0].read() == pictures[2]
    first = read_catalogue(folder / "a.tar")[0]
    assert first.read() == pictures[0]
    assert first.path == folder / "a.tar"
    assert first.metadata == {"brand": "b"}
    assert check_catalogue(photos, progress=False).usable


def test_short_rows_and_empty_cells_beyond_the_header_are_read(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,label,group,brand\na.jpg,x\n\nb.jpg,y,g,b,,\n")
    photos = read_catalogue(tmp_path / "c.csv")
    assert [(p.photo_id, p.item_id, p.group, dict(p.metadata)) for p in photos] == [
        ("a.jpg", "x", "", {}),
        ("b.jpg", "y", "g", {"brand": "b"}),
    ]


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    columns = [pa.array([value]) for value in ("a.jpg", "x", "red", "blue")]
    pq.write_table(pa.Table.from_arrays(columns, names=["path", "item_id", "colour", "colour"]), tmp_path / "c.parquet")
    with pytest.raises(DataError, match="several columns 'colour'"):
        read_catalogue(tmp_path / "c.parquet")


def test_all_photos_of_an_item_have_its_group(tmp_path: Path) -> None:
    """As in a spreadsheet with a cell for the group of several lines, which belongs to the first of them."""
    (tmp_path / "c.csv").write_text("path,item_id,group\nb.jpg,y,\na.jpg,x,g\nc.jpg,x,\nd.jpg,y,h\ne.jpg,z,\n")
    assert [photo.group for photo in read_catalogue(tmp_path / "c.csv")] == ["h", "g", "g", "h", ""]
    (tmp_path / "c.csv").write_text("path,item_id,group\na.jpg,x,\nc.jpg,x,h\nd.jpg,x,g\ne.jpg,y,g\n")
    assert [photo.group for photo in read_catalogue(tmp_path / "c.csv")] == ["h", "h", "h", "g"]  # the first


def test_what_is_no_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="uncompressed tar"):
        read_catalogue(shard(tmp_path / "packed.tar", {"0.png": b"x", "0.cls": b"y"}, mode="w:gz"))
    with pytest.raises(DataError, match="is not JSON"):
        read_catalogue(shard(tmp_path / "bad.tar", {"0.png": b"x", "0.json": b"{"}))
    with pytest.raises(DataError, match="`item_id` or `label`"):
        read_catalogue(shard(tmp_path / "none.tar", {"0.png": b"x"}))


def test_every_row_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    rows = ["path,item_id,role,bbox", "a.jpg,x,,", ",x,,", "b.jpg,x,cover,", "c.jpg,x,,1 2 3", "d.jpg,x,,", "e.jpg,,,"]
    (tmp_path / "c.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError) as caught:
        read_catalogue(tmp_path / "c.csv")
    assert caught.value.message == (
        f"{tmp_path / 'c.csv'}, line 3: path or item_id is empty; line 4: role is 'cover'; line 5: bbox is '1 2 3'; "
        "line 7: path or item_id is empty"
    )
    assert caught.value.remedy == (
        "Fill it in, or remove the line. Use gallery or query. Write left upper right lower in pixels"
    )


def test_of_many_unusable_rows_twenty_are_named_and_all_are_counted(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"path": "a.jpg"\n' * 25)
    with pytest.raises(DataError) as caught:
        read_catalogue(tmp_path / "c.jsonl")
    assert "line 20 is not a JSON object" in caught.value.message
    assert caught.value.message.endswith(" and 5 more")
    (tmp_path / "c.csv").write_text("path,item_id\n" + "".join(f"{name}.jpg,x\n" for name in "abcabd"))
    with pytest.raises(DataError, match=r"names photos twice: a.jpg, b.jpg\. Give"):
        read_catalogue(tmp_path / "c.csv")
