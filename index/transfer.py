"""Export and import galleries as parquet files, and export ids and metadata as CSV: for backups and other programs."""

from __future__ import annotations

import base64
import csv
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .database import FEATURES_KEY, POINT
from .errors import DataError, GalleryError, InvalidParameter, RetrievalError, check_format
from .features import FeatureFormat
from .files import parquet_batches, sync_folder, working_folder, write_errors
from .gallery import Gallery
from .location import AnyGallery, exists, is_address, open_gallery, open_or_create
from .maintenance import require_folds, with_moves, write_folds
from .search.leave_one_out import DRAWS, TRIES, WINDOWS, FoldVectors, KeptDraws, Windows

BATCH = 5000  # photos written or read at a time
FEATURES_BATCH = 250  # the same in a gallery with features, about 40 KB per photo
PARQUET, TABLE = (".parquet", ".pq"), ".csv"
FACTS = b"retrieval.gallery"  # key of dim, embedding_id and columns in the file's metadata
KEPT = b"retrieval.gallery.kept"  # key of the named contents: JSON of base64 of zlib
FORMAT = 1  # of an exported parquet file
FOLDS = "folds"  # key of the fold models, and the column of a photo's vectors by them
MOST_KEPT = 2**28  # bytes of a named content; draws take some MB, windows up to 100
NEEDED = ("dim", "embedding_id", "columns", FEATURES_KEY, FOLDS)
IDS = ("photo_id", "item_id")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates text that starts with one of these


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    photos: int
    kept: frozenset[str]  # names of the contents, such as the operating point and the draws


def export_photos(gallery: AnyGallery, path: Path, names: Sequence[str] = (POINT,)) -> int:
    """Write all live photos of one version and return their number; raise GalleryError if the file exists.

    A .parquet file contains the photos and the named contents, and of a local gallery its draws and what they are made
    with, which must be intact. A .csv file is a table for spreadsheets with ids and metadata but no vectors or
    thumbnails; it cannot be imported.
    """
    if path.suffix.lower() not in (*PARQUET, TABLE):
        raise InvalidParameter("output", "end in .parquet or .csv", str(path))
    if path.exists():
        raise GalleryError(f"{path} exists", remedy="Choose a new name")
    with write_errors(path), os.scandir(path.parent), working_folder(path) as folder:  # the parent must be there
        partial_path = folder / f"{path.name}.partial"
        if path.suffix.lower() == TABLE:
            count = _write_table(gallery, partial_path)
        else:
            count = _write_parquet(gallery, partial_path, names)
        with partial_path.open("rb+") as file:
            os.fsync(file.fileno())
        partial_path.replace(path)
        sync_folder(path.parent)
    return count


