"""Command `retrieval recalibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.shell import command

from .feedback_options import feedback_options, show_tally
from .signing_options import read_key, say_signed, sign_option
from .target_options import target_options

if TYPE_CHECKING:
    from retrieval.threshold.targets import Target

Folder = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=Folder)
@click.option("-o", "--output", type=Folder, help="Directory of the new bundle. Required without --dry-run.")
@target_options
@click.option(
    "--gallery-size", type=int, help="Number of gallery items that the target must hold for.  [default: the bundle's]"
)
@click.option("--allow-estimate", is_flag=True, help="Accept a threshold whose FPIR is estimated, not certified.")
@feedback_options
@click.option(
    "--accept-biased", is_flag=True, help="Let the feedback also loosen the threshold; its FPIR is then estimated."
)
@click.option("--dry-run", is_flag=True, help="Print what would change without writing anything.")
@sign_option
def recalibrate(
    bundle: Path,
    output: Path | None,
    target: Target | None,
    gallery_size: int | None,
    allow_estimate: bool,
    feedback: Path | None,
    trust_key: Sequence[str],
    accept_biased: bool,
    dry_run: bool,
    sign: Path | None,
) -> None:
    """Change a bundle's threshold, for another target or a larger gallery. The model stays the same.

    Uses the calibration searches stored in the bundle. Writes a new bundle without the old one's signature; galleries
    stay valid. Feedback given with one API key moves the threshold only as far as the verdicts of other keys support,
    unless --trust-key names that key.

    \b
    Example:
      retrieval recalibrate bundles/shop -o bundles/shop-large --gallery-size 5000 --allow-estimate
      retrieval recalibrate bundles/shop --feedback galleries/feedback.jsonl --dry-run
    """
    from retrieval.bundle.bundle import Bundle
    from retrieval.threshold.feedback import read_feedback
    from retrieval.threshold.recalibrate import propose
    from retrieval.threshold.recalibrate import recalibrate as write
    from retrieval.threshold.verdicts import weigh

    if output is None and not dry_run:
        raise click.UsageError("Missing option '-o' / '--output'.")
    key = read_key(sign)
    opened = Bundle.open(bundle)
    verdicts = read_feedback(feedback) if feedback else ()
    if feedback:
        tally = weigh(opened, verdicts, trusted=trust_key)
        show_tally(len(verdicts), tally)
    settings: dict[str, Any] = {
        "target": target,
        "gallery_size": gallery_size,
        "allow_estimate": allow_estimate,
        "feedback": verdicts,
        "trusted": trust_key,
        "accept_biased": accept_biased,
    }
    if output is None or dry_run:
        point = propose(opened, **settings).point
    else:
        written = write(opened, output, **settings)
        say_signed(written, key)
        point = written.operating_point
    if feedback:
        change = point.threshold - opened.threshold
        done = "tightens" if change < 0 else "loosens" if change > 0 else "does not move"
        click.echo(f"The feedback {done} the threshold, from {opened.threshold:.4f} to {point.threshold:.4f}.")
    click.echo(f"{'Nothing was written' if dry_run else f'Wrote {output}'}: {point.describe()}")
    for caveat in point.caveats():
        click.echo(f"Note: {caveat}.")
    if not dry_run:
        click.echo(f"Next: {command('serve', output, 'GALLERY')}")
