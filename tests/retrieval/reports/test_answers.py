"""The sheet of `retrieval search --report`: photos beside the items that answer, and hostile names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from retrieval.cli.main import group
from retrieval.reports import answers

from ...world import draw

HOSTILE = "<b>\"'&4.png"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of photos: of five known items, of an unknown one, and one that is no photo."""
    folder = tmp_path_factory.mktemp("asked")
    for item in range(4):
        draw(item, 7).save(folder / f"{item}.png")
    draw(4, 7).save(folder / HOSTILE)
    draw(77, 0).save(folder / "stranger.png")
    (folder / "bad.jpg").write_bytes(b"no image")
    return folder


def search(world: Path, *words: object) -> Result:
    return CliRunner().invoke(group, ["search", str(world / "bundle"), str(world / "gallery"), *map(str, words)])


def sections(page: str) -> dict[str, list[str]]:
    """Return the cards of each section."""
    parts = re.split("<h2>(.*?)</h2>", page)[1:]
    cards = [re.findall('<div class="card">(.*?)</div>\n', part, re.DOTALL) for part in parts[1::2]]
    return dict(zip(parts[::2], cards, strict=True))


def test_each_photo_stands_beside_the_photo_of_its_item(world: Path, folder: Path, tmp_path: Path) -> None:
    done = search(world, folder, "--report", tmp_path / "answers.html")
    assert done.exit_code == 0, done.output
    assert f"Wrote {tmp_path / 'answers.html'}: open it in a browser." in done.output
    assert '"photo_id"' not in done.stdout  # the sheet takes the place of JSON lines
    page = (tmp_path / "answers.html").read_text()
    found = sections(page)
    assert {title: len(cards) for title, cards in found.items()} == {"Found": 5, "No match": 1}
    assert "Answers to 6 photos" in page
    for card in (*found["Found"], *found["No match"]):
        assert card.count('src="data:image/jpeg;base64,') == 2
    assert 'alt="stranger.png"' in found["No match"][0]
    assert "<b>&#34;" not in page
    assert "&lt;b&gt;&#34;&#39;&amp;4.png" in page
    assert "bad.jpg" not in page  # it was refused, which the output says
    assert "bad.jpg" in done.stderr


def test_answers_are_also_written_as_lines_and_the_sheet_has_the_first(
    world: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST", 2)
    page, lines = tmp_path / "answers.html", tmp_path / "answers.jsonl"
    done = search(world, folder, "--report", page, "-o", lines)
    assert done.exit_code == 0, done.output
    assert len(lines.read_text().splitlines()) == 7
    assert "These are the first 2 of 6 answers." in page.read_text()
    assert sum(map(len, sections(page.read_text()).values())) == 2


def test_a_sheet_of_words_or_parts_is_refused(world: Path, folder: Path, tmp_path: Path) -> None:
    for words in (["--text", "kettle"], [folder / "0.png", "--boxes", "windows"]):
        done = search(world, *words, "--report", tmp_path / "answers.html")
        assert done.exit_code != 0
        assert not (tmp_path / "answers.html").exists()
