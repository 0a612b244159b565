"""The README's picture: it is there, and shows answers of a demo: a match, no match, and a question if there is one."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from retrieval.catalogue.read import Photo
from retrieval.search.result import Match, SearchResult
from tools import picture

from .conftest import ROOT


def test_the_readme_shows_the_picture() -> None:
    assert "(docs/answers.jpg)" in (ROOT / "README.md").read_text()
    with Image.open(ROOT / "docs" / "answers.jpg") as image:
        assert image.format == "JPEG"
        assert image.width in (2 * picture.WIDTH, 3 * picture.WIDTH)


class Answering:
    """A retriever whose answer to a photo is named by its file."""

    def __init__(self, results: dict[str, SearchResult]) -> None:
        self.results = results

    def search(self, path: Path) -> SearchResult:
        return self.results[path.name]


def test_only_right_answers_are_shown(tmp_path: Path) -> None:
    def result(decision: str, *, matches: tuple[Match, ...] = (), review: tuple[Match, ...] = ()) -> SearchResult:
        nearest = (*matches, *review, None)[0]
        return SearchResult(matches, decision, "beyond_threshold", 0.5, 0.4, nearest, "b", 1, review=review)

    mug, cap = (Match(item, f"{item}/1.jpg", 0.1, {"name": item.title()}) for item in ("mug", "cap"))
    rows = [
        ("known", "mug", result("match", matches=(cap,))),  # the wrong item
        ("known", "mug", result("match", matches=(mug,))),
        ("unknown", "x", result("match", matches=(mug,))),
        ("unknown", "y", result("perhaps", review=(mug,))),
        ("known", "cap", result("perhaps", review=(cap,))),
        ("known", "cap", result("no_match")),
        ("unknown", "z", result("no_match")),
    ]
    photos = [Photo(str(n), tmp_path / str(n), item, metadata={"kind": kind}) for n, (kind, item, _) in enumerate(rows)]
    retriever = Answering({str(n): row[2] for n, row in enumerate(rows)})
    found = [(decision, photo.photo_id, named) for decision, photo, named in picture.answers(retriever, photos)]
    assert found == [("match", "1", mug), ("perhaps", "4", cap), ("no_match", "6", None)]
