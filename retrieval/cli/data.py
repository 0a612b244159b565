"""`retrieval data`: look at a catalogue, or turn a benchmark set into one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import click

from index.shell import command
from retrieval.catalogue.read import CatalogueReport, check_catalogue, describe_catalogue, read_catalogue
from retrieval.catalogue.readiness import readiness
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
@click.option("--report", type=Folder, help="Write everything that is wrong with the photos as JSON.")
def check(catalogue: Path, report: Path | None) -> None:
    """Report how a catalogue is read, what is wrong with its photos, and what training will find in it.

    Told are unreadable photos, duplicates, items with one photo, items in more than one partition, the items of each
    part of a training, and what there is too little of. Exits with 1 where training would refuse the catalogue.

    \b
    Example:
      retrieval data check photos.csv
    """
    photos = read_catalogue(catalogue)
    click.echo(f"{describe_catalogue(catalogue, photos)}.")
    checked = check_catalogue(photos)
    _show(checked)
    if report is not None:
        report.write_text(json.dumps(asdict(checked), indent=2) + "\n")
    if not checked.usable:
        click.echo("Mend the unreadable photos and the items in several partitions before training.")
        sys.exit(1)
    found = readiness(photos)
    if found.problem is not None:
        click.echo(f"Training refuses this catalogue: {found.problem}.")
        click.echo(f"A gallery takes it: {command('index', 'BUNDLE', catalogue, '-o', 'GALLERY')}")
        sys.exit(1)
    click.echo(f"{found.parts}.")
    for warning in found.warnings:
        click.echo(f"Warning: {warning}.")
    click.echo(f"Next: {command('train', catalogue, '-o', f'runs/{catalogue.stem}')}")


@data.command()
@click.argument("catalogue", type=Folder)
@click.option("-o", "--output", required=True, type=Folder, help="The CSV to write.")
@click.option("--no-groups", is_flag=True, help="Leave the groups out: parts of a training may then divide them.")
def table(catalogue: Path, output: Path, no_groups: bool) -> None:
    """Write a catalogue as a CSV, one line per photo, to look at or to edit; its photos stay where they are.

    \b
    Example:
      retrieval data table PHOTOS -o photos.csv --no-groups
    """
    photos = read_catalogue(catalogue)
    if no_groups:
        photos = [replace(photo, group="") for photo in photos]
    write_catalogue(photos, output)
    click.echo(f"Wrote {output}: {describe_catalogue(output, photos)}.")
    click.echo(f"Next: {command('data', 'check', output)}")


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
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the items set aside.")
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
    click.echo(f"Next: {command('train', output, '-o', f'runs/{output.stem}')}")


def _parts(photos: list[tuple[str, str]]) -> str:
    """Return "train 5864 photos of 100 items, ..." of (partition, item_id) pairs."""
    counts, items = Counter(part for part, _ in photos), Counter(part for part, _ in set(photos))
    return ", ".join(f"{part} {count} photos of {items[part]} items" for part, count in counts.items())


def _show(report: CatalogueReport) -> None:
    show_lines("unreadable", [f"{photo_id}: {reason}" for photo_id, reason in report.unreadable])
    show_lines("with the same content", [" = ".join(ids) for ids in report.duplicates])
    show_lines("items with one photo", report.single_photo_items)
    show_lines("items in more than one partition", report.split_items)
