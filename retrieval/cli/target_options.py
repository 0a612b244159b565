"""Command-line options for the target of a threshold."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--target-fpir", type=float, help="Maximum share of searches for unknown items that return a match (FPIR)."
    ),
    click.option(
        "--target-far", type=float, help="Instead: maximum share of accepted pairs of a photo and another item (FAR)."
    ),
    click.option(
        "--target-precision", type=float, help="Instead: minimum share of correct matches; needs --mated-share."
    ),
    click.option(
        "--mated-share", type=float, help="Share of searches whose item is in the gallery, for --target-precision."
    ),
)


def target_options(command: Command) -> Command:
    """Add the target options to a command and pass it `target`, None if none of them was given."""

    @wraps(command)
    def with_target(
        *arguments: Any,
        target_fpir: float | None,
        target_far: float | None,
        target_precision: float | None,
        mated_share: float | None,
        **named: Any,
    ) -> Any:
        from retrieval.threshold.targets import Target

        given = (target_fpir, target_far, target_precision, mated_share)
        target = None if all(value is None for value in given) else Target(*given)
        return command(*arguments, target=target, **named)

    for option in reversed(OPTIONS):
        with_target = option(with_target)
    return with_target  # type: ignore[return-value]
