"""Lists on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click

from retrieval.text import printable

SHOWN = 10  # lines shown before "and N more"


def show_lines(title: str, lines: Sequence[str], *, err: bool = False) -> None:
    """Print a title with the number of lines, the first lines, and how many more there are."""
    if not lines:
        return
    click.echo(f"{len(lines)} {title}:", err=err)
    for line in lines[:SHOWN]:
        click.echo(f"  {printable(line)}", err=err)
    if len(lines) > SHOWN:
        click.echo(f"  and {len(lines) - SHOWN} more", err=err)
