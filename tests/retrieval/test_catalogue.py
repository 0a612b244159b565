import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval.catalogue import check_catalogue, read_catalogue
from retrieval.errors import DataError

from ..world import draw, write_folder


def test_a_folder_holds_one_folder_an_item(tmp_path: Path) -> None:
    photos = read_catalogue(write_folder(tmp_path / "c", items=range(2)))
    assert [(p.photo_id, p.item_id) for p in photos[:2]] == [("item-00/0.png", "item-00"), ("item-00/1.png", "item-00")]
    assert all(p.path.exists() for p in photos)


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
        ("path,label\n", "holds no photo"),
    ],
)
def test_a_bad_csv_is_refused_with_the_way_out(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_catalogue(tmp_path / "c.csv")


def test_dates_become_text_and_empty_cells_nothing(tmp_path: Path) -> None:
    rows = [{"path": "a.jpg", "label": "x", "since": datetime.date(2026, 1, 2), "price": float("nan"), "stock": 3}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    assert read_catalogue(tmp_path / "c.parquet")[0].metadata == {"since": "2026-01-02", "stock": 3}


def test_what_is_no_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_catalogue(tmp_path / "none.csv")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(DataError, match="no folder, CSV or parquet"):
        read_catalogue(tmp_path / "x.txt")
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(DataError, match="not a parquet"):
        read_catalogue(tmp_path / "x.parquet")
    draw(0, 0).save(tmp_path / "loose.png")
    with pytest.raises(DataError, match="folder an item"):
        read_catalogue(tmp_path)


def test_check_finds_what_would_spoil_training(tmp_path: Path) -> None:
    write_folder(tmp_path / "c", items=range(3))
    (tmp_path / "c/item-00/bad.jpg").write_bytes(b"no image")
    (tmp_path / "c/item-01/copy.png").write_bytes((tmp_path / "c/item-01/0.png").read_bytes())
    (tmp_path / "c/lonely").mkdir()
    draw(9, 0).save(tmp_path / "c/lonely/only.png")
    photos = read_catalogue(tmp_path / "c")
    moved = [type(p)(**{**vars(p), "partition": "test" if p.photo_id.endswith("2.png") else "train"}) for p in photos]
    report = check_catalogue(moved, progress=False)
    assert [photo_id for photo_id, _ in report.unreadable] == ["item-00/bad.jpg"]
    assert report.duplicates == [["item-01/0.png", "item-01/copy.png"]]
    assert report.single_photo_items == ["lonely"]
    assert report.split_items == ["item-00", "item-01", "item-02"]
    assert not report.usable
