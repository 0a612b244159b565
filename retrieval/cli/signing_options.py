"""Command-line options that sign bundles and check signatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from retrieval.bundle.bundle import Bundle
    from retrieval.bundle.signing import SigningKey

File = click.Path(path_type=Path)

sign_option = click.option(
    "--sign", type=File, help="Private key file to sign the bundle with; `retrieval keys new-signing` creates one."
)
trust_option = click.option(
    "--trust", type=File, multiple=True, help="Public key file that must have signed the bundle. Can be repeated."
)


def read_key(path: Path | None) -> SigningKey | None:
    """Read a private key, or return None if `path` is None. Call it before the work, to fail early."""
    if path is None:
        return None
    from retrieval.bundle.signing import SigningKey

    return SigningKey.read(path)


def say_signed(bundle: Bundle, key: SigningKey | None) -> None:
    """Sign a bundle and print the key's fingerprint; do nothing if `key` is None."""
    if key is None:
        return
    from retrieval.bundle.signing import sign_bundle

    sign_bundle(bundle.path, bundle.bundle_id, key)
    click.echo(f"Signed by {key.public.fingerprint}.")
