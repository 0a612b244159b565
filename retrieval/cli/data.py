"""Command group `retrieval data`: check and create catalogues."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click

from retrieval.catalogue.check import CatalogueReport, can_train, check_catalogue, describe_catalogue, readiness
from retrieval.catalogue.folders import FolderRules
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.tables import write_catalogue
from retrieval.errors import command

from .lines import show_lines, show_next, show_text_cells, train_command
from .main import Entry, LazyGroup
from .options import CATALOGUE, FOLDER_OPTIONS, FOLDER_OR_TABLE, NEW_FILE, options_as

COMMANDS = {
    "check": Entry("retrieval.cli.data", "check", "Find problems in a catalogue before training."),
    "table": Entry("retrieval.cli.data", "table", "Write a catalogue as a CSV file with one line per photo."),
    "synthetic": Entry("training.data.cli", "synthetic", "Draw a catalogue of procedural items."),
}


@click.group(cls=LazyGroup, sections={"Commands": COMMANDS})
def data() -> None:
    """Check a catalogue before training, or create one.

    \b
    Example:
      retrieval data check photos.csv
    """


@click.command()
@click.argument("catalogue", type=CATALOGUE)
@click.option("--report", type=NEW_FILE, help="JSON file to write all problems to.")
@options_as("folders", FolderRules, FOLDER_OPTIONS)
def check(catalogue: Path | str, report: Path | None, folders: FolderRules) -> None:
    """Check a catalogue: how it is read, problems with its photos, and whether it is ready for training.

    Reports unreadable photos, duplicates, items with one photo, items in more than one partition, the number of items
    per training split, and shortages. Exits with status 1 if training would refuse the catalogue.

    \b
    Example:
      retrieval data check photos.csv
    """
    photos = read_catalogue(catalogue, folders=folders)
    click.echo(f"{describe_catalogue(catalogue, photos)}.")
    checked = check_catalogue(photos)
    _show(checked)
    show_text_cells(photos, (), "GALLERY")
    if report is not None:
        report.write_text(json.dumps(asdict(checked), indent=2) + "\n")
    if not checked.usable:
        click.echo("Repair or remove the unreadable photos, and put each item into one partition, before training.")
        sys.exit(1)
    ready = readiness(photos)
    if ready.problem is not None:
        click.echo(f"Training refuses this catalogue: {ready.problem}.")
        click.echo(f"It can still be indexed: {command('index', 'BUNDLE', catalogue, '-o', 'GALLERY')}")
        sys.exit(1)
    click.echo(f"{ready.parts}.")
    for warning in ready.warnings:
        click.echo(f"Warning: {warning}.")
    run = f"runs/{Path(catalogue).stem}"
    on_all = can_train(photos)
    click.echo(f"Next: {train_command(catalogue, run) if on_all else command('train', catalogue, '-o', run)}")


@click.command()
@click.argument("catalogue", type=FOLDER_OR_TABLE)
@click.option("-o", "--output", required=True, type=NEW_FILE, help="CSV file to write.")
@click.option("--no-groups", is_flag=True, help="Leave out the groups, so that the training split may divide them.")
@options_as("folders", FolderRules, FOLDER_OPTIONS)
def table(catalogue: Path, output: Path, no_groups: bool, folders: FolderRules) -> None:
    """Write a catalogue as a CSV with one line per photo, to view or edit. The photos are not copied.

    \b
    Example:
      retrieval data table PHOTOS -o photos.csv --no-groups
      retrieval data table PHOTOS -o photos.csv --ignore '*_thumb.jpg' --splits merge
    """
    photos = read_catalogue(catalogue, folders=folders)
    if no_groups:
        photos = [replace(photo, group="") for photo in photos]
    write_catalogue(photos, output)
    click.echo(f"Wrote {output}: {describe_catalogue(output, photos)}.")
    show_next(command("data", "check", output))


def _show(report: CatalogueReport) -> None:
    show_lines("photo that cannot be read", [f"{photo_id}: {reason}" for photo_id, reason in report.unreadable])
    show_lines("photo damaged (blocks of the JPEG are lost or noisy)", report.damaged)
    show_lines("set of photos with the same content", [" = ".join(ids) for ids in report.duplicates])
    show_lines("item with one photo", report.single_photo_items)
    show_lines("item in more than one partition", report.split_items)
