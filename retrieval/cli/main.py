"""Command `retrieval`: the table of subcommands, loaded on first use."""

from __future__ import annotations

import os
import sqlite3
import sys

import click

from retrieval.errors import MissingDependency, RetrievalError
from retrieval.extras import extra_of
from retrieval.files import explain

from .lazy import Entry, LazyGroup

PACKAGES = ("index", "research", "retrieval", "serving", "training")
COMMANDS = {
    "demo": Entry("training.demo", "demo", "Draw a catalogue, train, export and index it."),
    "data": Entry("retrieval.cli.data", "data", "Check a catalogue, or make one of a benchmark set."),
    "losses": Entry("training.cli", "losses", "List the losses: papers, cost, batches they need, defaults."),
    "train": Entry("training.cli", "train", "Train an embedder on labelled photos."),
    "tune": Entry("training.tune.cli", "tune", "Search the settings that do best on items not trained on."),
    "evaluate": Entry("training.cli", "evaluate", "Measure a run on items never seen in training."),
    "explain": Entry("training.explain.cli", "explain", "Show what a run gets wrong, as one page with photos."),
    "export": Entry("training.cli", "export", "Write a run as a bundle: model, threshold, evidence."),
    "research": Entry("research.papers.cli", "research", "Run the papers' tables and figures (checkout only)."),
    "recalibrate": Entry("retrieval.cli.recalibrate", "recalibrate", "Move a bundle's threshold without a new model."),
    "calibrate": Entry("retrieval.cli.calibrate", "calibrate", "Set the threshold in the gallery that is searched."),
    "index": Entry("retrieval.cli.commands", "index", "Put a catalogue's photos into a gallery."),
    "gallery": Entry("retrieval.cli.gallery", "gallery", "Look at a gallery, change it, take it elsewhere."),
    "search": Entry("retrieval.cli.commands", "search", "Ask which catalogue item a photo shows, if any."),
    "serve": Entry("serving.cli", "serve", "Answer searches over HTTP and in a browser."),
    "keys": Entry("serving.cli", "keys", "Manage the API keys of `serve`, and keys that sign."),
    "audit": Entry("retrieval.cli.commands", "audit", "Find items that collide and photos that miss their item."),
    "doctor": Entry("retrieval.cli.commands", "doctor", "Say what is wrong with an installation, bundle or gallery."),
    "synthetic": Entry("training.data.cli", "synthetic", "Draw a procedural catalogue."),
}


@click.group(cls=LazyGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show where an error was raised.")
@click.version_option(package_name="retrieval")
@click.pass_context
def group(context: click.Context, debug: bool) -> None:
    """Image search that can tell when an item is not in the catalogue.

    \b
    Example, from labelled photos to an answer:
      retrieval train photos.csv --backbone google/mobilenet_v1_0.75_224 -o runs/shop
      retrieval export runs/shop -o bundles/shop --allow-estimate
      retrieval index bundles/shop photos.csv -o galleries/shop
      retrieval search bundles/shop galleries/shop query.jpg
    """
    context.obj = debug


def main() -> None:
    """Run the command line. Errors are printed as one line on stderr, with exit status 1."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep instead of spinning
    try:
        group.main(standalone_mode=False)
        sys.stdout.flush()  # raises if the output disk is full
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (RetrievalError, OSError, sqlite3.OperationalError, ModuleNotFoundError) as error:
        if "--debug" in sys.argv or (isinstance(error, ModuleNotFoundError) and _is_ours(error)):
            raise
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)


def _one_line(error: Exception) -> str:
    """Return the error and its remedy as one line."""
    if isinstance(error, RetrievalError):
        told = str(error)
    elif isinstance(error, ModuleNotFoundError):
        told = _missing(error.name or "")
    elif isinstance(error, OSError):
        told = explain(error)
    else:
        told = f"a database cannot be used: {error}. Check disk space and permissions, then try again"
    return " ".join(line.strip() for line in told.splitlines())  # keep spaces within lines: they may belong to a path


def _missing(name: str) -> str:
    """Return the message for a module that cannot be imported."""
    if name == "research":
        return "`retrieval research` needs a checkout of the repository: the installed package has no research/"
    module = name.partition(".")[0]
    return str(MissingDependency.of_extra(module, extra_of(module)))


def _is_ours(error: ModuleNotFoundError) -> bool:
    """Return whether the missing module belongs to this project, which is a bug and not a missing extra."""
    name = error.name or ""
    return name != "research" and name.partition(".")[0] in ("", *PACKAGES)
