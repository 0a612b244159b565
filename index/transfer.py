"""Export and import galleries as parquet files: for backups, other programs and other machines."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .database import FEATURES_KEY, Change
from .errors import DataError, GalleryError, InvalidParameter
from .features import FeatureFormat
from .kept_draws import DRAWS
from .location import exists, open_or_create
from .protocol import GalleryProtocol
from .segments import sync_folder, write_errors
from .shell import command
from .tables import write_table

BATCH = 5000  # photos written or read at a time
FEATURES_BATCH = 250  # the same in a gallery with features, about 40 KB per photo
PARQUET, TABLE = (".parquet", ".pq"), ".csv"
FACTS = b"retrieval.gallery"  # key of dim, embedding_id and columns in the file's metadata
CHANGES = b"retrieval.gallery.changes"  # key of the log: JSON, compressed, in base64
KEPT = b"retrieval.gallery.kept"  # key of the named contents: JSON of base64, compressed, in base64
NOT_EXPORTED = f"`{command('gallery', 'export', 'GALLERY', 'NEW.parquet')}` writes one"


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    photos: int
    kept: frozenset[str]  # names of the contents, such as the operating point


def export_photos(gallery: GalleryProtocol, path: Path) -> int:
    """Write all live photos of one version and return their number; raise GalleryError if the file exists.

    A .parquet file contains the photos, the change log, the operating points and the labelled queries, but no draws.
    A .csv file is a table for spreadsheets with ids and metadata but no vectors or thumbnails; it cannot be imported.
    """
    if path.suffix.lower() not in (*PARQUET, TABLE):
        raise InvalidParameter("output", "end in .parquet or .csv", str(path))
    if path.exists():
        raise GalleryError(f"{path} exists", remedy="Choose a new name")
    with write_errors(path), _written(path) as partial_path:
        return (
            write_table(gallery, partial_path)
            if path.suffix.lower() == TABLE
            else _write_parquet(gallery, partial_path)
        )


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Yield a temporary path; on success the file is synced and renamed to `path`."""
    partial_path = path.with_name(f"{path.name}.partial")
    try:
        yield partial_path
        with partial_path.open("rb+") as file:
            os.fsync(file.fileno())
        partial_path.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            partial_path.unlink()


