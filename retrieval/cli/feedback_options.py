"""Command-line options for feedback that moves a threshold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from retrieval.threshold.verdicts import Tally

Command = TypeVar("Command", bound=Callable[..., Any])


def feedback_options(command: Command) -> Command:
    """Add the options `--feedback` and `--trust-key` to a command."""
    feedback = click.option(
        "--feedback",
        type=click.Path(path_type=Path),
        help="File of verdicts on answers, which can tighten the threshold.",
    )
    trust_key = click.option(
        "--trust-key",
        multiple=True,
        help="API key whose verdicts may move the threshold without other keys; '' for a server without keys.",
    )
    return feedback(trust_key(command))


def show_tally(verdicts: int, tally: Tally) -> None:
    """Print which verdicts count."""
    click.echo(f"{verdicts} verdicts, {len(tally.counted)} of them counted:")
    for line in tally.lines():
        click.echo(f"  {line}")
