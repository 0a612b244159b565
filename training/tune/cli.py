"""The command `retrieval tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.cli.options import CATALOGUE, NEW_FOLDER
from retrieval.errors import command, counted
from retrieval.files import write_file
from training.cli import gather_settings, parse_settings

if TYPE_CHECKING:
    from .study import Outcome


@click.command()
@click.argument("catalogue", type=CATALOGUE, required=False)
@click.option("-o", "--output", required=True, type=NEW_FOLDER, help="Directory to write the study to.")
@click.option(
    "--search",
    multiple=True,
    metavar="NAME=SPEC",
    help="Setting to search, and its values: LOW..HIGH[:log][:step=N] or A,B,… Can be repeated.",
)
@click.option("--trials", type=int, help="Number of trials.  [default: 50]")
@click.option("--folds", default=4, show_default=True, help="Number of folds, which share no item.")
@click.option(
    "--objective",
    default="tpir",
    show_default=True,
    help="What to optimise in the mixed gallery: tpir (mean around the target FPIR), r@1 or opis.",
)
@click.option("--share", default=1.0, show_default=True, help="Share of the training items to use.")
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
@click.option(
    "--resume",
    is_flag=True,
    help="Continue a study with its own settings, up to --trials if given. Several processes may do so at a time.",
)
def tune(
    catalogue: Path | str | None,
    output: Path,
    search: Sequence[str],
    trials: int | None,
    folds: int,
    objective: str,
    share: float,
    config: Path | None,
    given: Sequence[str],
    resume: bool,
) -> None:
    """Search for the best settings on folds of the training items.

    Each trial trains on --folds folds of the training items, with no item and no group in two folds, and is
    evaluated on the items left out. Calibration and test items are never read. The first trial has the given settings,
    the others are drawn by TPE, and bad ones are stopped early.

    --search takes any setting (learning_rate=1e-5..1e-3:log, loss=smooth_ap,proxy_anchor) and any argument of the loss
    or of the regularizer (loss.alpha=16..64).
    For the margins of the regularizer tcm, --share 0.1 is usual, but leave at least ten items per fold.

    \b
    Example:
      retrieval tune photos.csv --set backbone=efficientnet-lite0 -o studies/shop \\
          --search learning_rate=1e-5..1e-3:log --search loss=smooth_ap,proxy_anchor --trials 30
    """
    from .search_space import parse_searches
    from .study import TRIALS, make_plan, resume_study, start_study

    if resume:
        outcome = resume_study(output, trials=trials)
    else:
        settings = gather_settings(catalogue=catalogue, config=config, given=parse_settings(given))
        plan = make_plan(
            settings,
            parse_searches(search),
            objective=objective,
            folds=folds,
            share=share,
            trials=TRIALS if trials is None else trials,
        )
        items = sum(len(validation) for _, validation in plan.folds)
        names = ", ".join(f"{name} in {values}" for name, values in plan.search.items())
        click.echo(
            f"Searching {names} on {counted(items, 'training item', 'training items')} in {counted(folds, 'fold')}."
        )
        outcome = start_study(plan, output)
    _print_outcome(outcome, output)


def _print_outcome(outcome: Outcome, output: Path) -> None:
    click.echo(f"\n{outcome.summary()}\n`optuna-dashboard sqlite:///{output / 'study.db'}` shows all trials.")
    if not outcome.complete:
        click.echo(f"Their logs are in {output / 'trials'}.")
        return
    config = output / "best.toml"
    write_file(config, outcome.to_toml())
    click.echo(f"Wrote {config}.\nNext: {command('train', '-o', f'runs/{output.resolve().name}', '--config', config)}")
