"""The command `retrieval explain`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from index.shell import command
from retrieval.catalogue.byte_ranges import check_place, write_file
from retrieval.errors import InvalidParameter
from training.cli import open_run

PAGE = "explain.html"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help=f"The page.  [default: RUN/{PAGE}]")
@click.option(
    "--scene",
    type=click.Choice(["unseen", "trained", "mixed"]),
    default="unseen",
    show_default=True,
    help="Items that nobody trained on, those of the training partition, or all of them.",
)
@click.option(
    "--distance",
    type=click.Choice(["plain", "served"]),
    default="plain",
    show_default=True,
    help="Plain, or the one that `export` would choose.",
)
@click.option("--worst", type=int, default=8, show_default=True, help="Searches of each kind of error, 50 at most.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def explain(run: Path, output: Path | None, scene: str, distance: str, worst: int, as_json: bool) -> None:
    """Show what a run gets wrong, as one HTML page with photos.

    It holds the worst searches beside what they should have found, the items that are taken for each other, items by
    utility, and a map of the embedding. The threshold is that of `retrieval evaluate`.

    \b
    Example:
      retrieval explain runs/shop
    """
    from .figures import figures, render
    from .page import explain_page
    from .run import explain_run

    opened = open_run(run)
    target = output or run / PAGE
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidParameter("output", "name a file in a folder that exists", str(target))
    check_place(target)
    explained = explain_run(opened, scene=scene, worst=worst, distance=distance)
    page = explain_page(explained).encode()
    write_file(target, page)
    if as_json:
        click.echo(json.dumps(figures(explained) | {"page": str(target)}, indent=2))
        return
    click.echo(render(explained))
    click.echo(f"\nWrote {target}, {len(page) / 2**20:.1f} MiB: open it in a browser.")
    click.echo(f"Next: {command('export', run, '-o', f'bundles/{run.name}', '--allow-estimate')}")


__all__ = ["explain"]
