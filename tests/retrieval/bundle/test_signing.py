"""Signatures: who may replace a bundle, and what `doctor` says of one."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from retrieval.bundle.bundle import MANIFEST, Bundle
from retrieval.bundle.signing import SIGNATURE, PublicKey, SigningKey, new_signing_key, sign_bundle
from retrieval.cli.main import group
from retrieval.errors import BundleCorrupt, BundleUntrusted, InvalidParameter, MissingDependency
from retrieval.retriever import Retriever

from ...world import make_bundle

pytestmark = pytest.mark.usefixtures("empty_pictures")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_signing_key(tmp_path / "shop.key")
    return tmp_path / "shop.key"


@pytest.fixture
def public(key: Path) -> Path:
    return key.with_name("shop.key.pub")


@pytest.fixture
def signed(tmp_path: Path, key: Path) -> Bundle:
    bundle = make_bundle(tmp_path)
    sign_bundle(bundle.path, bundle.bundle_id, SigningKey.read(key))
    return bundle


def run(*words: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in words])


def test_a_signed_bundle_opens_for_those_who_trust_its_key(signed: Bundle, public: Path, tmp_path: Path) -> None:
    new_signing_key(tmp_path / "other.key")
    opened = Bundle.open(signed.path, trust=[tmp_path / "other.key.pub", public])
    assert opened.signed_by == PublicKey.read(public).fingerprint
    assert opened.bundle_id == signed.bundle_id
    assert Bundle.open(signed.path).signed_by is None  # nobody asked


def rehashed(bundle: Path, change: Callable[[dict], None]) -> None:
    """Change a manifest as an attacker would: the hash of it is worked out anew."""
    manifest = json.loads((bundle / MANIFEST).read_bytes())
    change(manifest)
    rest = {name: value for name, value in manifest.items() if name != "bundle_id"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    (bundle / MANIFEST).write_text(json.dumps(rest | {"bundle_id": hashlib.sha256(text.encode()).hexdigest()}))


def unsign(bundle: Bundle, folder: Path) -> None:
    (bundle.path / SIGNATURE).unlink()


def loosen(bundle: Bundle, folder: Path) -> None:
    rehashed(bundle.path, lambda manifest: manifest["operating_point"].update(threshold=1.9))


def replace_a_file(bundle: Bundle, folder: Path) -> None:
    (bundle.path / "notes.txt").write_bytes(b"mine")
    digest = hashlib.sha256(b"mine").hexdigest()
    rehashed(bundle.path, lambda manifest: manifest["files"].update({"notes.txt": digest}))


def sign_with_a_key_of_ones_own(bundle: Bundle, folder: Path) -> None:
    loosen(bundle, folder)
    new_signing_key(folder / "mine.key")
    sign_bundle(bundle.path, Bundle.open(bundle.path).bundle_id, SigningKey.read(folder / "mine.key"))


def take_the_public_key_of_another(bundle: Bundle, folder: Path) -> None:
    old = json.loads((bundle.path / SIGNATURE).read_bytes())
    sign_with_a_key_of_ones_own(bundle, folder)
    new = json.loads((bundle.path / SIGNATURE).read_bytes())
    (bundle.path / SIGNATURE).write_text(json.dumps(new | {"public_key": old["public_key"]}))


def take_the_signature_of_another_bundle(bundle: Bundle, folder: Path) -> None:
    other = make_bundle(folder, name="other", threshold=0.7)
    shutil.copy(bundle.path / SIGNATURE, other.path / SIGNATURE)
    shutil.rmtree(bundle.path)
    other.path.rename(bundle.path)


def name_another_algorithm(bundle: Bundle, folder: Path) -> None:
    values = json.loads((bundle.path / SIGNATURE).read_bytes())
    (bundle.path / SIGNATURE).write_text(json.dumps(values | {"algorithm": "none"}))


def cut_the_signature_short(bundle: Bundle, folder: Path) -> None:
    values = json.loads((bundle.path / SIGNATURE).read_bytes())
    (bundle.path / SIGNATURE).write_text(json.dumps(values | {"signature": values["signature"][:40]}))


def damage(bundle: Bundle, folder: Path) -> None:
    (bundle.path / SIGNATURE).write_bytes(b"\xff not json")


ATTACKS = [
    unsign,
    loosen,
    replace_a_file,
    sign_with_a_key_of_ones_own,
    take_the_public_key_of_another,
    take_the_signature_of_another_bundle,
    name_another_algorithm,
    cut_the_signature_short,
    damage,
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_trusted_key_did_not_sign_does_not_open(
    attack: Callable[[Bundle, Path], None], signed: Bundle, public: Path, tmp_path: Path
) -> None:
    attack(signed, tmp_path)
    Bundle.open(signed.path)  # its hashes are right
    for verify in (True, False):
        with pytest.raises(BundleUntrusted):
            Bundle.open(signed.path, trust=[public], verify=verify)


def test_a_changed_file_is_found_beside_a_good_signature(signed: Bundle, public: Path) -> None:
    (signed.path / "notes.txt").write_bytes(b"mine")
    for verify in (True, False):
        with pytest.raises(BundleCorrupt):
            Bundle.open(signed.path, trust=[public], verify=verify)


def test_a_model_that_is_swapped_after_the_bundle_was_opened_does_not_run(signed: Bundle, public: Path) -> None:
    opened = Bundle.open(signed.path, trust=[public])
    (signed.path / "model.onnx").write_bytes(b"mine")
    with pytest.raises(BundleCorrupt):
        opened.embedder()


def test_a_retriever_opens_trusted_bundles_only(world: Path, tmp_path: Path, key: Path, public: Path) -> None:
    shutil.copytree(world / "bundle", tmp_path / "bundle")
    with pytest.raises(BundleUntrusted):
        Retriever.open(tmp_path / "bundle", world / "gallery", trust=[public])
    sign_bundle(tmp_path / "bundle", Bundle.open(tmp_path / "bundle").bundle_id, SigningKey.read(key))
    retriever = Retriever.open(tmp_path / "bundle", world / "gallery", trust=[public])
    assert retriever.bundle.signed_by == PublicKey.read(public).fingerprint


def test_doctor_says_intact_unless_a_trusted_key_signed(signed: Bundle, public: Path, tmp_path: Path) -> None:
    plain = run("doctor", signed.path)
    assert plain.exit_code == 0
    assert "intact, the model runs" in plain.output
    assert "verified" not in plain.output
    trusted = run("doctor", signed.path, "--trust", public)
    assert trusted.exit_code == 0
    assert f"verified (signed by {PublicKey.read(public).fingerprint})" in trusted.output
    loosen(signed, tmp_path)  # a forged manifest
    assert "verified" not in run("doctor", signed.path).output
    refused = run("doctor", signed.path, "--trust", public)
    assert refused.exit_code == 1
    assert "is not signed by a key that is trusted here" in refused.output
    assert "verified" not in refused.output


def test_a_gallery_is_intact_too(world: Path) -> None:
    output = run("doctor", world / "bundle", world / "gallery").output
    assert "intact, 30 photos of 10 items" in output
    assert "verified" not in output


def test_the_commands_make_keys_and_sign(tmp_path: Path) -> None:
    bundle, key = make_bundle(tmp_path), tmp_path / "shop.key"
    made = run("keys", "new-signing", key)
    assert made.exit_code == 0, made.output
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text().splitlines()[1]
    assert secret not in made.output
    public = PublicKey.read(f"{key}.pub")
    done = run("keys", "sign", bundle.path, "--key", key)
    assert done.exit_code == 0, done.output
    assert f"Signed by {public.fingerprint}." in done.output
    assert secret not in done.output
    assert Bundle.open(bundle.path, trust=[f"{key}.pub"]).signed_by == public.fingerprint
    assert secret not in repr(SigningKey.read(key))
    before = key.read_bytes()
    with pytest.raises(InvalidParameter, match="be new"):
        new_signing_key(key)
    assert key.read_bytes() == before


def test_a_damaged_bundle_is_not_signed(tmp_path: Path, key: Path) -> None:
    bundle = make_bundle(tmp_path)
    (bundle.path / "notes.txt").write_bytes(b"mine")
    assert isinstance(run("keys", "sign", bundle.path, "--key", key).exception, BundleCorrupt)
    assert not (bundle.path / SIGNATURE).exists()


def test_files_that_are_no_keys_are_refused(tmp_path: Path, key: Path, public: Path) -> None:
    def pem(private: object, encryption: serialization.KeySerializationEncryption) -> bytes:
        return private.private_bytes(  # type: ignore[attr-defined, no-any-return]
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )

    plain = serialization.NoEncryption()
    (tmp_path / "rsa").write_bytes(pem(rsa.generate_private_key(65537, 2048), plain))
    secret = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "encrypted").write_bytes(pem(ed25519.Ed25519PrivateKey.generate(), secret))
    (tmp_path / "noise").write_bytes(b"\x00\xff")
    for name in ("rsa", "encrypted", "noise", public.name):
        with pytest.raises(InvalidParameter, match="signing key must"):
            SigningKey.read(tmp_path / name)
    for name in ("rsa", "noise", key.name):
        with pytest.raises(InvalidParameter, match="public key must"):
            PublicKey.read(tmp_path / name)


def test_without_the_library_it_says_what_to_install(
    signed: Bundle, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingDependency, match=r"cryptography is not installed.*\.\[sign\]"):
        Bundle.open(signed.path, trust=[public])
    assert Bundle.open(signed.path).signed_by is None
