"""Options of `retrieval serve` that set the server's limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any

import click

from retrieval.cores import cores

from .config import ServeSettings

Folder = click.Path(path_type=Path)
OPTIONS = (
    click.option("--threads", type=int, default=None, help="Searches at a time.  [default: one a core]"),
    click.option("--queue", type=int, default=32, show_default=True, help="Searches that may wait; one more gets 503."),
    click.option("--deadline", type=float, default=10.0, show_default=True, help="Seconds that a search may take."),
    click.option("--batch", type=int, default=0, help="Photos embedded together.  [default: 16 on a GPU, else 1]"),
    click.option("--keys", type=Folder, help="File of API keys (retrieval keys add); needed beyond this machine."),
    click.option(
        "--rate",
        type=float,
        default=math.inf,
        help="Requests per second of a key, or of an address.  [default: no limit]",
    ),
    click.option("--feedback", type=Folder, help="File that verdicts go to.  [default: GALLERY.feedback.jsonl]"),
)


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command and pass them to it as `settings`."""

    @wraps(command)
    def called(
        *arguments: Any,
        threads: int | None,
        queue: int,
        deadline: float,
        batch: int,
        keys: Path | None,
        rate: float,
        feedback: Path | None,
        **others: Any,
    ) -> None:
        settings = ServeSettings(
            threads=cores() if threads is None else threads,
            queue=queue,
            deadline_s=deadline,
            batch=batch,
            keys=keys,
            rate=rate,
            feedback=feedback,
        )
        command(*arguments, settings=settings, **others)

    return reduce(lambda decorated, option: option(decorated), reversed(OPTIONS), called)
