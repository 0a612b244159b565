"""Commands of the README and of the pages that go on from it, run in order with the real backbone."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from index.gallery import Gallery
from retrieval.cli.main import main

from .conftest import ROOT
from .serving.conftest import start, stop
from .world import draw, encode, write_folder

ADDRESS = "http://127.0.0.1:7860"
MORE = {  # so that training takes seconds, and nothing is served
    "train": ["--backbone", "efficientnet-lite0", "--epochs", "1", "--size", "96", "--items-per-batch", "4"],
    "quickstart": ["--no-serve"],
    "export": ["--even-if-worse"],  # than the pretrained model, as one of 16 dimensions is
}
TINY = {"0.05": "0.3", "sku-1234": "item-03"}  # eight calibration items cannot tell 5 %
WALK = ["quickstart", "promise", "data", "train", "evaluate", "explain", "export", "index", "search", "serve", "doctor"]


def written(page: str, heading: str = "") -> str:
    """Return a page of the documentation, or its section below a heading."""
    text = (ROOT / page).read_text()
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0] if heading else text


def python(text: str) -> list[str]:
    """Return the blocks of Python in a text."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.end_to_end
def test_the_walk_through_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "PHOTOS", items=range(40), photos=range(6))
    for number, name in ((6, "query.jpg"), (7, "other.jpg")):
        draw(3, number).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    centres, generator = np.random.default_rng(0).normal(size=(2, 40, 32)), np.random.default_rng(1)
    vectors = np.repeat(centres[0], 3, axis=0) + generator.normal(size=(120, 32)) / 4
    np.savez("photos.npz", vectors=vectors, items=np.repeat(np.arange(40), 3))
    readme, searching = written("README.md"), written("docs/searching.md", "In the same process")
    walk = readme + written("docs/training.md", "From photos to a search") + written("docs/updating.md", "Commands")
    lines = [shlex.split(line, comments=True) for line in walk.splitlines() if line.startswith("retrieval ")]
    assert [line[1] for line in lines] == [*WALK, *["gallery"] * 6]
    for line in lines:
        if line[1] == "serve":
            continue  # tests/serving starts it
        words = [TINY.get(word, word) for word in line] + MORE.get(line[1], [])
        monkeypatch.setattr(sys, "argv", words)
        main()
    (beside,), (inside,) = python(readme), python(searching)
    for vector, decision in ((centres[0, 3], "match"), (centres[1, 3], "no_match")):
        cosines = vectors @ vector / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vector)
        payloads = [SimpleNamespace(payload={"sku": row // 3}, score=cosines[row]) for row in np.argsort(-cosines)[:20]]
        names: dict[str, object] = {"vector": vector, "hits": payloads}
        exec(beside, names)  # noqa: S102 - the README's own lines
        assert getattr(names["answer"], "decision", None) == decision
    names = {}
    exec(inside, names)  # noqa: S102
    assert getattr(names["result"], "decision", None) in ("match", "no_match")


@pytest.mark.end_to_end
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on the PATH")
def test_the_calls_of_readme_cookbook_and_manage_are_answered(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, tmp_path / name)
    with Gallery.open(tmp_path / "gallery") as gallery:
        gallery.declare({"price": "number", "brand": "text"})
    text = "".join(written(page) for page in ("README.md", "docs/cookbook.md", "docs/manage.md"))
    for name in set(re.findall(r"[@ ](\w+\.jpg)", text)) | {"query.jpg"}:
        (tmp_path / name).write_bytes(encode(draw(70, 1) if name == "2.jpg" else draw(3, 5)))
    monkeypatch.chdir(tmp_path)
    running = start(tmp_path, tmp_path, "--no-page")
    try:
        lines = [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("curl ")]
        lines = [line for line in lines if "?text=" not in "".join(line)]  # this bundle has no text tower
        assert len(lines) == 13
        told: dict[str, list[Any]] = {}
        for line in lines:
            words = [
                word.replace(ADDRESS, running.address)
                .replace("…", told["search"][0]["request_id"] if told else "")
                .replace("sku-2", "item-02")
                for word in line
            ]
            done = subprocess.run([*words, "-sS", "--fail-with-body"], capture_output=True, check=False)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            (path,) = [re.split(r"[?]", word.split("/v1/")[1])[0] for word in line if "/v1/" in word]
            told.setdefault(path, []).append(json.loads(done.stdout))
        assert [answer["matches"][0]["item_id"] for answer in told["search"][:2]] == ["item-03"] * 2
        assert [answer["decision"] for answer in told["search/batch"][0]["answers"]] == ["match", "no_match"]
        assert told["items/mug"][0]["photos"][0]["photo_id"] == "mug-1.jpg"
        assert told["items/mug"][1]["photos"] == 1
        names: dict[str, Any] = {}
        for block in python(text):
            if "vector" not in block:  # the README's, beside a database
                exec(block.replace(ADDRESS, running.address), names)  # noqa: S102 - the cookbook's own lines
        assert capsys.readouterr().out == "This is item-03\n"
    finally:
        stop(running)
