"""Ed25519 signatures of bundles.

Anyone who changes a file can recompute its hash; a valid signature needs the private key. `signature.json` holds the
public key and the signature of the bundle_id. The bundle_id is the hash of the manifest, which lists the hash of every
file. Key files are PEM; the private key is unencrypted PKCS #8, readable by its owner only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.shell import command
from retrieval.errors import BundleUntrusted, InvalidParameter, MissingDependency
from retrieval.files import write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = "signature.json"
ALGORITHM = "ed25519"
PURPOSE = b"retrieval bundle "  # prefix: signatures made for other purposes are not valid for bundles
PUBLIC = ".pub"


@dataclass(frozen=True)
class PublicKey:
    """A public key that verifies signatures."""

    raw: bytes  # (32,)

    @property
    def fingerprint(self) -> str:
        """Return a short hash of the key for people to compare."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    @classmethod
    def read(cls, path: str | Path) -> PublicKey:
        """Read a PEM file; raise InvalidParameter if it holds no public Ed25519 key."""
        serialization, ed25519 = _cryptography()
        try:
            key = serialization.load_pem_public_key(Path(path).read_bytes())
        except ValueError:
            key = None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise InvalidParameter("public key", f"be an Ed25519 key in PEM, as FILE{PUBLIC}", str(path))
        return cls(key.public_bytes_raw())

    def signed(self, signature: bytes, bundle_id: str) -> bool:
        """Return whether this key made the signature for this bundle."""
        from cryptography.exceptions import InvalidSignature

        key: Ed25519PublicKey = _cryptography()[1].Ed25519PublicKey.from_public_bytes(self.raw)
        try:
            key.verify(signature, PURPOSE + bundle_id.encode())
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, repr=False)
class SigningKey:
    """A private key. Its repr does not show the key."""

    private: Ed25519PrivateKey

    @classmethod
    def read(cls, path: str | Path) -> SigningKey:
        """Read a PEM file; raise InvalidParameter unless it holds a private Ed25519 key without a password."""
        serialization, ed25519 = _cryptography()
        try:
            key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
        except (ValueError, TypeError):  # TypeError: the key has a password
            key = None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise InvalidParameter("signing key", "be a private Ed25519 key in PEM, without a password", str(path))
        return cls(key)

    @property
    def public(self) -> PublicKey:
        """Return the matching public key."""
        return PublicKey(self.private.public_key().public_bytes_raw())

    def sign(self, bundle_id: str) -> bytes:
        """Return the 64-byte signature of a bundle."""
        return self.private.sign(PURPOSE + bundle_id.encode())


def new_signing_key(path: Path) -> PublicKey:
    """Write a new private key to `path` and its public key to FILE.pub; raise InvalidParameter if either exists."""
    serialization, ed25519 = _cryptography()
    public_path = path.with_name(path.name + PUBLIC)
    for file in (path, public_path):
        if file.exists():
            raise InvalidParameter("FILE", "be new: a key that is overwritten is lost", str(file))
    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_file(path, pem, mode=0o600)
    try:
        write_file(public_path, public)
    except OSError:
        path.unlink()
        raise
    return SigningKey(private).public


def sign_bundle(path: Path, bundle_id: str, key: SigningKey) -> None:
    """Write `signature.json` to a bundle's directory, replacing an older one."""
    values = {
        "algorithm": ALGORITHM,
        "public_key": base64.b64encode(key.public.raw).decode(),
        "signature": base64.b64encode(key.sign(bundle_id)).decode(),
    }
    write_file(path / SIGNATURE, json.dumps(values, indent=2) + "\n")


def check_signature(path: Path, bundle_id: str, trust: Sequence[str | Path]) -> PublicKey:
    """Return the trusted key that signed a bundle; raise BundleUntrusted if none did.

    Parameters
    ----------
    trust:
        Public key files. The public key in the bundle itself is not trusted unless it is one of them.
    """
    trusted = [PublicKey.read(file) for file in trust]
    remedy = f"Have it signed: {command('keys', 'sign', path, '--key', 'KEY')}"
    if not (path / SIGNATURE).exists():
        raise BundleUntrusted(f"{path} is not signed", remedy=remedy)
    try:
        values = json.loads((path / SIGNATURE).read_bytes())
        signature = base64.b64decode(values["signature"], validate=True)
        known = values["algorithm"] == ALGORITHM
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleUntrusted(f"{path / SIGNATURE} cannot be read: {error!r}", remedy=remedy) from error
    signers = [key for key in trusted if known and key.signed(signature, bundle_id)]
    if not signers:
        raise BundleUntrusted(f"{path} is not signed by a key that is trusted here", remedy=remedy)
    return signers[0]


def _cryptography() -> tuple[Any, Any]:
    """Import the `serialization` and `ed25519` modules of cryptography."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise MissingDependency.of_extra("cryptography", "sign") from error
    return serialization, ed25519
