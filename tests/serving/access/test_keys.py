"""API keys: what they may do, their file, and comparisons in constant time."""

from __future__ import annotations

import hashlib
import hmac
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving.access.keys import KeyRing, add_key, read_keys, remove_keys
from serving.errors import KeyFileError


def test_keys_that_are_added_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda number: add_key(file, f"shop-{number}", "search"), range(40)))
    ring = KeyRing(file)
    assert [key and key.name for key in map(ring.find, secrets)] == [f"shop-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda number: remove_keys(file, f"shop-{number}"), range(0, 40, 2))) == 20
    assert {key.name for key in read_keys(file)} == {f"shop-{number}" for number in range(1, 40, 2)}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what is compared in constant time."""
    seen: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def noted(one: str, other: str) -> bool:
        seen.append((one, other))
        return compare(one, other)

    monkeypatch.setattr("serving.access.keys.hmac.compare_digest", noted)
    return seen


def test_a_secret_is_compared_with_every_key_in_constant_time(
    tmp_path: Path, compared: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    secrets = [add_key(file, name, "search") for name in ("a", "b", "c")]
    ring = KeyRing(file)
    hashes = [hashlib.sha256(secret.encode()).hexdigest() for secret in secrets]
    for secret, name in (*zip(secrets, "abc", strict=True), ("rk_wrong", None), ("", None)):
        compared.clear()
        found = ring.find(secret)
        assert (found.name if found else None) == name
        digest = hashlib.sha256(secret.encode()).hexdigest()
        assert compared == [(digest, known) for known in hashes]  # each, and none is left out after a hit
    monkeypatch.setattr("serving.access.keys.hmac.compare_digest", lambda *_: False)
    assert [ring.find(secret) for secret in secrets] == [None] * 3  # nothing else decides


def test_a_key_may_do_what_its_scope_covers_and_an_admin_key_everything(tmp_path: Path) -> None:
    for scope in ("admin", "search"):
        secret = add_key(tmp_path / "keys.json", scope, scope)
        assert (len(secret), secret[:3]) == (46, "rk_")  # 32 random bytes in base64
    admin, search = read_keys(tmp_path / "keys.json")
    assert [admin.may(scope) for scope in ("search", "admin", "other")] == [True, True, True]
    assert [search.may(scope) for scope in ("search", "admin", "other")] == [True, False, False]


def test_keys_of_a_name_are_removed_all_or_but_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    secrets = [add_key(file, name, "search") for name in ("b", "a", "b", "c", "b")]

    def valid() -> list[bool]:
        return [KeyRing(file).find(secret) is not None for secret in secrets]

    assert remove_keys(file, "nobody") == 0
    assert valid() == [True] * 5
    assert remove_keys(file, "b", keep_newest=True) == 2
    assert valid() == [False, True, False, True, True]
    assert remove_keys(file, "b") == 1
    assert valid() == [False, True, False, True, False]


@pytest.mark.parametrize(
    "changed", [{"scope": "owner"}, {"scope": ""}, {"sha256": "0" * 63}, {"sha256": ""}, {"name": None, "more": 1}]
)
def test_a_file_with_an_entry_that_is_no_key_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    file = tmp_path / "keys.json"
    add_key(file, "a", "search")
    add_key(file, "b", "admin")
    entries = json.loads(file.read_text())["keys"]
    file.write_text(json.dumps({"keys": [entries[0], {**entries[1], **changed}]}))
    with pytest.raises(KeyFileError, match="is not a valid key file"):
        read_keys(file)
