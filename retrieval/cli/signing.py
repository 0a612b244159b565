"""Commands `retrieval keys new-signing` and `retrieval keys sign`."""

from __future__ import annotations

from pathlib import Path

import click

from index.shell import command

from .signing_options import read_key, say_signed

File = click.Path(path_type=Path)


@click.command("new-signing")
@click.argument("file", type=File)
def new_signing(file: Path) -> None:
    """Create a key pair for signing bundles: the private key FILE and the public key FILE.pub.

    Keep FILE only on the machine that makes bundles. Give FILE.pub to the machines that serve them.

    \b
    Example:
      retrieval keys new-signing shop.key
      retrieval export runs/shop -o bundles/shop --allow-estimate --sign shop.key
      retrieval serve bundles/shop galleries/shop --trust shop.key.pub
    """
    from retrieval.bundle.signing import PUBLIC, new_signing_key

    public = new_signing_key(file)
    click.echo(f"Wrote {file} (keep it secret) and {file}{PUBLIC}: {public.fingerprint}.")
    click.echo(f"Next: {command('keys', 'sign', 'BUNDLE', '--key', file)}")


@click.command()
@click.argument("bundle", type=File)
@click.option("--key", required=True, type=File, help="Private key file.")
def sign(bundle: Path, key: Path) -> None:
    """Check a bundle's files and sign it, replacing an older signature.

    \b
    Example:
      retrieval keys sign bundles/shop --key shop.key
    """
    from retrieval.bundle.bundle import Bundle

    signing = read_key(key)
    say_signed(Bundle.open(bundle), signing)
    click.echo(f"Next: {command('serve', bundle, 'GALLERY', '--trust', f'{key}.pub')}")
