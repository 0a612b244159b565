"""Settings of one server, with the defaults and help texts of the options of `retrieval serve`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InvalidParameter
from retrieval.images import MAX_BYTES, MAX_JPEG, MAX_PIXELS
from retrieval.process import cores
from retrieval.settings import setting

GROUPS = ADDRESS, ACCESS, CAPACITY, THRESHOLD, PAGE = "Address", "Access", "Capacity", "Threshold", "Page and feedback"

LONGEST_DEADLINE_S = 3600
MOST_WORKERS = 256
ROOT_PATH = re.compile(r"(/(?!v1(/|$)|page(/|$)|docs|manage|metrics|openapi)[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server. The threshold is not among them: it belongs to the gallery or the bundle."""

    workers: int = setting(1, CAPACITY, "Number of worker processes. One is enough for a few cores.")
    threads: int = setting(
        cores, CAPACITY, "Number of concurrent searches per worker.", shown="one per core, divided by the workers"
    )
    queue: int = setting(
        32, CAPACITY, "Number of searches per worker that may wait for a thread; further ones get status 503."
    )
    deadline_s: float = setting(
        10.0,
        CAPACITY,
        "Time limit of a search in seconds, including the wait; after it, the status is 503.",
        option="deadline",
    )
    photo_mib: int = setting(
        30, CAPACITY, f"Largest photo in MiB, at most {MAX_BYTES // 2**20}.", option="max-photo-mib"
    )
    photo_megapixels: int = setting(
        100,
        CAPACITY,
        f"Largest JPEG in megapixels, at most {MAX_JPEG // 10**6}; photos in other formats have at most "
        f"{MAX_PIXELS // 10**6}.",
        option="max-photo-megapixels",
    )
    keys: Path | None = setting(
        None, ACCESS, "File of API keys, made by `retrieval keys`; required beyond this machine.", shown="none"
    )
    root_path: str = setting(
        "",
        ADDRESS,
        "Path under which a proxy serves the server, such as /find. The proxy may pass it on or leave it out.",
        shown="none",
    )
    fixed_threshold: bool = setting(
        False,
        THRESHOLD,
        "Keep the gallery's threshold whatever is stored. By default, one that breaks its promise is tightened.",
    )
    review: float | None = setting(
        None,
        PAGE,
        "Largest p-value of the items beyond the threshold to list for review; 0 lists only an item to confirm.",
        shown="where a question is worth it",
    )
    feedback: Path | None = setting(None, PAGE, "File that feedback is appended to.", shown="GALLERY.feedback.jsonl")
    feedback_photos: Path | None = setting(
        None,
        PAGE,
        "Folder to keep the photos of judged answers in, as they were sent, so that they can be exported.",
        shown="none: no photo is kept",
    )
    show: str = setting(
        "",
        PAGE,
        "Columns that the page shows under an item's name, such as price=EUR,brand: with a unit after =, if any.",
        shown="none",
    )
    allow_origin: tuple[str, ...] = ()  # origins whose pages may call the API, such as https://shop.example
    # set in Python only
    local: bool = False  # accept loopback host names only; set where there are no keys

    @property
    def shown_columns(self) -> list[tuple[str, str]]:
        """The columns that the page shows, with their units; raises InvalidParameter for what names none."""
        pairs = [word.partition("=") for word in self.show.split(",")] if self.show else []
        columns = [(name.strip(), unit.strip()) for name, _, unit in pairs]
        if not all(name and not name.startswith("_") for name, _ in columns):
            raise InvalidParameter("--show", "name columns of the catalogue", self.show, remedy="Use price=EUR,brand")
        return columns

    @property
    def photo_bytes(self) -> int:
        """The most bytes of a photo."""
        return self.photo_mib * 2**20

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "queue"):
            if getattr(self, name) < 1:
                raise InvalidParameter(name, "be at least 1", getattr(self, name))
        for name, most in (("photo_mib", MAX_BYTES // 2**20), ("photo_megapixels", MAX_JPEG // 10**6)):
            if not 1 <= getattr(self, name) <= most:
                raise InvalidParameter(name, f"lie between 1 and {most}", getattr(self, name))
        if self.workers > MOST_WORKERS:
            raise InvalidParameter("workers", f"be at most {MOST_WORKERS}", self.workers)
        if not 0 < self.deadline_s <= LONGEST_DEADLINE_S:
            raise InvalidParameter("deadline_s", f"be above 0, at most {LONGEST_DEADLINE_S}", self.deadline_s)
        if not ROOT_PATH.fullmatch(self.root_path):
            rule = "begin with a / and not end with one, and be no path of the server's own"
            raise InvalidParameter("--root-path", rule, self.root_path, remedy="Use one such as /find")
        _ = self.shown_columns
        for origin in self.allow_origin:
            if not ORIGIN.fullmatch(origin):
                rule = "be a scheme and a host in lower case, without a path"
                raise InvalidParameter("--allow-origin", rule, origin, remedy="Use one such as https://shop.example")
        if self.review is not None and not 0 <= self.review <= 1:
            raise InvalidParameter("review", "lie between 0 and 1", self.review)
