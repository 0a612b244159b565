"""The command `retrieval tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.shell import command
from retrieval.catalogue.byte_ranges import write_file
from training.cli import NestedOptions, gather_settings, settings_options

from .search_space import parse_searches, read_searches

if TYPE_CHECKING:
    from .results import Outcome


@click.command(cls=NestedOptions)
@click.argument("catalogue", required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The study's directory.")
@click.option("--search", multiple=True, metavar="NAME=SPEC", help="What to vary: LOW..HIGH[:log][:step=N], or A,B,…")
@click.option("--space", type=click.Path(path_type=Path), help="TOML file with more of them.")
@click.option("--trials", type=int, help="How many settings to try.  [default: 50]")
@click.option("--jobs", type=int, default=1, show_default=True, help="Trials at a time, a process each.")
@click.option("--folds", type=int, default=4, show_default=True, help="Class-disjoint parts of the training items.")
@click.option(
    "--objective",
    default="fnir",
    show_default=True,
    help="fnir (at the target FPIR), opis, search_opis, r@1 or map@r; two with a comma between them for both.",
)
@click.option("--share", type=float, help="Share of the training items.  [default: all; 0.1 for TCM's margins]")
@click.option("--pruner", default="median", show_default=True, help="median, hyperband or none.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings; options win over it.")
@click.option("--resume", is_flag=True, help="Continue a study with its own settings, to --trials where given.")
@settings_options
@click.pass_context
def tune(
    context: click.Context,
    /,
    catalogue: str | None,
    output: Path,
    search: Sequence[str],
    space: Path | None,
    trials: int | None,
    jobs: int,
    config: Path | None,
    resume: bool,
    **options: Any,
) -> None:
    """Search the settings that do best on training items which the loss did not see.

    Each trial trains on --folds class-disjoint parts of the training items, no group in two, and is judged on the
    part left out; calibration and test items are never read. The settings as given are the first trial, the others
    are drawn around what did well (TPE), and those that do worse than most are stopped early.

    --search takes any setting (learning_rate=1e-5..1e-3:log, loss=smooth_ap,proxy_anchor), any argument of the loss
    or of the regularizer that is tried (loss.alpha=16..64), or of one of several (loss.proxy_anchor.alpha=16..64).
    With --regularizer tcm and no --search its two margins are searched on a tenth of the training items, but not
    on fewer than ten a fold.

    \b
    Example:
      retrieval tune photos.csv --backbone google/mobilenet_v1_0.75_224 -o studies/shop \\
          --search learning_rate=1e-5..1e-3:log --search loss=smooth_ap,proxy_anchor --trials 30
    """
    from .plan import TuneOptions, make_plan
    from .tune import resume_tuning, start_tuning

    how = {name: options.pop(name) for name in ("folds", "objective", "share", "pruner")}
    if resume:
        outcome = resume_tuning(output, trials=trials, jobs=jobs)
    else:
        axes = [*parse_searches(search).items(), *(read_searches(space).items() if space else ())]
        settings = gather_settings(context, catalogue=catalogue, config=config, options=options)
        objectives = tuple(name.strip() for name in how.pop("objective").split(","))
        wanted = TuneOptions(trials=50 if trials is None else trials, objectives=objectives, **how)
        plan = make_plan(settings, dict(axes), wanted)
        click.echo(plan.describe())
        outcome = start_tuning(plan, output, jobs=jobs)
    _tell(outcome, output)


def _tell(outcome: Outcome, output: Path) -> None:
    from .report import render_study
    from .results import render, to_toml

    click.echo("\n" + render(outcome))
    if outcome.best is None:
        click.echo(f"The trials' logs are in {output / 'trials'}.")
        return
    write_file(output / "report.html", render_study(outcome))
    write_file(output / "best.toml", to_toml(outcome))
    click.echo(f"\nWrote {output / 'best.toml'} and {output / 'report.html'}.")
    config = output / "best.toml"
    click.echo(f"Next: {command('train', '-o', f'runs/{output.resolve().name}', '--config', config)}")
