"""Output that commands share: lists, a description of the index, and the command that comes next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import click

from index.ann.kinds import KINDS, choose_kind
from index.errors import MOST_LISTED
from retrieval.catalogue.kinds import text_cells
from retrieval.errors import command, counted
from retrieval.text import printable

if TYPE_CHECKING:
    from index.ann.kinds import Choice
    from index.gallery import Rebuilt
    from index.location import AnyGallery
    from retrieval.catalogue.photos import Photo

EXACT = "it is exact"
SEVERAL = "quickstart"  # the command that runs others, and says itself what comes next
SHOWN = MOST_LISTED  # lines shown before "and N more"


def show_lines(one: str, lines: Sequence[str], *, many: str = "", err: bool = False) -> None:
    """Print a title with the number of lines (`one`, or `many`), the first lines, and how many more there are."""
    if not lines:
        return
    click.echo(f"{counted(len(lines), one, many)}:", err=err)
    for line in lines[:SHOWN]:
        click.echo(f"  {printable(line)}", err=err)
    if len(lines) > SHOWN:
        click.echo(f"  and {len(lines) - SHOWN} more", err=err)


def show_text_cells(photos: Sequence[Photo], declared: Collection[str], gallery: object) -> None:
    """Print the cells that make a column of numbers text, except in columns whose kind was declared."""
    for name, cells in text_cells(photos).items():
        if name not in declared:
            why = f"of the column {name} {{}} not a number, so the column is text"
            show_lines(f"cell {why.format('is')}", cells, many=f"cells {why.format('are')}")
            mended = command("gallery", "declare", gallery, f"{name}:number")
            click.echo(
                f"Correct them for a column of numbers. In a gallery that has them already, index again, then: {mended}"
            )


def show_next(line: str) -> None:
    """Print the command that comes next, unless another command runs this one."""
    if runs_alone():
        click.echo(f"Next: {line}")


def runs_alone() -> bool:
    """Return whether no other command runs this one."""
    return click.get_current_context().find_root().invoked_subcommand != SEVERAL


def show_box(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a frame with a title, and rows with their headings."""
    width = max(len(heading) for heading, _ in rows)
    click.echo(f"\n┌ {title}")
    for place, (heading, text) in enumerate(rows, 1):
        click.echo(f"{'└' if place == len(rows) else '│'} {heading:<{width}}  {text}")


def train_command(photos: object, run: object, *, backbone: str = "auto") -> str:
    """Return the command that trains on all items of a catalogue."""
    chosen = () if backbone == "auto" else ("--backbone", backbone)
    return command("train", photos, *chosen, "--all-items", "--precompute", "8", "-o", run)


def describe_index(gallery: AnyGallery) -> str:
    """Return a sentence on the current index: kind, memory and recall."""
    index = gallery.index()
    if index["kind"] not in KINDS:
        return f"Index: {index['kind']}, which maintains it."
    recall = index.get("recall")
    choice = choose_kind(len(gallery), gallery.dim, kind=index["kind"])
    accuracy = _recall(recall["value"], recall["lower"]) if recall else EXACT
    if choice.kind == "flat":
        return f"Index: flat; {_memory(choice)}; {accuracy}; all photos are scanned."
    scanned = counted(index["scanned_photos"], "photo outside it is scanned", "photos outside it are scanned")
    return f"Index: {choice.kind}; {_memory(choice)}; {accuracy}; {scanned}."


def describe_rebuild(rebuilt: Rebuilt) -> str:
    """Return a sentence on a newly built index: kind, reason, memory and recall."""
    choice, recall = rebuilt.choice, rebuilt.recall
    if recall is None:
        accuracy = EXACT
    elif recall.expected:
        accuracy = _recall(recall.value, recall.lower)
    else:
        accuracy = "its recall is unknown, because there are no other items"
    return f"Index: {choice.kind}, {choice.why}; {_memory(choice)}; {accuracy}."


def _memory(choice: Choice) -> str:
    held, rebuilding = choice.bytes / 2**20, choice.rebuild_bytes / 2**20
    return f"about {held:,.0f} MiB in memory, {rebuilding:,.0f} MiB while it is rebuilt"


def _recall(value: float, lower: float) -> str:
    return f"recall {value:.4f} (at least {lower:.4f}, with 95 % confidence)"
