"""The command `retrieval tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.errors import command
from retrieval.files import write_file
from training.cli import gather_settings, parse_settings

if TYPE_CHECKING:
    from .outcome import Outcome


@click.command()
@click.argument("catalogue", required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to write the study to.")
@click.option(
    "--search",
    multiple=True,
    metavar="NAME=SPEC",
    help="Setting to search, and its values: LOW..HIGH[:log][:step=N] or A,B,… Can be repeated.",
)
@click.option("--trials", type=int, help="Number of trials.  [default: 50]")
@click.option(
    "--jobs", type=int, default=1, show_default=True, help="Number of trials that run at a time, in processes."
)
@click.option("--folds", type=int, default=4, show_default=True, help="Number of class-disjoint folds.")
@click.option(
    "--objective",
    default="fnir",
    show_default=True,
    help="What to optimise: fnir (at the target FPIR), balanced (mean of R@1, MAP@R and TPIR), opis, r@1 or map@r.",
)
@click.option(
    "--share", type=float, help="Share of the training items to use.  [default: all of them, 0.1 for TCM's margins]"
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML file with settings; --set overrides it.",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of `train` that every trial has, such as epochs=5 or loss.alpha=32. Can be repeated.",
)
@click.option("--resume", is_flag=True, help="Continue a study with its own settings, up to --trials if given.")
def tune(  # noqa: PLR0913, PLR0917, one an option
    catalogue: str | None,
    output: Path,
    search: Sequence[str],
    trials: int | None,
    jobs: int,
    folds: int,
    objective: str,
    share: float | None,
    config: Path | None,
    given: Sequence[str],
    resume: bool,
) -> None:
    """Search for the best settings on folds of the training items.

    Each trial trains on --folds class-disjoint folds of the training items, with no group in two folds, and is
    evaluated on the items left out. Calibration and test items are never read. The first trial has the given settings,
    the others are drawn by TPE, and bad ones are stopped early.

    --search takes any setting (learning_rate=1e-5..1e-3:log, loss=smooth_ap,proxy_anchor), any argument of the loss
    or of the regularizer (loss.alpha=16..64), or an argument of one of several losses (loss.proxy_anchor.alpha=16..64).
    With --set regularizer=tcm and no --search, its two margins are searched on a tenth of the training items, but at
    least ten per fold.

    \b
    Example:
      retrieval tune photos.csv --set backbone=google/mobilenet_v1_0.75_224 -o studies/shop \\
          --search learning_rate=1e-5..1e-3:log --search loss=smooth_ap,proxy_anchor --trials 30
    """
    from .search_space import parse_searches
    from .study import make_plan, resume_study, start_study

    if resume:
        outcome = resume_study(output, trials=trials, jobs=jobs)
    else:
        settings = gather_settings(catalogue=catalogue, config=config, given=parse_settings(given))
        plan = make_plan(settings, parse_searches(search), objective=objective, folds=folds, share=share)
        items = sum(len(validation) for _, validation in plan.folds)
        names = ", ".join(f"{name} in {values}" for name, values in plan.search.items())
        click.echo(f"Searching {names} on {items} training items in {folds} folds.")
        outcome = start_study(plan, output, trials=50 if trials is None else trials, jobs=jobs)
    _print_outcome(outcome, output)


def _print_outcome(outcome: Outcome, output: Path) -> None:
    from .outcome import render, to_toml

    click.echo("\n" + render(outcome))
    if outcome.best is None:
        click.echo(f"The logs of the trials are in {output / 'trials'}.")
        return
    write_file(output / "best.toml", to_toml(outcome))
    click.echo(f"\nWrote {output / 'best.toml'}. `optuna-dashboard sqlite:///{output / 'study.db'}` shows all trials.")
    config = output / "best.toml"
    click.echo(f"Next: {command('train', '-o', f'runs/{output.resolve().name}', '--config', config)}")
