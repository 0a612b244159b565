"""The commands `retrieval data convert` and `retrieval data synthetic`, which create catalogues."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from retrieval.catalogue.tables import write_catalogue
from retrieval.errors import command

from .datasets import DATASETS, PROTOCOLS, read_dataset, set_aside

Folder = click.Path(path_type=Path)


@click.command()
@click.argument("name", type=click.Choice(list(DATASETS)))
@click.argument("root", type=Folder)
@click.option("-o", "--output", required=True, type=Folder, help="CSV file to write.")
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
    (iNaturalist-2018), ROOT the folder of its official archive. `open` keeps the items of the parts disjoint; `shared`
    (cub, cars) is the split in which every class is in both, for `retrieval research` alone.

    \b
    Example:
      retrieval data convert cub CUB_200_2011 -o cub.csv --calibration 0.2
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


@click.command()
@click.argument("output", type=Folder)
@click.option("--items", type=int, default=420, show_default=True, help="Number of items to draw.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the catalogue.")
def synthetic(output: Path, items: int, seed: int) -> None:
    """Draw a procedural catalogue: items with several photos each, and their CSV.

    `queries.csv` lists new photos to search with, of catalogue items, unknown items and other things.

    \b
    Example:
      retrieval data synthetic demo/photos --seed 1
    """
    from .synthetic import make_catalogue

    catalogue = make_catalogue(output, items=items, seed=seed)
    click.echo(f"Wrote {catalogue}.")
    click.echo(f"Next: {command('train', catalogue, '-o', 'runs/synthetic')}")
