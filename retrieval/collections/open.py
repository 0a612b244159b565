"""Open a collection by its address or the name of its file."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import DataError

from . import Collection, Columns
from .naming import without_login

UNDERSTOOD = (
    ".npz or .npy of NumPy",
    ".parquet",
    ".arrow or .feather",
    ".faiss or .index of Faiss",
    "postgresql://host/database#table",
    "qdrant+http://host:6333/collection",
    "milvus+http://host:19530/collection",
)


def open_collection(source: str, columns: Columns) -> Collection:
    """Open the collection at an address or in a file; raise DataError if there is none or its kind is unknown."""
    scheme, separator, _ = source.partition("://")
    suffix = Path(source).suffix.lower()
    if separator and scheme in ("postgresql", "postgres"):
        from .postgres import Postgres

        return Postgres(source, columns)
    if source.startswith("qdrant+"):
        from .qdrant import Qdrant

        return Qdrant(source, columns)
    if source.startswith("milvus+"):
        from .milvus import Milvus

        return Milvus(source, columns)
    if separator or suffix not in (".npz", ".npy", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".faiss", ".index"):
        raise DataError(f"{without_login(source)} is not understood as vectors", remedy=f"Give {'; '.join(UNDERSTOOD)}")
    if not Path(source).is_file():
        raise DataError(f"{source} is not there, or not a file", remedy="Check the path")
    if suffix in (".faiss", ".index"):
        from .faiss_files import FaissFile

        return FaissFile(source, columns)
    if suffix in (".npz", ".npy"):
        from .arrays import Arrays

        return Arrays(source, columns)
    from .tables import Table

    return Table(source, columns)
