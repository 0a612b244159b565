"""Tables of a real Postgres with pgvector: what is read, which metric is theirs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrieval.collections import Columns
from retrieval.collections.open import open_collection
from retrieval.collections.reading import Collected, read
from retrieval.errors import DataError, MissingDependency

from .conftest import Place, write_postgres
from .postgres_server import PASSWORD, Server
from .rows import Rows


@pytest.fixture
def run(server: Server) -> Iterator[Callable[..., Any]]:
    """Return a function that executes statements as the superuser, in a schema that is dropped afterwards."""
    with server.connect() as connection:
        connection.execute("CREATE SCHEMA shop; GRANT USAGE ON SCHEMA shop TO reader")
        connection.execute("ALTER DEFAULT PRIVILEGES IN SCHEMA shop GRANT SELECT ON TABLES TO reader")
        yield connection.execute
        connection.execute("DROP SCHEMA shop CASCADE")


@contextmanager
def opened(server: Server, table: str, columns: Columns | None = None, role: str = "reader") -> Iterator[Any]:
    with closing(open_collection(server.address(table, role), columns or Columns())) as collection:
        yield collection


def read_of(server: Server, table: str, columns: Columns | None = None, role: str = "reader") -> Collected:
    with opened(server, table, columns, role) as collection:
        return read(collection)


def test_read_with_a_role_that_may_only_select_gives_all_rows(place_of: Callable[[str], Place], rows: Rows) -> None:
    address, columns = place_of("postgres")
    with psycopg.connect(address.partition("#")[0]) as reader, pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("DELETE FROM same_rows")
    with closing(open_collection(address, columns)) as collection:
        assert len(read(collection).ids) == len(rows.ids)


def test_condition_that_would_write_is_refused_by_the_transaction_even_for_the_owner(
    run: Callable[..., Any], server: Server
) -> None:
    run(
        "CREATE TABLE shop.t (id int PRIMARY KEY, item text, vector vector(2));"
        "INSERT INTO shop.t VALUES (1, 'a', '[1,0]')"
    )
    run("CREATE FUNCTION shop.touch() RETURNS bool LANGUAGE sql AS $$ DELETE FROM shop.t RETURNING true $$")
    with pytest.raises(DataError, match="read-only transaction"):
        read_of(server, "shop.t", Columns(where="shop.touch()"), "postgres")
    with pytest.raises(DataError, match="cannot be read"):
        read_of(server, "shop.t", Columns(where="true); DELETE FROM shop.t; SELECT (1"), "postgres")
    with pytest.raises(DataError, match="cannot be read"):
        read_of(server, "shop.t", Columns(where="true); COMMIT; DELETE FROM shop.t; SELECT (1"), "postgres")
    with opened(
        server, "shop.t", Columns(where="true); COMMIT; DELETE FROM shop.t; SELECT (1"), "postgres"
    ) as collection:
        with pytest.raises(DataError, match="cannot be read"):
            next(collection.blocks())
        with pytest.raises(DataError, match="cannot be read"):
            collection.search([[1.0, 0.0]], 1)
    assert run("SELECT count(*) FROM shop.t").fetchone() == (1,)


def test_condition_with_a_percent_sign_restricts_reading_searching_and_the_recipe(
    place_of: Callable[[str], Place], rows: Rows
) -> None:
    where = "item_id LIKE '%7' OR item_id = '100%' -- and so on"
    with closing(open_collection(place_of("postgres")[0], Columns(where=where))) as collection:
        collected = read(collection)
        ((*neighbours,),) = collection.search(rows.vectors[:1], 50)
        recipe = collection.recipe("x.promise")
    expected = sorted(item for item in rows.items if item in ("Köln 7", "7", "007", "100%"))
    assert sorted(collected.items) == expected
    assert sorted(neighbour.item_id for neighbour in neighbours) == expected
    assert "%%7" in recipe


def test_read_of_a_table_that_changes_after_the_count_gives_the_rows_of_the_count(server: Server, rows: Rows) -> None:
    write_postgres(server, rows, "growing")
    with opened(server, "growing") as collection, server.connect() as writer:
        count = len(collection)
        writer.execute("DELETE FROM growing WHERE id < 9")
        writer.execute("INSERT INTO growing SELECT id + 1000, item_id, embedding FROM growing")
        collected = read(collection)
        assert len(collected.ids) == count == len(rows.ids)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://reader:hush-hush@127.0.0.1:{port}/postgres#same_rows",
        "postgresql://reader@127.0.0.1:{port}/postgres?password=hush-hush#same_rows",
        "postgresql://reader:hush-hush@127.0.0.1:{port}/postgres",
        "postgresql://reader:hush-hush@127.0.0.1:1/postgres#same_rows",
        "postgresql://reader:hush-hush@127.0.0.1:port/postgres#same_rows",
        "postgresql://reader:hush-hush#x@127.0.0.1:{port}/postgres#same_rows",
        "postgresql://reader:hush-hush/x@127.0.0.1:{port}/postgres#same_rows",
        "postgresql://reader:x@hush-hush@127.0.0.1:{port}/postgres#same_rows",
        "postgresql://reader:x#hush-hush@127.0.0.1:{port}/postgres",
        "postgresql://reader:x?hush-hush@127.0.0.1:{port}/postgres#same_rows",
        "postgresql://reader:%zzhush-hush@127.0.0.1:{port}/postgres#same_rows",
        "postgrsql://reader:hush-hush@127.0.0.1:{port}/postgres#same_rows",
    ],
)
def test_error_of_an_address_with_a_password_does_not_show_it(
    address: str, server: Server, place_of: Callable[[str], Place]
) -> None:
    place_of("postgres")
    with pytest.raises(DataError) as refused:
        open_collection(address.format(port=server.port), Columns())
    error: BaseException | None = refused.value
    while error is not None:
        assert "hush-hush" not in str(error)
        error = error.__cause__
    assert refused.value.remedy


def test_name_and_recipe_of_an_address_with_a_password_do_not_show_it(
    server: Server, place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place_of("postgres")
    monkeypatch.delenv("PGPASSWORD")
    login = PASSWORD.replace(" ", "%20")
    address = f"postgresql://reader:{login}@127.0.0.1:{server.port}/postgres?sslmode=prefer#same_rows"
    with closing(open_collection(address, Columns())) as collection:
        assert collection.name == f"postgresql://127.0.0.1:{server.port}/postgres#same_rows"
        for text in (collection.name, collection.recipe("x.promise"), repr(collection)):
            assert PASSWORD not in text
            assert login not in text
        assert "sslmode=prefer" in collection.recipe("x.promise")
        with pytest.raises(DataError) as refused:
            open_collection(address, Columns(items="nothing"))
        assert login not in str(refused.value)


def test_password_of_a_service_file_is_used(
    server: Server, place_of: Callable[[str], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_of("postgres")
    monkeypatch.delenv("PGPASSWORD")
    lines = f"[shop]\nhost=127.0.0.1\nport={server.port}\nuser=reader\ndbname=postgres\npassword={PASSWORD}\n"
    (tmp_path / "services").write_text(lines)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    with closing(open_collection("postgresql:///?service=shop#same_rows", Columns())) as collection:
        assert len(collection) == 58
        assert PASSWORD not in collection.recipe("x.promise")


def test_missing_table_is_refused_with_the_tables_that_are_there(
    server: Server, place_of: Callable[[str], Place]
) -> None:
    place_of("postgres")
    with pytest.raises(DataError, match=r"is not there: the database has the tables .*public\.same_rows"):
        open_collection(server.address("nothing"), Columns())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns(items="person"), r"has the columns id, item_id, embedding, group, and not person.*--items"),
        (Columns(vectors="clip"), r"has the columns id, item_id, embedding, group, and not clip.*--vectors"),
        (Columns(groups="kind"), r"and not kind.*--groups"),
        (Columns(vectors="item_id"), "item_id .*has the type text, not vector"),
    ],
)
def test_column_that_cannot_be_used_is_refused_with_the_option_that_names_another(
    columns: Columns, message: str, server: Server, place_of: Callable[[str], Place]
) -> None:
    place_of("postgres")
    with pytest.raises(DataError, match=message):
        open_collection(server.address("same_rows"), columns)


def test_table_with_names_in_capitals_and_another_schema_is_read_by_the_columns_that_are_named(
    run: Callable[..., Any], server: Server
) -> None:
    run('CREATE TABLE shop."Photos; x" ("The ID" uuid PRIMARY KEY, "Person" int, v vector(2), w vector(2), "Team" int)')
    run(
        """INSERT INTO shop."Photos; x" """
        "SELECT gen_random_uuid(), n, '[1,0]', '[0,2]', n / 2 FROM generate_series(1, 4) n"
    )
    columns = Columns(items="Person", vectors="w", groups="Team")
    with opened(server, "shop.Photos; x", columns) as collection:
        collected = read(collection)
        ((nearest,),) = collection.search(collected.vectors[:1], 1)
    assert sorted(collected.items) == ["1", "2", "3", "4"]
    assert collected.groups == [str(int(item) // 2) for item in collected.items]
    assert (collected.norms == 2).all()
    assert nearest.photo_id in collected.ids
    assert collected.metric == "cosine_distance"


def test_names_and_conditions_with_signs_of_the_driver_are_read_as_they_are(
    run: Callable[..., Any], server: Server
) -> None:
    run("""CREATE TABLE shop."50%s {}" ("%(id)s" int PRIMARY KEY, "{item}" text, "v%s" vector(2), tags text[])""")
    run("""INSERT INTO shop."50%s {}" VALUES (1, 'a', '[1,0]', '{x}'), (2, 'b', '[0,1]', '{y}')""")
    run("""CREATE INDEX ON shop."50%s {}" USING hnsw ("v%s" vector_l2_ops)""")
    columns = Columns(items="{item}", where="tags = '{x}' AND 'a%s' <> '%'")
    with opened(server, "shop.50%s {}", columns) as collection:
        assert read(collection).items == ["a"]
        assert collection.search([[1.0, 0.0]], 2) == [[("1", "a", 0.0)]]


def test_rows_without_vector_or_item_are_left_out_and_counted(run: Callable[..., Any], server: Server) -> None:
    run("CREATE TABLE shop.t (id int PRIMARY KEY, item text, vector halfvec(2))")
    run(
        "INSERT INTO shop.t VALUES (1, 'a', '[1,0]'), (2, NULL, '[1,0]'), (3, '', '[1,0]'), (4, 'b', NULL),"
        "(5, 'c', '[0,1]')"
    )
    with opened(server, "shop.t") as collection:
        collected = read(collection)
        ((*neighbours,),) = collection.search(collected.vectors[:1], 5)
    assert (collected.ids, collected.items, collected.vectors.tolist()) == (["1", "5"], ["a", "c"], [[1, 0], [0, 1]])
    assert (collected.without_item, collected.without_vector) == (2, 1)
    assert [neighbour.photo_id for neighbour in neighbours] == ["1", "5"]


def test_photo_ids_without_a_simple_key_are_those_of_the_search(run: Callable[..., Any], server: Server) -> None:
    run("CREATE TABLE shop.two (a int, b text, item text, vector vector(2), PRIMARY KEY (b, a))")
    run("INSERT INTO shop.two VALUES (1, 'x', 'i', '[1,0]'), (2, 'x,1', 'i', '[0,1]')")
    run("CREATE TABLE shop.none (item text, vector vector(2)); INSERT INTO shop.none SELECT item, vector FROM shop.two")
    run("CREATE VIEW shop.bare AS SELECT item, vector FROM shop.two")
    run("CREATE VIEW shop.named AS SELECT a AS id, item, vector FROM shop.two")
    for table, ids in {"two": ["(x,1)", '("x,1",2)'], "none": ["(0,1)", "(0,2)"], "named": ["1", "2"]}.items():
        with opened(server, f"shop.{table}") as collection:
            assert sorted(read(collection).ids) == sorted(ids)
            ((nearest,),) = collection.search([[1.0, 0.0]], 1)
        assert nearest.photo_id == ids[0]
    with pytest.raises(DataError, match=r"no primary key\. Give it a column id"):
        open_collection(server.address("shop.bare"), Columns())


def test_metric_and_search_follow_an_index_of_a_cast_of_the_vectors(run: Callable[..., Any], server: Server) -> None:
    run("CREATE TABLE shop.t (id int PRIMARY KEY, item text, v vector(2), w vector(2))")
    run("INSERT INTO shop.t SELECT n, n, '[1,0]', format('[%s,1]', n)::vector FROM generate_series(1, 99) n")
    run("CREATE INDEX ON shop.t USING hnsw (v vector_cosine_ops)")
    run("CREATE INDEX ON shop.t USING hnsw ((w::halfvec(2)) halfvec_l2_ops)")
    run("ANALYZE shop.t; ALTER ROLE reader SET enable_seqscan = off; ALTER ROLE reader SET hnsw.ef_search = 3")
    try:
        with opened(server, "shop.t", Columns(vectors="w")) as collection:
            assert collection.metric == "l2"
            ((*neighbours,),) = collection.search([[5.0, 1.0]], 10)
    finally:
        run("ALTER ROLE reader RESET ALL")
    assert [neighbour.item_id for neighbour in neighbours][:1] == ["5"]
    assert len(neighbours) == 3  # the index searched, as the role has it set


def test_index_by_a_metric_without_formula_is_refused(run: Callable[..., Any], server: Server) -> None:
    run("CREATE TABLE shop.t (id int PRIMARY KEY, item text, vector vector(2))")
    run("CREATE INDEX ON shop.t USING hnsw (vector vector_l1_ops)")
    with pytest.raises(DataError, match="compares by l1"):
        open_collection(server.address("shop.t"), Columns())


def test_vectors_of_different_dimensions_are_refused_with_the_id(run: Callable[..., Any], server: Server) -> None:
    run("CREATE TABLE shop.t (id int PRIMARY KEY, item text, vector vector)")
    run("INSERT INTO shop.t VALUES (1, 'a', '[1,0]'), (2, 'a', '[1,0,0]')")
    with pytest.raises(DataError, match=r"the vector of '2' .* has 3 numbers, those before it have 2"):
        read_of(server, "shop.t")


def test_missing_driver_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"psycopg is not installed.*'\.\[collections\]'"):
        open_collection("postgresql://host/db#t", Columns())
