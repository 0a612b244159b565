"""The command `retrieval tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from retrieval.cli.options import CATALOGUE, NEW_FOLDER
from retrieval.errors import command, counted
from retrieval.files import write_file
from training.cli import gather_settings, parse_settings, read_toml


@click.command()
@click.argument("catalogue", type=CATALOGUE, required=False)
@click.option("-o", "--output", required=True, type=NEW_FOLDER, help="Directory to write the study to.")
@click.option(
    "--space",
    type=click.Path(path_type=Path),
    help="TOML file with the settings to search and their values.  [default: losses, learning rates and weight decay]",
)
@click.option("--trials", type=int, help="Number of trials.  [default: 50]")
@click.option("--folds", default=4, show_default=True, help="Number of folds, which share no item.")
@click.option(
    "--objective",
    default="tpir",
    show_default=True,
    help="What to optimise in the mixed gallery: tpir (mean around the target FPIR), r@1, or opis at equal TPIR.",
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
@click.option(
    "--resume",
    is_flag=True,
    help="Continue a study with its own settings, up to --trials if given. Several processes may do so at a time.",
)
def tune(
    catalogue: Path | str | None,
    output: Path,
    space: Path | None,
    trials: int | None,
    folds: int,
    objective: str,
    config: Path | None,
    given: Sequence[str],
    resume: bool,
) -> None:
    """Search for the best settings on folds of the training items.

    Each trial trains on --folds folds of the training items, with no item and no group in two folds, and is
    evaluated on the items left out. Calibration and test items are never read. The first trial has the given settings,
    the others are drawn by TPE, and bad ones are stopped early.

    --space has a line for each setting to search, and for each argument of the loss or the regularizer, in quotes: a
    list of values, or a range. Without it, losses and learning rates are searched.

    \b
    Example:
      retrieval tune photos.csv --set backbone=efficientnet-lite0 --trials 30 -o studies/shop
    \b
    A search space:
      loss = ["smooth_ap", "proxy_anchor"]
      learning_rate = { low = 1e-5, high = 1e-3, log = true }
      "loss.alpha" = { low = 16, high = 64 }
    """
    from .study import make_plan, run_study

    if resume:
        outcome = run_study(output, trials=trials)
    else:
        settings = gather_settings(catalogue=catalogue, config=config, given=parse_settings(given))
        plan = make_plan(settings, None if space is None else read_toml(space), objective=objective, folds=folds)
        items = sum(len(validation) for _, validation in plan.folds)
        click.echo(
            f"Searching {', '.join(plan.space)} on {counted(items, 'training item', 'training items')} in "
            f"{counted(folds, 'fold')}."
        )
        outcome = run_study(output, plan, trials=trials)
    click.echo(f"\n{outcome.summary()}\n`optuna-dashboard sqlite:///{output / 'study.db'}` shows all trials.")
    if not outcome.complete:
        click.echo(f"Their logs are in {output / 'trials'}.")
        return
    best = output / "best.toml"
    write_file(best, outcome.to_toml())
    click.echo(f"Wrote {best}.\nNext: {command('train', '-o', f'runs/{output.resolve().name}', '--config', best)}")
