"""The command `retrieval explain`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from index.shell import command
from retrieval.errors import InvalidParameter
from retrieval.files import check_place, write_file
from training.cli import open_run

PAGE = "explain.html"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help=f"File to write the page to.  [default: RUN/{PAGE}]"
)
@click.option(
    "--split",
    type=click.Choice(["unseen", "trained", "mixed"]),
    default="unseen",
    show_default=True,
    help="Items to search for: unseen ones, those of the training partition, or both.",
)
@click.option(
    "--distance",
    type=click.Choice(["plain", "served"]),
    default="plain",
    show_default=True,
    help="Distance of the searches: plain, or the one that `export` would select.",
)
@click.option(
    "--worst", type=int, default=8, show_default=True, help="Number of searches to show per kind of error, at most 50."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def explain(run: Path, output: Path | None, split: str, distance: str, worst: int, as_json: bool) -> None:
    """Show the errors of a run on one HTML page with photos.

    The page has the worst searches with their own items, pairs of confused items, items by utility and a map of the
    embedding. The threshold is that of `retrieval evaluate`.

    \b
    Example:
      retrieval explain runs/shop
    """
    from .page import explain_page
    from .run import explain_run
    from .summary import render, to_dict

    opened = open_run(run)
    target = output or run / PAGE
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidParameter("output", "be a file in an existing folder", str(target))
    check_place(target)
    explained = explain_run(opened, split=split, worst=worst, distance=distance)
    page = explain_page(explained).encode()
    write_file(target, page)
    if as_json:
        click.echo(json.dumps(to_dict(explained) | {"page": str(target)}, indent=2))
        return
    click.echo(render(explained))
    click.echo(f"\nWrote {target}, {len(page) / 2**20:.1f} MiB: open it in a browser.")
    click.echo(f"Next: {command('export', run, '-o', f'bundles/{run.name}', '--allow-estimate')}")


__all__ = ["explain"]
