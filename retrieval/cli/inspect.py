"""Commands `retrieval audit` and `doctor`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from index.location import open_gallery
from retrieval.errors import command
from retrieval.files import write_file

from .lines import SHOWN, show_next
from .options import BUNDLE, GALLERY, NEW_FILE


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("gallery", type=GALLERY)
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
@click.option("--report", type=NEW_FILE, help="HTML file to write the findings to, with pictures.")
def audit(bundle: Path, gallery: Path | str, as_json: bool, report: Path | None) -> None:
    """Find items that collide, photos that miss their own item, and duplicates in a gallery, and say what to do.

    \b
    Example:
      retrieval audit bundles/shop galleries/shop --report audit.html
    """
    from retrieval.bundle.bundle import Bundle
    from retrieval.inspect.audit import audit as run_audit
    from retrieval.inspect.audit import findings, sheet, summary

    with open_gallery(gallery, read_only=True) as opened:
        audited = run_audit(Bundle.open(bundle), opened)
        found = findings(audited, bundle, opened)
        if report is not None:
            write_file(report, sheet(audited, found, opened).html())
    if as_json:
        click.echo(json.dumps(asdict(audited), indent=2))
        return
    click.echo(summary(audited))
    for finding in found:
        click.echo(f"{finding.title[0].upper()}{finding.title[1:]}:")
        click.echo("\n".join(f"  {line}" for line, _ in finding.entries[:SHOWN]))
    to_do = [f"{finding.title[0].upper()}{finding.title[1:]}: {finding.to_do}." for finding in found if finding.to_do]
    click.echo("\n".join(["What to do:", *(f"  {line}" for line in to_do)] if to_do else ["There is nothing to do."]))
    if report is not None:
        click.echo(f"Wrote {report}: open it in a browser.")
    else:
        show_next(f"{command('audit', bundle, gallery, '--report', 'audit.html')} (the same with pictures)")


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
