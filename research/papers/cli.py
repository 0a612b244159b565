"""The command group `retrieval research`: list, show and run the papers' tables and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from research.datasets import DATASETS, PROTOCOLS, read_dataset, set_aside
from retrieval.catalogue.tables import write_catalogue
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
    click.echo(f"\nNext: {command(*entry.command)}")


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

    DATA is the unpacked archive of a data set (CUB_200_2011, Cars-196, Stanford_Online_Products, In-Shop, iNaturalist),
    or a folder of several; sets that it does not contain are left out. A catalogue file as DATA replaces every data
    set. Finished runs are not trained again, and configurations with the same OUTPUT share
    their runs.

    \b
    Example:
      retrieval research run vmf-table-1 --data CUB_200_2011 -o papers
      retrieval research run mean-field-table-6 --data photos.csv --backbone small --epochs 5 --seeds 2 -o papers
    """
    from retrieval.catalogue.read import read_catalogue

    from .listing import find
    from .runner import datasets_of
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
    entry = find(name)
    chosen = datasets_of(entry, options)
    left = [known for known in entry.datasets if known not in chosen and not (datasets or data.is_file())]
    if left:
        click.echo(f"{data} does not contain {', '.join(left)}: only {', '.join(chosen)} will run.", err=True)
    results = run_configuration(entry, options)
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


@research.command()
@click.argument("name", type=click.Choice(list(DATASETS)))
@click.argument("root", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="CSV file to write.")
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default="open",
    show_default=True,
    help="How the items are split into parts.",
)
@click.option(
    "--calibration",
    type=float,
    default=0.0,
    show_default=True,
    help="Share of the training items to set aside for calibration.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the items that are set aside."
)
def convert(name: str, root: Path, output: Path, protocol: str, calibration: float, seed: int) -> None:
    """Write a benchmark set with its official split as a catalogue; its photos stay where they are.

    NAME is cub (CUB-200-2011), cars (Cars-196), sop (Stanford Online Products), inshop (In-Shop) or inat
    (iNaturalist-2018), ROOT the folder of its unpacked archive, or one up to two levels above it. `open` keeps the
    items of the parts disjoint; `shared` (cub, cars) is the split in which every class is in both, for `retrieval
    research` alone.

    \b
    Example:
      retrieval research convert cub CUB_200_2011 -o cub.csv --calibration 0.2
    """
    photos = set_aside(read_dataset(name, root, protocol=protocol), share=calibration, seed=seed)
    write_catalogue(photos, output)
    click.echo(f"Wrote {output}: {_parts([(p.partition, p.item_id) for p in photos])}.")
    if protocol == "shared":
        click.echo("Note: the parts share their items, so that `retrieval train` refuses this catalogue.")
        return
    if not calibration:
        click.echo("Note: the official split has no calibration items, which `evaluate` and `export` need.")
    click.echo(f"Next: {command('train', output, '-o', f'runs/{output.stem}')}")


def _parts(photos: list[tuple[str, str]]) -> str:
    """Return "train 5864 photos of 100 items, ..." of (partition, item_id) pairs."""
    counts, items = Counter(part for part, _ in photos), Counter(part for part, _ in set(photos))
    return ", ".join(f"{part} {count} photos of {items[part]} items" for part, count in counts.items())
