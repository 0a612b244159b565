"""Write labelled photos with their content as a parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .embedded import IMAGE
from .photos import Photo

GROUP = 50  # photos per row group, which is read as a whole


def write_embedded(photos: Sequence[Photo], path: Path) -> Path:
    """Write photos with their content as a parquet file for `read_catalogue`; return its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for photo in photos for name in photo.metadata))
    kinds = {name: pa.infer_type([photo.metadata.get(name) for photo in photos]) for name in names}
    texts = ("photo_id", "item_id", "source")
    boxes = [("bbox", pa.list_(pa.float64()))] * any(photo.bbox is not None for photo in photos)
    schema = pa.schema([*((name, pa.string()) for name in texts), *boxes, *kinds.items(), (IMAGE, pa.binary())])
    aside = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pq.ParquetWriter(aside, schema) as writer:
            for start in range(0, len(photos), GROUP):
                block = photos[start : start + GROUP]
                columns = [[getattr(photo, name) for photo in block] for name in texts]
                columns += [[photo.bbox for photo in block] for _ in boxes]
                columns += [[photo.metadata.get(name) for photo in block] for name in names]
                images = [photo.read() for photo in block]
                writer.write_table(pa.table([*columns, images], schema=schema), row_group_size=GROUP)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path
