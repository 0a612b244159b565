"""`retrieval data`: look at a catalogue, or turn a benchmark set into one."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from retrieval.catalogue.read import CatalogueReport, check_catalogue, read_catalogue
from training.data.datasets import DATASETS, PROTOCOLS, read_dataset, set_aside, write_catalogue

from .commands import show_lines

Folder = click.Path(path_type=Path)


@click.group()
def data() -> None:
    """Check a catalogue before training on it, or make one of a benchmark set.

    \b
    Example:
      retrieval data check photos.csv
    """


@data.command()
@click.argument("catalogue", type=Folder)
def check(catalogue: Path) -> None:
    """Report unreadable photos, duplicates, items with one photo, and items in more than one partition.

    \b
    Example:
      retrieval data check photos.csv
    """
    report = check_catalogue(read_catalogue(catalogue))
    _show(report)
    if not report.usable:
        click.echo("Mend the unreadable photos and the items in several partitions before training.")
        sys.exit(1)
    click.echo(f"Next: retrieval train {catalogue} -o runs/{catalogue.stem}")


@data.command()
@click.argument("name", type=click.Choice(list(DATASETS)))
@click.argument("root", type=Folder)
@click.option("-o", "--output", required=True, type=Folder, help="The CSV to write.")
@click.option(
    "--protocol", type=click.Choice(PROTOCOLS), default="open", show_default=True, help="Who is in which part."
)
@click.option(
    "--calibration",
    type=float,
    default=0.0,
    show_default=True,
    help="Share of training items to calibrate on.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the items set aside.")
def convert(name: str, root: Path, output: Path, protocol: str, calibration: float, seed: int) -> None:
    """Write a benchmark set with its official split as a catalogue; its photos stay where they are.

    NAME is cub (CUB-200-2011), cars (Cars-196), sop (Stanford Online Products), inshop (In-Shop) or inat
    (iNaturalist-2018), ROOT the folder of its official archive. `open` keeps the items of the parts disjoint; `shared`
    (cub, cars) is the split in which every class is in both, for `retrieval benchmark` alone.

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
    click.echo(f"Next: retrieval train {output} -o runs/{output.stem}")


def _parts(photos: list[tuple[str, str]]) -> str:
    """Return "train 5864 photos of 100 items, ..." of (partition, item_id) pairs."""
    counts, items = Counter(part for part, _ in photos), Counter(part for part, _ in set(photos))
    return ", ".join(f"{part} {count} photos of {items[part]} items" for part, count in counts.items())


def _show(report: CatalogueReport) -> None:
    click.echo(f"{report.photos} photos of {report.items} items.")
    show_lines("unreadable", [f"{photo_id}: {reason}" for photo_id, reason in report.unreadable])
    show_lines("with the same content", [" = ".join(ids) for ids in report.duplicates])
    show_lines("items with one photo", report.single_photo_items)
    show_lines("items in more than one partition", report.split_items)
