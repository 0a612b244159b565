"""Commands `retrieval index`, `audit` and `doctor`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.ann.kinds import KINDS
from index.location import open_gallery
from index.shell import command
from retrieval.catalogue.read import read_catalogue
from retrieval.files import check_place, write_file

from .index_lines import describe_index, describe_rebuild
from .lines import SHOWN, show_lines
from .next_step import show_next
from .options import MEMORY, CataloguePlace, Place
from .sync_options import Sync, known_columns, show_plan, sync_options

if TYPE_CHECKING:
    from retrieval.indexing.pipeline import IndexReport

Folder = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=Folder)
@click.argument("photos", type=CataloguePlace())
@click.option(
    "-o",
    "--output",
    required=True,
    type=Place(),
    help="Gallery to add to or create: a directory, or the address of a Milvus collection.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=os.cpu_count(),
    show_default="all cores",
    help="Number of threads that embed.",
)
@click.option("--batch-size", type=int, default=16, show_default=True, help="Number of photos per batch.")
@click.option(
    "--kind",
    type=click.Choice(["auto", *KINDS]),
    help="Kind of index (local galleries).  [default: the last choice, at first auto]",
)
@click.option(
    "--max-memory", type=MEMORY, help="Memory limit of the index and its rebuild, such as 2GiB (local galleries)."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Embed on this machine or on a Ray cluster.",
)
@click.option("--report", type=Folder, help="JSON file to write the refused photos and the reasons to.")
@sync_options
def index(
    bundle: Path,
    photos: Path | str,
    output: Path | str,
    threads: int,
    batch_size: int,
    kind: str | None,
    max_memory: int | None,
    engine: str,
    report: Path | None,
    sync: Sync,
) -> None:
    """Synchronize a gallery with a folder, a CSV, parquet or JSON-lines file, or tar shards of photos.

    New photos, and those whose file or bounding box changed, are embedded. A changed item or metadata is only written.
    Photos of the gallery that the catalogue does not have are reported, and removed with --prune, unless they are more
    than half of the gallery (--prune-at-most) or none of the catalogue's photos can be used. An interrupted run can be
    continued. Photos that cannot be used are reported and do not stop the run.

    Numbers and booleans of a CSV are recognized from the whole column, or declared with --column.

    \b
    Example:
      retrieval index bundles/shop photos.csv -o galleries/shop --dry-run
      retrieval index bundles/shop photos.csv -o galleries/shop --column price=number
    """
    from retrieval.bundle.bundle import Bundle
    from retrieval.indexing.pipeline import index_catalogue, plan_catalogue
    from retrieval.indexing.plan import check_prune
    from retrieval.threshold.forecast import fpir_forecast

    if report is not None:
        check_place(report)
    opened = Bundle.open(bundle)
    rows = read_catalogue(photos, columns=sync.settings.columns, known=known_columns(output))
    if sync.dry_run:
        plan = plan_catalogue(opened, rows, output, checksum=sync.settings.checksum)
        show_plan(plan, report)
        check_prune(plan, sync.settings)
        return
    done = index_catalogue(
        opened,
        rows,
        output,
        threads=threads,
        batch_size=batch_size,
        kind=kind,
        max_memory=max_memory,
        engine=engine,
        sync=sync.settings,
    )
    show_outcome(done, output, report)
    with open_gallery(output, read_only=True) as gallery:
        click.echo(describe_index(gallery) if done.rebuilt is None else describe_rebuild(done.rebuilt))
        view = fpir_forecast(opened, gallery.items) if done.point is None else None
    show_expectations(done, bundle, output, bundle_decides=opened.operating_point.decides)
    if view is not None and view.outgrown:
        click.echo(f"Warning: {view.warning(bundle, output)}.")
    show_next(command("serve", bundle, output))


def show_outcome(done: IndexReport, gallery: Path | str, report: Path | None) -> None:
    """Print what a run did, and write it to a JSON file if one is given; exit if every photo was refused."""
    show_lines("refused", [f"{photo_id}: {reason}" for photo_id, reason in done.refused])
    show_lines("photos of the gallery that are not in the catalogue (--prune removes them)", done.gone)
    if report is not None:
        write_file(report, json.dumps(done.to_dict(), indent=2) + "\n")
    if done.refused and not (done.added or done.updated or done.skipped):
        click.echo("Nothing was added: every photo was refused.", err=True)
        sys.exit(1)
    click.echo(f"Wrote {gallery}: {_counts(done)}.")


def _counts(done: IndexReport) -> str:
    """Return how many photos were added, replaced and so on, leaving out zeros."""
    more = (
        (done.replaced, "of them replaced"),
        (done.updated, "updated"),
        (done.removed, "removed"),
        (done.skipped, "already there"),
        (len(done.refused), "refused"),
    )
    told = "".join(f", {count} {what}" for count, what in more if count)
    speed = f" in {done.seconds:.0f} s" if done.added else ""
    return f"{done.added} photos added{speed}{told}"


def show_expectations(done: IndexReport, bundle: Path, gallery: Path | str, *, bundle_decides: bool) -> None:
    """Print what to expect of the threshold in the gallery as it is now; `bundle_decides` if the bundle has its own."""
    from retrieval.threshold.gallery_anchor import describe

    if done.point is None:
        if not bundle_decides:
            click.echo(f"This gallery has no threshold, so searches only rank items: {done.unanchored}.")
        elif done.unanchored:
            click.echo(f"This gallery uses the bundle's threshold: {done.unanchored}.")
        return
    for line in describe(done.point):
        click.echo(line)
    warning = "" if done.rates is None else done.rates.warning(done.point, bundle, gallery)
    if warning:
        click.echo(f"Warning: {warning}.")


@click.command()
@click.argument("bundle", type=Folder)
@click.argument("gallery", type=Place())
@click.option("-o", "--output", type=Folder, help="HTML file to write the audit with photos to.")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
def audit(bundle: Path, gallery: Path | str, output: Path | None, as_json: bool) -> None:
    """Find items that collide, photos that miss their own item, and duplicates in a gallery.

    \b
    Example:
      retrieval audit bundles/shop galleries/shop -o audit.html
    """
    from retrieval.bundle.bundle import Bundle
    from retrieval.inspect.audit import audit as run_audit
    from retrieval.inspect.audit import summary, table
    from retrieval.inspect.audit_page import audit_page

    if output is not None:
        check_place(output)
    with open_gallery(gallery, read_only=True) as opened:
        report = run_audit(Bundle.open(bundle), opened)
        if output is not None:
            write_file(output, audit_page(report, opened.thumbnail))
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
        return
    click.echo(summary(report))
    for title, lines in table(report, limit=SHOWN):
        if lines:
            click.echo(f"{title[0].upper()}{title[1:]}:")
            click.echo("\n".join(f"  {line}" for line in lines))
    click.echo(f"Wrote {output}." if output else f"Next: {command('audit', bundle, gallery, '-o', 'audit.html')}")


@click.command()
@click.argument("bundle", type=Folder, required=False)
@click.argument("gallery", type=Place(), required=False)
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
