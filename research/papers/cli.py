"""The command group `retrieval research`: list, show and run the papers' tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retrieval.errors import InvalidParameter, command


@click.group()
def research() -> None:
    """Run the tables and figures of the four papers, on their data sets or on your own catalogue.

    \b
    Example:
      retrieval research list
      retrieval research run tcm-table-7 --data photos.csv --backbone small --epochs 5 -o papers
    """


@research.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print names and items as JSON.")
@click.option("--markdown", is_flag=True, help="Print docs/papers.md.")
def list_(as_json: bool, markdown: bool) -> None:
    """List the configurations: name, table or figure, what it shows.

    \b
    Example:
      retrieval research list
    """
    from .listing import PAPERS, configurations
    from .page import render_page

    if markdown:
        click.echo(render_page(), nl=False)
        return
    if as_json:
        click.echo(json.dumps({name: list(entry.items) for name, entry in configurations().items()}, indent=2))
        return
    for paper in PAPERS.values():
        click.echo(f"\n{paper.title}")
        for entry in paper.configurations:
            click.echo(f"  {entry.name:<22} {', '.join(entry.items)}: {entry.shows}")
        for item, reason in paper.nothing_to_run.items():
            click.echo(f"  {'-':<22} {item}: {reason}")
    click.echo(f"\nNext: {command('research', 'show', 'NAME')}")


@research.command()
@click.argument("name")
def show(name: str) -> None:
    """Show a configuration: data sets, variants and their settings, metrics, notes.

    \b
    Example:
      retrieval research show tcm-table-7
    """
    from .listing import find

    entry = find(name)
    click.echo(f"{entry.name}: {', '.join(entry.items)}. {entry.shows}")
    facts = {
        "data sets": ", ".join(entry.datasets) or "none",
        "protocol": f"{entry.protocol}; {entry.split} split; checkpoint: {entry.selection}; {entry.seeds} seeds",
        "metrics": ", ".join(entry.metrics),
        "settings": _plain(entry.settings),
        **{
            f"on {dataset}": _plain(settings)
            for dataset, settings in entry.by_dataset.items()
            if dataset in entry.datasets
        },
        **{f"- {title}": _plain(variant.settings) for title, variant in entry.variants.items()},
        "note": entry.note,
        "not here": entry.missing,
    }
    for key, text in facts.items():
        if text:
            click.echo(f"  {key}: {text}")
    click.echo(f"\nNext: {command('research', 'run', entry.name, '--data', 'DATA', '-o', 'papers')}")


@research.command()
@click.argument("name")
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path(), help="Folder of the data sets, or a catalogue file."
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where runs and results go.")
@click.option("--dataset", "datasets", multiple=True, help="Only this data set; may be given again.")
@click.option("--backbone", help="This backbone for every variant.")
@click.option("--epochs", type=int, help="So many epochs.")
@click.option("--seeds", type=int, help="So many seeds a variant.  [default: the paper's]")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Another setting; may be given again.")
@click.option("--strangers", type=click.Path(path_type=Path), help="Catalogue of strange photos, for image noise.")
@click.option("--smoke-test", is_flag=True, help="Tiny model, one epoch, two seeds at most: does it run at all?")
def run(
    name: str,
    data: Path,
    output: Path,
    datasets: Sequence[str],
    backbone: str | None,
    epochs: int | None,
    seeds: int | None,
    changes: Sequence[str],
    strangers: Path | None,
    smoke_test: bool,
) -> None:
    """Train and measure every variant of a configuration, and write its table.

    DATA is the folder of one data set, or contains the folders cub, cars, sop, inshop and inat; a catalogue file as
    DATA replaces every data set. Finished runs are not trained again, and configurations with the same OUTPUT share
    their runs.

    \b
    Example:
      retrieval research run mean-field-table-6 --data photos.csv --backbone small --epochs 5 --seeds 2 -o papers
    """
    from retrieval.catalogue.read import read_catalogue

    from .listing import find
    from .runner import run as run_configuration
    from .runs import Options

    given: dict[str, Any] = dict(_change(text) for text in changes)
    given |= {key: value for key, value in (("backbone", backbone), ("epochs", epochs)) if value is not None}
    options = Options(
        data=data,
        output=output,
        changes=given,
        seeds=seeds,
        smoke_test=smoke_test,
        datasets=datasets,
        strangers=read_catalogue(strangers) if strangers else (),
    )
    results = run_configuration(find(name), options)
    click.echo(results.to_markdown())
    click.echo(f"Wrote {output / name}: results.json, results.md.")


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidParameter("--set", "be NAME=VALUE", text)
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value


def _plain(settings: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())
