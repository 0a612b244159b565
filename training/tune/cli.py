"""The command `retrieval tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.errors import command
from retrieval.files import write_file
from training.cli import gather_settings
from training.options import settings_set

from .search_space import parse_searches, read_searches

if TYPE_CHECKING:
    from .results import Outcome


@click.command()
@click.argument("catalogue", required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to write the study to.")
@click.option(
    "--search",
    multiple=True,
    metavar="NAME=SPEC",
    help="Setting to search, and its values: LOW..HIGH[:log][:step=N] or A,B,… Can be repeated.",
)
@click.option("--space", type=click.Path(path_type=Path), help="TOML file with more settings to search.")
@click.option("--trials", type=int, help="Number of trials.  [default: 50]")
@click.option(
    "--jobs", type=int, default=1, show_default=True, help="Number of trials that run at a time, in processes."
)
@click.option("--folds", type=int, default=4, show_default=True, help="Number of class-disjoint folds.")
@click.option(
    "--objective",
    default="fnir",
    show_default=True,
    help="What to optimise: fnir (at the target FPIR), balanced (mean of R@1, MAP@R and TPIR), opis, search_opis, "
    "r@1 or map@r; or two of them, as A,B.",
)
@click.option(
    "--share", type=float, help="Share of the training items to use.  [default: all of them, 0.1 for TCM's margins]"
)
@click.option(
    "--pruner", default="median", show_default=True, help="What stops bad trials early: median, hyperband or none."
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
    space: Path | None,
    trials: int | None,
    jobs: int,
    folds: int,
    objective: str,
    share: float | None,
    pruner: str,
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
    from .plan import TuneOptions, make_plan
    from .tune import resume_tuning, start_tuning

    if resume:
        outcome = resume_tuning(output, trials=trials, jobs=jobs)
    else:
        axes = [*parse_searches(search).items(), *(read_searches(space).items() if space else ())]
        options, nested = settings_set(given)
        settings = gather_settings(catalogue=catalogue, config=config, options=options, nested=nested)
        study_options = TuneOptions(
            trials=50 if trials is None else trials,
            objectives=tuple(name.strip() for name in objective.split(",")),
            folds=folds,
            share=share,
            pruner=pruner,
        )
        plan = make_plan(settings, dict(axes), study_options)
        click.echo(plan.describe())
        outcome = start_tuning(plan, output, jobs=jobs)
    _print_outcome(outcome, output)


def _print_outcome(outcome: Outcome, output: Path) -> None:
    from .report import render_study
    from .results import render, to_toml

    click.echo("\n" + render(outcome))
    if outcome.best is None:
        click.echo(f"The logs of the trials are in {output / 'trials'}.")
        return
    write_file(output / "report.html", render_study(outcome))
    write_file(output / "best.toml", to_toml(outcome))
    click.echo(f"\nWrote {output / 'best.toml'} and {output / 'report.html'}.")
    config = output / "best.toml"
    click.echo(f"Next: {command('train', '-o', f'runs/{output.resolve().name}', '--config', config)}")
