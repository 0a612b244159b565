"""Backups of version 0.2.0: parquet files of photos with their vectors. Nothing writes them any more.

Draws in them refer to numbers of photos and are left out: `retrieval index` and `retrieval calibrate` make them again.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from index.database import FEATURES_KEY
from index.errors import DataError, RetrievalError, check_format
from index.features import FeatureFormat
from index.files import parquet_batches
from index.gallery import Gallery

ENDING = ".parquet"
FACTS, KEPT = b"retrieval.gallery", b"retrieval.gallery.kept"  # keys of the file's metadata
FORMAT = 1
LEFT_OUT = ("draws", "windows", "folds", "moves")  # names of contents that refer to numbers of photos
MOST_KEPT = 2**28  # bytes of a named content
BATCH, FEATURES_BATCH = 5000, 250  # photos read at a time, without and with features
REMEDY = "Name a folder that `retrieval gallery export` wrote"


def read_backup(path: Path, place: Path, feature_format: FeatureFormat | None = None) -> None:
    """Write the photos, columns, thresholds and labelled queries of a backup into a new gallery.

    Raise DataError if the file is damaged or no backup, and InvalidParameter for features without the `feature_format`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        written = pq.read_schema(path).metadata or {}
        facts = dict(json.loads(written[FACTS]))
        check_format(facts.get("format", 0), FORMAT, path, DataError, remedy=REMEDY)
        packed = dict(json.loads(written[KEPT]))
        kept = {name: _inflated(text) for name, text in packed.items() if name not in LEFT_OUT}
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is not an exported gallery", remedy=REMEDY) from error
    try:
        _write(path, place, facts, kept, feature_format)
    except RetrievalError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of the reader
            raise
        raise DataError(f"{path} is not a table of photos: {error!r}", remedy="Export it again") from error


def _write(path: Path, place: Path, facts: dict[str, Any], kept: dict[str, bytes], form: FeatureFormat | None) -> None:
    dim, key = facts["dim"], facts[FEATURES_KEY]
    with Gallery.create(place, dim=dim, embedding_id=facts["embedding_id"], features_key=key) as gallery:
        gallery.feature_format = form
        gallery.declare(facts["columns"])
        for rows in parquet_batches(path, FEATURES_BATCH if key else BATCH):
            gallery.add(
                rows["photo_id"].to_pylist(),
                rows["item_id"].to_pylist(),
                np.asarray(rows["vector"].combine_chunks().flatten()).reshape(-1, dim),
                metadata=[json.loads(text) for text in rows["metadata"].to_pylist()],
                thumbnails=rows["thumbnail"].to_pylist(),
                features=rows["features"].to_pylist() if key else None,
            )
        if kept:
            gallery.keep(kept, f"import the {' and the '.join(sorted(kept))}")
        gallery.rebuild_if_due()


def _inflated(text: str) -> bytes:
    """Return a named content; raise ValueError if it is larger than MOST_KEPT, or is cut off."""
    inflate = zlib.decompressobj()
    content = inflate.decompress(base64.b64decode(text), MOST_KEPT)
    if not inflate.eof:
        raise ValueError(f"a content has more than {MOST_KEPT} bytes, or is cut off")
    return content