def _write_parquet(gallery: GalleryProtocol, path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with gallery.one_version():
        version, blocks = gallery.version, gallery.walk(_batch_size(gallery.features_key), features=True)
        names = [name for name in gallery.kept_names() if not name.startswith(DRAWS)]
        kept = {name: content for name in names if (content := gallery.kept(name))}
    key = gallery.features_key
    facts = {"dim": gallery.dim, "embedding_id": gallery.embedding_id, "columns": gallery.columns()}
    facts |= {FEATURES_KEY: key} if key else {}
    log = [astuple(change) for change in reversed(gallery.changes(-1)) if change.version <= version]
    schema = pa.schema(
        [
            ("photo_id", pa.string()),
            ("item_id", pa.string()),
            ("vector", pa.list_(pa.float32(), gallery.dim)),
            ("metadata", pa.string()),
            ("thumbnail", pa.binary()),
            *([("features", pa.binary())] if key else []),
        ],
        metadata={
            FACTS: json.dumps(facts).encode(),
            CHANGES: _packed(log),
            KEPT: _packed({name: base64.b64encode(content).decode() for name, content in kept.items()}),
        },
    )
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for photos in blocks:
            thumbnails = gallery.thumbnails([photo.photo_id for photo in photos])
            columns = {
                "photo_id": [photo.photo_id for photo in photos],
                "item_id": [photo.item_id for photo in photos],
                "vector": pa.FixedSizeListArray.from_arrays(
                    pa.array(np.concatenate([photo.vector for photo in photos])), gallery.dim
                ),
                "metadata": [json.dumps(photo.metadata, ensure_ascii=False) for photo in photos],
                "thumbnail": [thumbnails.get(photo.photo_id) for photo in photos],
                **({"features": [photo.features for photo in photos]} if key else {}),
            }
            writer.write_table(pa.table(columns, schema=schema))
            count += len(photos)
    return count


def import_photos(path: Path, place: Path | str, *, feature_format: FeatureFormat | None = None) -> Imported:
    """Add the photos of an exported file to the gallery at a path or an address, creating it if needed.

    A new gallery starts with the exported change log and gets the exported operating point and labelled queries. An
    existing gallery keeps its own. Photos whose features do not have the `feature_format` are refused.
    """
    facts, log, kept = _facts(path)
    key = facts.get(FEATURES_KEY, "")
    is_new = not exists(place)
    ids = {"embedding_id": facts["embedding_id"], "features_key": key}
    gallery = open_or_create(place, dim=facts["dim"], **ids)
    if not is_new:
        if (gallery.dim, gallery.embedding_id) != (facts["dim"], facts["embedding_id"]) or gallery.features_key != key:
            gallery.close()
            raise GalleryError(
                f"{place} holds vectors or features of another model than {path}",
                remedy="Import into a new gallery",
            )
        log, kept = [], {}
    count, gallery.feature_format = 0, feature_format
    with gallery:
        if log:
            gallery.restore_log(log)
        gallery.declare(facts["columns"])
        for rows in _batches(path, _batch_size(key)):
            vectors = np.asarray(rows["vector"].combine_chunks().flatten()).reshape(-1, facts["dim"])
            count += gallery.add(
                rows["photo_id"].to_pylist(),
                rows["item_id"].to_pylist(),
                vectors,
                metadata=[json.loads(text) for text in rows["metadata"].to_pylist()],
                thumbnails=rows["thumbnail"].to_pylist(),
                features=rows["features"].to_pylist() if key else None,
                upsert=True,
            )
        if kept:
            gallery.keep(kept, f"import the {' and the '.join(sorted(kept))}")
        gallery.rebuild_if_due()
    return Imported(count, frozenset(kept))


def _packed(values: object) -> bytes:
    return base64.b64encode(zlib.compress(json.dumps(values).encode()))


def _unpacked(content: bytes) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(content)))


def _facts(path: Path) -> tuple[dict[str, Any], list[Change], dict[str, bytes]]:
    """Return the facts, the change log and the named contents of an exported file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() == TABLE:
        raise DataError(
            f"{path} is a table without vectors and cannot be imported",
            remedy=f"Import a parquet file ({NOT_EXPORTED}), or index the photos again: `retrieval index`",
        )
    try:
        written = pq.read_schema(path).metadata or {}
        facts = dict(json.loads(written[FACTS]))
        log = _unpacked(written[CHANGES]) if CHANGES in written else []
        kept = _unpacked(written[KEPT]) if KEPT in written else {}
        return facts, _changes(log), {str(name): base64.b64decode(text) for name, text in kept.items()}
    except (pa.ArrowException, OSError, AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is not an exported gallery", remedy=NOT_EXPORTED) from error


def _changes(log: Sequence[Any]) -> list[Change]:
    """Return the exported change log; raise ValueError or TypeError if it is invalid."""
    changes = [Change(*line) for line in log]
    for change in changes:
        numbers, texts = (change.version, change.photos), (change.time, change.actor, change.action)
        if not all(type(n) is int and 0 <= n < 2**53 for n in numbers) or not all(
            isinstance(text, str) for text in texts
        ):
            raise TypeError(f"a change has other kinds of values: {change}")
    versions = [0, *(change.version for change in changes)]
    if any(later <= earlier for earlier, later in pairwise(versions)):
        raise ValueError("the changes are not in ascending order")
    return changes


def _batch_size(features_key: str) -> int:
    return FEATURES_BATCH if features_key else BATCH


def _batches(path: Path, size: int) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(batch_size=size):
        yield pa.Table.from_batches([batch])
