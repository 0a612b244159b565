"""Commands `retrieval audit` and `doctor`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from index.location import open_gallery

from .lines import SHOWN
from .options import BUNDLE, GALLERY


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("gallery", type=GALLERY)
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
def audit(bundle: Path, gallery: Path | str, as_json: bool) -> None:
    """Find items that collide, photos that miss their own item, and duplicates in a gallery.

    \b
    Example:
      retrieval audit bundles/shop galleries/shop
    """
    from retrieval.bundle.bundle import Bundle
    from retrieval.inspect.audit import audit as run_audit
    from retrieval.inspect.audit import summary, table

    with open_gallery(gallery, read_only=True) as opened:
        report = run_audit(Bundle.open(bundle), opened)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
        return
    click.echo(summary(report))
    for title, lines in table(report, limit=SHOWN):
        if lines:
            click.echo(f"{title[0].upper()}{title[1:]}:")
            click.echo("\n".join(f"  {line}" for line in lines))


@click.command()
@click.argument("bundle", type=BUNDLE, required=False)
@click.argument("gallery", type=GALLERY, required=False)
def doctor(bundle: Path | None, gallery: Path | str | None) -> None:
    """Check the installation, a bundle or a gallery, and suggest how to fix problems.

    A bundle is intact if its files match its manifest.

    \b
    Example:
      retrieval doctor bundles/shop galleries/shop
    """
    from retrieval.inspect.doctor import examine

    healthy = True
    for finding in examine(bundle, gallery):
        healthy &= finding.good
        click.echo(f"{'ok ' if finding.good else 'BAD'}  {finding.text}")
        if finding.remedy:
            click.echo(f"     -> {finding.remedy}")
    click.echo("No problems found." if healthy else "Problems found: see the lines that begin with BAD.")
    if not healthy:
        sys.exit(1)
