"""The commands `retrieval serve` and `retrieval keys`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import click

from retrieval.cli.options import BOTH, GALLERY, SEARCH, GroupedCommand, settings_groups, settings_options, what_is
from retrieval.errors import DataError, InvalidParameter, command, counted
from retrieval.images.formats import SENT_SUFFIXES
from retrieval.process import check_port, is_loopback
from serving.access.keys import SCOPES, KeyRing, add_key, read_keys, remove_keys

from . import launch
from .settings import ACCESS, ADDRESS, GROUPS, PAGE, ServeSettings

EXAMPLES = 6  # maximum on the page
Folder = click.Path(path_type=Path)


class ServeCommand(GroupedCommand):
    """`retrieval serve`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = settings_groups(
        ServeSettings,
        GROUPS,
        {ADDRESS: ["host", "port", "log"], ACCESS: ["insecure", "allow_origin"], PAGE: ["page", "examples"]},
    )


@click.command(cls=ServeCommand)
@click.argument("bundle", type=SEARCH)
@click.argument("gallery", type=GALLERY, required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="Port to listen on (0 = a free one)."
)
@click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    help="Lines for people, one per search, or lines of JSON for programs.  [default: text in a terminal, else json]",
)
@settings_options(ServeSettings)
@click.option("--insecure", is_flag=True, help="Allow an address beyond this machine without API keys.")
@click.option(
    "--allow-origin",
    multiple=True,
    help="Origin, such as https://shop.example, whose pages may call the API from browsers. Can be repeated.",
)
@click.option("--page/--no-page", default=None, help="Serve the search page at /.  [default: on this machine only]")
@click.option(
    "--examples",
    type=Folder,
    multiple=True,
    help="Photo, or folder of photos, to offer on the page under its file name. Can be repeated.",
)
def serve(
    bundle: Path,
    gallery: Path | str | None,
    *,
    host: str,
    port: int,
    log: str | None,
    insecure: bool,
    allow_origin: Sequence[str],
    page: bool | None,
    examples: Sequence[Path],
    **options: Any,
) -> None:
    """Serve searches at POST /v1/search and a search page at /.

    BUNDLE alone may be the folder that `quickstart` or `demo` wrote, with both.

    The threshold is that of the gallery, or of the bundle if none was set in the gallery, and cannot be changed here.

    \b
    Example:
      retrieval serve bundles/shop galleries/shop
      retrieval serve quickstart
      curl --data-binary @query.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:7860/v1/search
    """
    if what_is(bundle) == BOTH:
        if gallery is not None:
            raise DataError(f"{bundle} has a gallery", remedy=f"Leave out {gallery}, or name {bundle / 'bundle'}")
        bundle, gallery = bundle / "bundle", bundle / "gallery"
    if gallery is None:
        raise DataError("no gallery is named", remedy=command("serve", bundle, "GALLERY"))
    given = {name: value for name, value in options.items() if value is not None}
    settings = ServeSettings(**given, allow_origin=tuple(allow_origin))
    check_exposure(host, settings.keys, insecure=insecure)
    check_port(port, host)
    settings = replace(settings, local=is_loopback(host) and settings.keys is None and not insecure)
    if "threads" not in given:
        settings = replace(settings, threads=max(1, settings.threads // settings.workers))
    if settings.feedback is None and isinstance(gallery, Path) and os.access(gallery.parent, os.W_OK):
        settings = replace(settings, feedback=gallery.with_name(f"{gallery.name}.feedback.jsonl"))
    page = is_loopback(host) if page is None else page
    json_log = log == "json" if log else not sys.stderr.isatty()
    plan = launch.ServePlan(bundle, gallery, settings, page, tuple(example_files(examples)), json_log)
    launch.serve(plan, host, port)


def check_exposure(host: str, keys: Path | None, *, insecure: bool) -> None:
    """Raise InvalidParameter for a public address without keys, or a key file without any."""
    if keys is not None and not len(KeyRing(keys)):
        raise InvalidParameter("--keys", "contain a key", str(keys), remedy=command("keys", "add", keys, "NAME"))
    if keys is None and not insecure and not is_loopback(host):
        raise InvalidParameter(
            "--host",
            "be an address of this machine if there are no API keys",
            host,
            remedy=f"Make a key with `{command('keys', 'add', 'keys.json', 'NAME')}` and pass --keys keys.json, or "
            "pass --insecure",
        )


def example_files(places: Sequence[Path]) -> list[Path]:
    """Return the photos of files and folders; beyond EXAMPLES, evenly spaced ones."""
    photos: list[Path] = []
    for place in places:
        if not place.exists():
            raise InvalidParameter("--examples", "exist", str(place))
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        photos += [file for file in files if file.suffix.lower() in SENT_SUFFIXES]
    if len(photos) > EXAMPLES:
        photos = [photos[round(i * (len(photos) - 1) / (EXAMPLES - 1))] for i in range(EXAMPLES)]
    return photos


@click.group()
def keys() -> None:
    """Manage API keys. A running server picks up changes to its key file.

    \b
    Example:
      retrieval keys add keys.json shop --scope search
      retrieval serve bundles/shop galleries/shop --host 0.0.0.0 --keys keys.json
    """


@keys.command()
@click.argument("file", type=Folder)
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    default="search",
    show_default=True,
    help="search allows searching and reading; admin also allows changes of the gallery and reloads.",
)
def add(file: Path, name: str, scope: str) -> None:
    """Add a key and print it. It is shown only once; older keys of the same name stay valid until removed.

    \b
    Example:
      retrieval keys add keys.json shop --scope search
    """
    click.echo(add_key(file, name, scope))


@keys.command("list")
@click.argument("file", type=Folder)
def show(file: Path) -> None:
    """List the names, scopes and creation dates of keys. The file holds no secrets, only hashes.

    \b
    Example:
      retrieval keys list keys.json
    """
    for key in read_keys(file):
        click.echo(f"{key.name}  {key.scope}  {key.created}")


@keys.command()
@click.argument("file", type=Folder)
@click.argument("name")
@click.option("--keep-newest", is_flag=True, help="Keep the newest key of this name, to end a rotation.")
def remove(file: Path, name: str, keep_newest: bool) -> None:
    """Remove the keys of a name.

    \b
    Example:
      retrieval keys remove keys.json shop --keep-newest
    """
    names = sorted({key.name for key in read_keys(file)})
    if name not in names:
        raise InvalidParameter("NAME", f"be one of {', '.join(names)}" if names else "be in the file", name)
    click.echo(f"{counted(remove_keys(file, name, keep_newest=keep_newest), 'key')} removed.")
