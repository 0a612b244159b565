"""The command `retrieval explain`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from retrieval.errors import InvalidParameter, command
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
@click.option(
    "--compare",
    type=click.Path(path_type=Path),
    help="JSON that this command printed for another run: shows which of its misses are fixed and which are new.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def explain(
    run: Path, output: Path | None, split: str, distance: str, worst: int, compare: Path | None, as_json: bool
) -> None:
    """Show the errors of a run on one HTML page with photos.

    The page has the worst searches with their own items, the causes of misses (blur, another domain, crop, look-alike
    item, view), pairs of confused items, items by utility and a map of the embedding. The threshold is that of
    `retrieval evaluate`.

    \b
    Example:
      retrieval explain runs/shop
      retrieval explain runs/shop --json > before.json
      retrieval explain runs/better --compare before.json
    """
    from .before_after import Before
    from .page import explain_page
    from .run import explain_run
    from .summary import compared, render, to_dict

    opened = open_run(run)
    target = output or run / PAGE
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidParameter("output", "be a file in an existing folder", str(target))
    check_place(target)
    before = None if compare is None else Before.read(compare)
    explained = explain_run(opened, split=split, worst=worst, distance=distance)
    comparison = None if before is None else compared(explained, before)
    page = explain_page(explained, comparison).encode()
    write_file(target, page)
    if as_json:
        more = {} if comparison is None else {"compared": comparison.to_dict()}
        click.echo(json.dumps(to_dict(explained) | more | {"page": str(target)}, indent=2))
        return
    click.echo(render(explained))
    if comparison is not None:
        click.echo("\n".join(comparison.lines()))
    click.echo(f"\nWrote {target}, {len(page) / 2**20:.1f} MiB: open it in a browser.")
    click.echo(f"Next: {command('export', run, '-o', f'bundles/{run.name}', '--allow-estimate')}")


__all__ = ["explain"]
