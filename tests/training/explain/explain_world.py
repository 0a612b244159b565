"""Runs for the tests of `retrieval explain`: the tiny run, its catalogue changed under it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from training.loop.run import Run

Row = dict[str, str]
VOID = frozenset(("meta", "img", "input", "br", "path", "circle", "rect", "polyline"))


def changed_run(
    run: Run,
    folder: Path,
    *,
    keep: Callable[[Row], bool] = lambda _: True,
    rename: Callable[[str], str] = lambda item: item,
    broken: Callable[[Row], bool] = lambda _: False,
) -> Run:
    """Return a copy of a run whose catalogue holds some rows, other item_ids, and files that are no images."""
    catalogue = Path(run.settings.catalogue)
    shutil.copytree(run.path, folder / "run")
    with catalogue.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if keep(row)]
    for row in rows:
        row["path"] = str(catalogue.parent / row["path"])
        if broken(row):
            bad = folder / Path(row["path"]).name
            bad.write_bytes(b"no image")
            row["path"] = str(bad)
        row["item_id"] = rename(row["item_id"])
    with (folder / "photos.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for name, change in (
        ("settings", lambda values: values | {"catalogue": str(folder / "photos.csv")}),
        ("splits", lambda values: values | {"parts": {k: [rename(i) for i in v] for k, v in values["parts"].items()}}),
    ):
        path = folder / "run" / f"{name}.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    (folder / "run" / "evaluation.json").unlink(missing_ok=True)
    return Run.open(folder / "run")


class Page(HTMLParser):
    """A parsed page: its elements, its text by heading, and its JSON."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.size = len(text.encode())
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.data: dict = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            if self.elements[-1][1].get("type") == "application/json":
                self.data = json.loads(data)
        elif self.open[-1:] != ["style"]:
            self.text.append(data)

    def all(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        """Return the attributes of all elements of a tag, of a class where one is named."""
        return [
            attrs
            for name, attrs in self.elements
            if name == tag and (not kind or kind in attrs.get("class", "").split())
        ]
