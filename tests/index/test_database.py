"""The database of a gallery: facts, transactions, the change log, and SQLite's errors as ours."""

from __future__ import annotations

import getpass
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from index.database import Database, system_user
from index.errors import GalleryCorrupt, GalleryError

NUMBERS = ("version", "layout", "photos", "items", "next_seq", "live_seqs")
START = {"format": "5", "features_key": "", "kind": "auto", "dim": "8", **dict.fromkeys(NUMBERS, "0")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a new database."""
    Database.create(tmp_path / "g.sqlite", {"dim": 8})
    return tmp_path / "g.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(Database(path, read_only=False)) as database:
        yield database


@pytest.fixture
def other(path: Path) -> Iterator[Database]:
    """Return a second connection, which waits for nobody."""
    with closing(Database(path, read_only=False)) as other:
        other._connection.execute("PRAGMA busy_timeout = 0")
        yield other


def test_a_new_database_has_all_facts_and_no_changes(database: Database) -> None:
    assert database.facts() == START
    assert database.state() == (0, 0)
    assert database.changes(-1) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DELETE FROM facts WHERE key = 'version'", "lacks its version"),
        ("DELETE FROM facts WHERE key = 'layout'", "lacks its version"),
        ("UPDATE facts SET value = 'two' WHERE key = 'version'", "the fact version of .* is 'two', not a number"),
        ("UPDATE facts SET value = '-1' WHERE key = 'layout'", "the fact layout of .* is '-1', not a number"),
    ],
)
def test_a_version_that_makes_no_sense_is_damage(database: Database, damage: str, words: str) -> None:
    database._connection.execute(damage)
    with pytest.raises(GalleryCorrupt, match=words):
        database.state()


def test_a_missing_fact_is_damage(database: Database) -> None:
    with pytest.raises(GalleryCorrupt, match="lacks the fact colour"):
        database.fact("colour")
    with pytest.raises(GalleryCorrupt, match=r"the fact kind of .* is 'auto', not a number"):
        database.number("kind")


def test_the_log_counts_versions_and_is_read_from_its_end(database: Database) -> None:
    for number in range(1, 4):
        database.log(f"add {number}", 10 * number, actor="ann")
    newest = database.changes(2)
    assert [(c.version, c.actor, c.action, c.photos) for c in newest] == [
        (3, "ann", "add 3", 30),
        (2, "ann", "add 2", 20),
    ]
    assert all(c.time.endswith("+00:00") and len(c.time) == 25 for c in newest)
    assert [c.version for c in database.changes(-1)] == [3, 2, 1]
    assert database.number("version") == 3


def test_a_failed_change_leaves_nothing_and_the_next_one_works(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.transaction():  # noqa: PT012 (what fails is the change)
        database.set_fact("kind", "ivf")
        raise ZeroDivisionError
    assert database.fact("kind") == "auto"
    with database.transaction():
        database.set_fact("kind", "ivf")
    assert database.fact("kind") == "ivf"
    assert not database._connection.in_transaction


def test_a_view_inside_a_change_is_part_of_it(database: Database, other: Database) -> None:
    with database.transaction():
        database.set_fact("kind", "ivf")
        with database.transaction("DEFERRED"):
            assert database.fact("kind") == "ivf"
        assert other.fact("kind") == "auto"  # the change has not been committed by the view
    assert other.fact("kind") == "ivf"
    with pytest.raises(GalleryError, match="within a transaction"), database.transaction(), database.transaction():
        pass


def test_one_changes_at_a_time_and_others_read(database: Database, other: Database) -> None:
    with database.transaction():
        with pytest.raises(GalleryError, match="cannot be used: database is locked") as told, other.transaction():
            pytest.fail("two changes at once")
        assert not isinstance(told.value, GalleryCorrupt)
        with other.transaction("DEFERRED"):
            assert other.fact("kind") == "auto"


def test_sqlites_errors_are_ours(path: Path, database: Database) -> None:
    with pytest.raises(GalleryError, match="cannot be used: no such table"):
        database.rows("SELECT * FROM nowhere")
    with pytest.raises(GalleryCorrupt, match="holds metadata that is not JSON"):
        database.rows("SELECT json_extract('{', '$.a')")
    with pytest.raises(GalleryCorrupt, match=r"holds '\{', which is not JSON"):
        database._parse("{")
    database.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(GalleryCorrupt, match="is damaged"):
        Database(path, read_only=True)


def test_only_a_writer_changes_and_every_change_is_synced(path: Path, database: Database) -> None:
    with closing(Database(path, read_only=True)) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.set_fact("kind", "ivf")
    assert database.rows("PRAGMA synchronous") == [(2,)]
    assert database.rows("PRAGMA journal_mode") == [("wal",)]


def test_a_database_on_a_read_only_disk_is_read_until_it_is_changed_from_elsewhere(
    path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.transaction():
        database.increase("version")
    database.close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # permissions do not bind root
    with closing(Database(path, read_only=True)) as reader:
        assert reader.state() == (1, 0)
        assert {file.name for file in path.parent.iterdir() if file.name.startswith(path.name)} == {path.name}
        with closing(Database(path, read_only=False)) as writer, writer.transaction():
            writer.increase("version")
        with pytest.raises(GalleryError, match="changed from elsewhere"):
            reader.state()
    with closing(Database(path, read_only=True)) as reader:
        assert reader.state() == (2, 0)


def test_a_database_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="is not a gallery") as told:
        Database(tmp_path / "shop" / "gallery.sqlite", read_only=False)
    assert told.value.remedy == "Index photos into it first"
    assert not (tmp_path / "shop").exists()


def test_the_state_is_read_again_only_after_a_commit(database: Database, other: Database) -> None:
    statements: list[str] = []
    database._connection.set_trace_callback(statements.append)
    assert [database.state(), database.state()] == [(0, 0), (0, 0)]
    assert len([statement for statement in statements if "facts" in statement]) == 1
    with other.transaction():
        other.increase("version")
        assert database.state() == (0, 0)
    assert database.state() == (1, 0)
    with database.transaction():
        database.increase("layout")
        assert database.state() == (1, 1)
    assert [database.state(), other.state()] == [(1, 1), (1, 1)]


def test_a_state_that_is_rolled_back_is_forgotten(database: Database) -> None:
    def fail() -> None:
        with database.transaction():
            database.increase("version")
            assert database.state() == (1, 0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert database.state() == (0, 0)


def test_the_user_is_named_where_the_system_knows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    assert system_user() == "ann"
    for error in (KeyError("uid"), OSError("no user")):

        def fail(error: Exception = error) -> str:
            raise error

        monkeypatch.setattr(getpass, "getuser", fail)
        assert system_user() == "unknown"