def _write_parquet(gallery: AnyGallery, path: Path, names: Sequence[str]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    key = gallery.features_key
    for _ in range(TRIES):  # others may change the gallery meanwhile
        version, blocks = gallery.version, gallery.walk(_batch_size(key), whole=True)
        kept, folds = _kept(gallery, names)
        if gallery.version == version:
            break
    facts = {"format": FORMAT, "dim": gallery.dim, "embedding_id": gallery.embedding_id, "columns": gallery.columns()}
    by_folds = {} if folds is None else dict(zip(folds.seqs.tolist(), folds.vectors, strict=True))
    facts |= {FEATURES_KEY: key, FOLDS: folds.key if folds is not None and by_folds else ""}
    packed = {name: base64.b64encode(zlib.compress(content)).decode() for name, content in kept.items()}
    schema = pa.schema(
        [
            ("photo_id", pa.string()),
            ("item_id", pa.string()),
            ("vector", pa.list_(pa.float32(), gallery.dim)),
            ("metadata", pa.string()),
            ("thumbnail", pa.binary()),
            *([("features", pa.binary())] if key else []),
            *((FOLDS, pa.binary(vectors.nbytes)) for vectors in list(by_folds.values())[:1]),
        ],
        metadata={FACTS: json.dumps(facts).encode(), KEPT: json.dumps(packed).encode()},
    )
    count = 0
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for photos in blocks:
            columns = {
                "photo_id": [photo.photo_id for photo in photos],
                "item_id": [photo.item_id for photo in photos],
                "vector": pa.FixedSizeListArray.from_arrays(
                    pa.array(np.concatenate([photo.vector for photo in photos])), gallery.dim
                ),
                "metadata": [json.dumps(photo.metadata, ensure_ascii=False) for photo in photos],
                "thumbnail": [photo.thumbnail for photo in photos],
                **({"features": [photo.features for photo in photos]} if key else {}),
            }
            if by_folds:
                found = [by_folds.get(number) for number in range(count, count + len(photos))]
                columns[FOLDS] = [None if vectors is None else vectors.tobytes() for vectors in found]
            writer.write_table(pa.table(columns, schema=schema))
            count += len(photos)
    return count


def _kept(gallery: AnyGallery, names: Sequence[str]) -> tuple[dict[str, bytes], FoldVectors | None]:
    """Return the named contents of a gallery, and what a copy of it draws with, its live photos counted from 0."""
    kept = {name: content for name in names if (content := gallery.kept(name))}
    if not isinstance(gallery, Gallery):  # on Milvus, photos have no numbers that a copy could have, too
        return kept, None
    now, draws, windows = gallery.snapshot(), KeptDraws.read(gallery), Windows.read(gallery)
    live = now.seqs[now.live]
    if draws is not None:
        kept[DRAWS] = draws.renumbered(live).pack()
    if windows is not None:
        kept[WINDOWS] = with_moves(gallery, windows).renumbered(live).pack()
    require_folds(gallery.path)
    folds = FoldVectors.read(gallery)
    return kept, None if folds is None else with_moves(gallery, folds).renumbered(live)


def _write_table(gallery: AnyGallery, path: Path) -> int:
    """Write one line per photo, with one column per metadata key; keys that start with _ are internal and left out."""
    first, second = gallery.walk(BATCH), gallery.walk(BATCH)
    keys = sorted({key for photos in first for photo in photos for key in photo.metadata if not key.startswith("_")})
    names = [f"metadata.{key}" if key in IDS else key for key in keys]
    count = 0
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # Excel recognises UTF-8 by its byte order mark
        writer = csv.writer(file)
        writer.writerow([_cell(name) for name in (*IDS, *names)])
        for photos in second:
            writer.writerows(
                [_cell(value) for value in (photo.photo_id, photo.item_id, *map(photo.metadata.get, keys))]
                for photo in photos
            )
            count += len(photos)
    return count


def _cell(value: Any) -> str:
    """Return a JSON value as a cell: text that a spreadsheet would evaluate is prefixed with a quote (')."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def import_photos(
    path: Path,
    place: Path | str,
    *,
    feature_format: FeatureFormat | None = None,
    check: Callable[[Mapping[str, bytes]], object] = lambda _: None,
) -> Imported:
    """Add the photos of an exported file to the gallery at a path or an address, creating it if needed.

    A new gallery gets the exported contents, such as the operating point; draws only if it is a local one. An existing
    gallery keeps its own. Photos whose features do not have the `feature_format` are refused. `check` may raise if the
    contents, by name, cannot be used. A failed import leaves nothing behind: a file is first imported into a new
    gallery, which takes the place of one that does not exist.
    """
    columns: Mapping[str, str] = {}
    new = None if is_address(place) or exists(place) else Path(place)
    if exists(place):
        with open_gallery(place, read_only=True) as gallery:
            columns = gallery.columns()
    if new is not None and new.exists() and any(new.iterdir()):
        raise GalleryError(f"{new} exists and is not empty", remedy="Choose another directory")
    with _valid(path), working_folder(new) as folder:
        done = _imported(path, folder / "gallery", feature_format, columns, check)
        if new is not None:
            with write_errors(new):
                (folder / "gallery").replace(new)
                sync_folder(new.parent)
            return done
    return _imported(path, place, feature_format, columns, check)


def _imported(
    path: Path,
    place: Path | str,
    feature_format: FeatureFormat | None,
    columns: Mapping[str, str],
    check: Callable[[Mapping[str, bytes]], object],
) -> Imported:
    facts, kept = _facts(path)
    check(kept)
    key, is_new = facts[FEATURES_KEY], not exists(place)
    folds: list[bytes | None] = []
    with open_or_create(place, dim=facts["dim"], embedding_id=facts["embedding_id"], features_key=key) as gallery:
        if (gallery.dim, gallery.embedding_id) != (facts["dim"], facts["embedding_id"]) or gallery.features_key != key:
            raise GalleryError(
                f"{place} holds vectors or features of another model than {path}", remedy="Import into a new gallery"
            )
        gallery.feature_format = feature_format
        gallery.declare({**columns, **facts["columns"]})
        count = 0
        for rows in parquet_batches(path, _batch_size(key)):
            folds += rows[FOLDS].to_pylist() if facts[FOLDS] else []
            count += _add(gallery, rows)
        if not isinstance(gallery, Gallery):
            kept = {name: content for name, content in kept.items() if name not in (DRAWS, WINDOWS)}
        if is_new and kept:
            gallery.keep(kept, f"import the {' and the '.join(sorted(kept))}")
        if is_new and facts[FOLDS] and isinstance(gallery, Gallery):
            unpacked = FoldVectors.unpacked(folds, str(facts[FOLDS]), gallery.dim)
            gallery.keep(write_folds(gallery, unpacked), "import the fold vectors")
        if isinstance(gallery, Gallery):
            gallery.rebuild_if_due()
    return Imported(count, frozenset(kept if is_new else ()))


@contextmanager
def _valid(path: Path) -> Iterator[None]:
    """Turn errors that come from what an exported file holds into DataError."""
    try:
        yield
    except RetrievalError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of the reader
            raise
        raise DataError(f"{path} is not a table of photos: {error!r}", remedy="Export it again") from error


def _add(gallery: AnyGallery, rows: Any) -> int:
    """Add the photos of a table."""
    return gallery.add(
        rows["photo_id"].to_pylist(),
        rows["item_id"].to_pylist(),
        np.asarray(rows["vector"].combine_chunks().flatten()).reshape(-1, gallery.dim),
        metadata=[json.loads(text) for text in rows["metadata"].to_pylist()],
        thumbnails=rows["thumbnail"].to_pylist(),
        features=rows["features"].to_pylist() if gallery.features_key else None,
        upsert=True,
    )


def _facts(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the facts and the named contents of an exported file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy = "Export a gallery to a new parquet file"
    if not path.is_file():
        told = "is not a file" if path.exists() else "does not exist"
        raise DataError(f"{path} {told}", remedy="Name a file that `retrieval gallery export` wrote")
    if path.suffix.lower() == TABLE:
        raise DataError(f"{path} is a table without vectors and cannot be imported", remedy=remedy)
    try:
        schema = pq.read_schema(path)
        written = schema.metadata or {}
        facts = dict(json.loads(written[FACTS]))
        check_format(facts.get("format", 0), FORMAT, path, DataError, remedy=remedy)
        facts, kept = {key: facts[key] for key in NEEDED}, dict(json.loads(written[KEPT]))
        if facts[FOLDS] and schema.field(FOLDS).type.byte_width % (2 * facts["dim"]):
            raise ValueError("fold vectors have another length than vectors")
        return facts, {str(name): _inflated(text) for name, text in kept.items()}
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is not an exported gallery", remedy=remedy) from error


def _inflated(text: str) -> bytes:
    """Return a named content; raise ValueError if it is larger than any that is written."""
    inflate = zlib.decompressobj()
    content = inflate.decompress(base64.b64decode(text), MOST_KEPT)
    if not inflate.eof:
        raise ValueError(f"a content has more than {MOST_KEPT} bytes, or is cut off")
    return content


def _batch_size(features_key: str) -> int:
    return FEATURES_BATCH if features_key else BATCH
