"""Parquet files that hold the images, as Hugging Face `datasets` writes them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval.catalogue import embedded
from retrieval.catalogue.check import describe_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.tables import write_catalogue
from retrieval.errors import DataError, ImageTooLarge, ImageUnreadable
from retrieval.images import Preprocessing, check_bytes
from retrieval.indexing.pipeline import index_catalogue
from training.data.reader import PhotoReader

from ...world import draw, encode, make_bundle

DATA = [encode(draw(item, number)) for item in (0, 1) for number in range(3)]
NAMES = ["kiwi", "lime"]


def write(path: Path, rows: list[bytes | None], *, first: int = 0) -> None:
    """Write images with numbered labels, two in a row group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": data, "path": None} for data in rows]
    features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    table = pa.table(
        {
            "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "label": [(first + n) // 3 for n in range(len(rows))],
            "price": [1.5] * len(rows),
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=2)


def test_a_hugging_face_folder_is_a_catalogue(tmp_path: Path) -> None:
    write(tmp_path / "set/data/train-00000.parquet", DATA[:4])
    write(tmp_path / "set/data/train-00001.parquet", DATA[4:], first=4)
    photos = read_catalogue(tmp_path / "set")
    assert [each.read() for each in photos] == DATA
    assert [each.item_id for each in photos] == ["kiwi"] * 3 + ["lime"] * 3
    assert photos[5].photo_id == "data/train-00001.parquet/1"
    assert photos[5].metadata == {"price": 1.5}
    assert describe_catalogue(tmp_path / "set", photos) == "6 photos of 2 items"
    bundle = make_bundle(tmp_path)
    assert index_catalogue(bundle, photos, tmp_path / "g", progress=False).added == 6
    assert index_catalogue(bundle, photos, tmp_path / "g", progress=False).skipped == 6
    write(tmp_path / "set/data/train-00001.parquet", [DATA[0], DATA[5]], first=4)
    report = index_catalogue(bundle, read_catalogue(tmp_path / "set"), tmp_path / "g", progress=False)
    assert (report.added, report.skipped) == (1, 5)
    with pytest.raises(DataError, match="parquet files are not separate files"):
        write_catalogue(photos, tmp_path / "t.csv")


def test_a_parquet_file_of_bytes_is_a_catalogue(tmp_path: Path) -> None:
    table = pa.table({"image": DATA, "item_id": [f"i{n}" for n in range(6)], "photo_id": [f"p{n}" for n in range(6)]})
    pq.write_table(table, tmp_path / "t.parquet")
    photos = read_catalogue(tmp_path / "t.parquet")
    assert [(each.photo_id, each.item_id, each.read()) for each in photos] == [
        (f"p{n}", f"i{n}", data) for n, data in enumerate(DATA)
    ]


def test_training_reads_and_caches_each_photo_of_a_file(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", DATA)
    reader = PhotoReader(read_catalogue(tmp_path / "t.parquet"), Preprocessing(size=32))
    for _ in range(2):
        assert len({reader.pixels([number]).tobytes() for number in range(6)}) == 6


def test_a_row_without_an_image_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", [DATA[0], None, b"no image"])
    photos = read_catalogue(tmp_path / "t.parquet")
    with pytest.raises(ImageUnreadable, match=r"row 1 of row group 0 of .* has no image"):
        photos[1].read()
    report = index_catalogue(make_bundle(tmp_path), photos, tmp_path / "g", progress=False)
    assert (report.added, len(report.refused)) == (1, 2)


def test_row_groups_and_photos_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.parquet", DATA)
    (row, *_) = pq.read_table(tmp_path / "t.parquet").column("image").to_pylist()
    monkeypatch.setattr(embedded, "check_bytes", partial(check_bytes, most=100))
    with pytest.raises(ImageTooLarge, match=f"has {len(row['bytes']):,} bytes, the limit is 100"):
        read_catalogue(tmp_path / "t.parquet")[0].read()
    monkeypatch.setattr(embedded, "LARGEST", 100)
    with pytest.raises(DataError, match="the limit is 100") as caught:
        read_catalogue(tmp_path / "t.parquet")
    assert "row groups of 100 photos" in str(caught.value.remedy)


@pytest.mark.parametrize("column", ["image", "caption"])
def test_values_that_a_file_holds_once_count_as_often_as_they_repeat(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 200
    values = {"image": [DATA[0]] * rows, "caption": ["c"] * rows, "item_id": ["i"] * rows}
    values[column] = [bytes(10_000) if column == "image" else "c" * 10_000] * rows
    pq.write_table(pa.table(values), tmp_path / "t.parquet")
    monkeypatch.setattr(embedded, "LARGEST", 1_000_000)
    decoded = {"image": r"1,00\d,\d+", "caption": r"1,[0-9]{3},\d+"}[column]  # at most ROWS values more than the limit
    with pytest.raises(DataError, match=rf"row group has {decoded} bytes, the limit is 1,000,000"):
        read_catalogue(tmp_path / "t.parquet")[0].read()


def test_a_table_whose_rows_repeat_a_long_value_is_refused(tmp_path: Path) -> None:
    rows = 100
    values = {"path": [f"{n}.jpg" for n in range(rows)], "item_id": ["i"] * rows, "note": ["n" * 2**21] * rows}
    pq.write_table(pa.table(values), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 100_000
    with pytest.raises(DataError, match=r"64 rows have 134,[0-9,]+ bytes, the limit is 1,048,576 bytes a row"):
        read_catalogue(tmp_path / "t.parquet")


def test_a_table_of_more_bytes_than_a_catalogue_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 20_000
    pq.write_table(pa.table({"path": ["a.jpg"] * rows, "item_id": ["i"] * rows}), tmp_path / "t.parquet")
    monkeypatch.setattr(embedded, "LARGEST_TABLE", 100_000)
    with pytest.raises(DataError, match="more than 100,000 bytes when it is read") as caught:
        read_catalogue(tmp_path / "t.parquet")
    assert caught.value.remedy == "Split it into several tables"


def test_photos_beside_a_parquet_file_are_the_catalogue(tmp_path: Path) -> None:
    write(tmp_path / "set/t.parquet", DATA)
    (tmp_path / "set/a.jpg").write_bytes(DATA[0])
    assert [each.photo_id for each in read_catalogue(tmp_path / "set")] == ["a.jpg"]
