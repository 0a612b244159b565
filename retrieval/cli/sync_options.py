"""Options of `retrieval index` on what is synchronized, and its plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from index.location import exists, open_gallery
from retrieval.catalogue.kinds import COLUMN_KINDS
from retrieval.files import write_file

from .lines import show_lines

if TYPE_CHECKING:
    from retrieval.indexing.plan import SyncPlan, SyncSettings

Command = TypeVar("Command", bound=Callable[..., Any])


class ColumnKind(click.ParamType[tuple[str, str]]):
    """A column and its kind."""

    name = "NAME=KIND"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Convert to name and kind."""
        if isinstance(value, tuple):
            return value
        name, _, kind = str(value).rpartition("=")
        if not name or kind not in COLUMN_KINDS:
            self.fail(f"{value!r} is not NAME=KIND, with a kind of {', '.join(COLUMN_KINDS)}", param, ctx)
        return name, kind


class Sync(NamedTuple):
    """Settings of a synchronization, and whether to print its plan only."""

    settings: SyncSettings
    dry_run: bool


OPTIONS = (
    click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing."),
    click.option("--prune", is_flag=True, help="Remove the gallery's photos that are not in the catalogue."),
    click.option(
        "--prune-at-most",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        default=0.5,
        show_default=True,
        help="Refuse the run if --prune would remove a larger share of the gallery's photos.",
    ),
    click.option(
        "--checksum",
        is_flag=True,
        help="Read every photo, even if the size and time of its file are unchanged.",
    ),
    click.option(
        "--column",
        "columns",
        multiple=True,
        type=ColumnKind(),
        help="Kind of a metadata column: text, number or boolean. Texts in the gallery are converted. Can be repeated.",
    ),
    click.option(
        "--auto-calibrate",
        type=click.Choice(["off", "tighten"]),
        default="off",
        show_default=True,
        help="Whether adding photos may tighten the gallery's threshold, in the same transaction.",
    ),
)


def sync_options(command: Command) -> Command:
    """Add the options on synchronization to a command and pass it `sync`."""

    @wraps(command)
    def with_sync(
        *arguments: Any,
        dry_run: bool,
        prune: bool,
        prune_at_most: float,
        checksum: bool,
        columns: Sequence[tuple[str, str]],
        auto_calibrate: str,
        **named: Any,
    ) -> Any:
        from retrieval.indexing.plan import SyncSettings

        tighten = auto_calibrate == "tighten"
        settings = SyncSettings(prune, checksum, tighten, dict(columns), prune_at_most)
        return command(*arguments, sync=Sync(settings, dry_run), **named)

    for option in reversed(OPTIONS):
        with_sync = option(with_sync)
    return with_sync  # type: ignore[return-value]


def known_columns(gallery: Path | str) -> dict[str, str]:
    """Return the kinds of a gallery's columns, none if it does not exist yet."""
    if not exists(gallery):
        return {}
    with open_gallery(gallery, read_only=True) as opened:
        return opened.columns()


def show_plan(plan: SyncPlan, report: Path | None) -> None:
    """Print a plan, and write it to a JSON file if one is given."""
    for title, lines in plan.sections():
        show_lines(title, lines)
    click.echo(f"{plan.unchanged} photos are unchanged. Nothing was written.")
    if report is not None:
        write_file(report, json.dumps(plan.to_dict(), indent=2) + "\n")
