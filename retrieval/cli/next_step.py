"""The line at the end of a command that says which command comes next."""

from __future__ import annotations

import click

SEVERAL = "quickstart"  # the command that runs others, and says itself what comes next


def show_next(line: str) -> None:
    """Print the command that comes next, unless another command runs this one."""
    if click.get_current_context().find_root().invoked_subcommand != SEVERAL:
        click.echo(f"Next: {line}")
