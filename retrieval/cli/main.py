"""Command `retrieval`: the table of subcommands, which are imported on first use."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from traceback import walk_tb
from typing import Any, NamedTuple

import click

from retrieval.errors import MissingDependency, RetrievalError, extra_of
from retrieval.files import explain
from retrieval.shadowed import ShadowedPackage, check_package


class Entry(NamedTuple):
    """The module and attribute of a command, and its summary in the group's help."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group that imports only the command in use: help is fast, and serving does not import torch."""

    def __init__(self, *arguments: Any, sections: Mapping[str, Mapping[str, Entry]], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._sections = sections
        self._entries = {name: entry for entries in sections.values() for name, entry in entries.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands, in the order of the sections."""
        return list(self._entries)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; raise UsageError, with the nearest names, if it does not exist."""
        if args[0] not in self._entries and not args[0].startswith("-"):
            near = get_close_matches(args[0], self._entries)
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command, or None if it does not exist; raise ShadowedPackage if it is hidden."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        check_package(entry.module.partition(".")[0])
        command: click.Command = getattr(import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands by section, without importing them."""
        for title, entries in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])


PACKAGES = ("index", "research", "retrieval", "serving", "training")
SECTIONS = {
    "Start here": {
        "quickstart": Entry(
            "retrieval.cli.quickstart", "quickstart", "Build a search from a folder of photos and serve it."
        ),
        "demo": Entry("training.demo", "demo", "Draw a catalogue, then train, export and index it."),
    },
    "Make a bundle": {
        "train": Entry("training.cli", "train", "Train a model on labelled photos."),
        "losses": Entry("training.cli", "losses", "List the losses that `train` accepts."),
        "tune": Entry("training.tune.cli", "tune", "Find the training settings that do best on held-out items."),
        "export": Entry("training.export.cli", "export", "Write a run or a pretrained model as a bundle."),
    },
    "Fill a gallery": {
        "index": Entry("retrieval.cli.index", "index", "Add the photos of a catalogue to a gallery."),
        "gallery": Entry("retrieval.cli.gallery", "gallery", "Inspect, change, export and import galleries."),
        "calibrate": Entry("retrieval.cli.calibrate", "calibrate", "Set the threshold of a gallery."),
    },
    "Your own vectors": {
        "promise": Entry("retrieval.cli.promise", "promise", "Measure which score of your own vectors to use."),
    },
    "Search": {
        "search": Entry("retrieval.cli.search", "search", "Find the catalogue item that a photo shows, if any."),
        "serve": Entry("serving.cli", "serve", "Answer searches over HTTP and on a web page."),
        "feedback": Entry("retrieval.cli.feedback", "feedback", "Write reviewed photos as a labelled table."),
    },
    "Evaluate": {
        "evaluate": Entry("training.cli", "evaluate", "Measure a run on items that it was not trained on."),
        "explain": Entry("training.cli", "explain", "Show the worst errors of a run, with photos."),
        "audit": Entry("retrieval.cli.inspect", "audit", "Find the items and photos of a gallery that cause errors."),
        "doctor": Entry("retrieval.cli.inspect", "doctor", "Check the installation, a bundle and a gallery."),
    },
    "More": {
        "data": Entry("retrieval.cli.data", "data", "Check a catalogue, or create one."),
        "keys": Entry("serving.cli", "keys", "Manage the API keys of a server."),
        "research": Entry(
            "research.papers.cli", "research", "Reproduce the papers' tables and figures (checkout only)."
        ),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


@click.group(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--allow",
    multiple=True,
    metavar="PREFIX",
    help="Addresses that a table may name, such as s3://bucket/photos/. Can be repeated.",
)
@click.version_option(package_name="retrieval")
def group(debug: bool, allow: Sequence[str]) -> None:  # noqa: ARG001 (`main` looks for --debug)
    """Image search that can tell when an item is not in the catalogue.

    \b
    Without training:
      retrieval quickstart photos/

    \b
    With training:
      retrieval train photos.csv --backbone efficientnet-lite0 -o runs/shop
      retrieval export runs/shop -o bundles/shop
      retrieval index bundles/shop photos.csv -o galleries/shop
      retrieval search bundles/shop galleries/shop query.jpg
    """
    if allow:
        os.environ["RETRIEVAL_ALLOW"] = " ".join(allow)


def main() -> None:
    """Run the command line. Errors are printed as one line on stderr, with exit status 1."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep instead of spinning
    try:
        group.main(standalone_mode=False)
        sys.stdout.flush()  # raises if the output disk is full
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (
        RetrievalError,
        OSError,
        sqlite3.OperationalError,
        ImportError,
        ShadowedPackage,
        UnicodeEncodeError,
    ) as error:
        if "--debug" in sys.argv or _is_ours(error):
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
    if isinstance(error, RetrievalError | ShadowedPackage):
        message = str(error)
    elif isinstance(error, ImportError):
        message = _missing(error)
    elif isinstance(error, OSError):
        message = explain(error)
    elif isinstance(error, UnicodeEncodeError):
        message = f"{error.object!a} cannot be written in {error.encoding}. Use text in UTF-8"
    else:
        message = f"a database cannot be used: {error}. Check disk space and permissions, then try again"
    return " ".join(
        line.strip() for line in message.splitlines()
    )  # keep spaces within lines: they may belong to a path


def _missing(error: ImportError) -> str:
    """Return the message for a module that cannot be imported."""
    if error.name == "research":
        return "`retrieval research` needs a checkout of the repository: the installed package has no research/"
    package = _package_of(error)
    return str(MissingDependency.of_extra(error, package, extra_of(package)))


def _package_of(error: ImportError) -> str:
    """Return the package that cannot be imported: that which the error names, or else whose code raised it."""
    code = "" if error.__traceback__ is None else [*walk_tb(error.__traceback__)][-1][0].f_globals["__name__"]
    return (error.name or code).partition(".")[0]


def _is_ours(error: Exception) -> bool:
    """Return whether a module of this project cannot be imported, which is a bug and not a missing extra."""
    if not isinstance(error, ImportError) or isinstance(error, RetrievalError | ShadowedPackage):
        return False
    return error.name != "research" and _package_of(error) in PACKAGES
