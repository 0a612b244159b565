"""Commands of the README, run in order on a tiny catalogue with the real backbone."""

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

README = (ROOT / "README.md").read_text()
BESIDE, PYTHON, CLIENT = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
ADDRESS = "http://127.0.0.1:7860"
MORE = {  # so that training takes seconds, and nothing is served
    "train": ["--backbone", "efficientnet-lite0", "--epochs", "1", "--size", "96", "--items-per-batch", "4"],
    "quickstart": ["--no-serve"],
    "export": ["--even-if-worse"],  # than the pretrained model, as one of 16 dimensions is
}
TINY = {"0.05": "0.3", "sku-1234": "item-03"}  # eight calibration items cannot tell 5 %


@pytest.mark.end_to_end
def test_the_walk_through_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "PHOTOS", items=range(40), photos=range(6))
    for number, name in ((6, "query.jpg"), (7, "other.jpg")):
        draw(3, number).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    centres, generator = np.random.default_rng(0).normal(size=(2, 40, 32)), np.random.default_rng(1)
    vectors = np.repeat(centres[0], 3, axis=0) + generator.normal(size=(120, 32)) / 4
    np.savez("photos.npz", vectors=vectors, items=np.repeat(np.arange(40), 3))
    lines = [shlex.split(line, comments=True) for line in README.splitlines() if line.startswith("retrieval ")]
    assert [line[1] for line in lines] == [
        *(
            "quickstart",
            "promise",
            "data",
            "train",
            "evaluate",
            "explain",
            "export",
            "index",
            "search",
            "serve",
            "doctor",
        ),
        *["gallery"] * 6,
    ]
    for line in lines:
        if line[1] == "serve":
            continue  # tests/serving starts it
        words = [TINY.get(word, word) for word in line] + MORE.get(line[1], [])
        monkeypatch.setattr(sys, "argv", words)
        main()
    for vector, decision in ((centres[0, 3], "match"), (centres[1, 3], "no_match")):
        cosines = vectors @ vector / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vector)
        payloads = [SimpleNamespace(payload={"sku": row // 3}, score=cosines[row]) for row in np.argsort(-cosines)[:20]]
        names: dict[str, object] = {"vector": vector, "hits": payloads}
        exec(BESIDE, names)  # noqa: S102 - the README's own lines
        assert getattr(names["answer"], "decision", None) == decision
    names = {}
    exec(PYTHON, names)  # noqa: S102
    assert getattr(names["result"], "decision", None) in ("match", "no_match")


@pytest.mark.end_to_end
def test_what_clients_type_is_answered(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "query.jpg").write_bytes(encode(draw(3, 5)))
    (tmp_path / "other.jpg").write_bytes(encode(draw(70, 1)))
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    lines = [line for line in README.splitlines() if line.startswith("curl ")]
    assert len(lines) == 7
    running = start(tmp_path, tmp_path, "--no-page")
    try:
        told = []
        if shutil.which("curl"):
            for line in lines:
                command = shlex.split(line.replace(ADDRESS, running.address))
                done = subprocess.run([*command, "-sS", "--fail-with-body"], capture_output=True, check=False)
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                told.append(json.loads(done.stdout))
            assert told[0]["matches"][0]["item_id"] == told[1]["explanation"]["items"][0]["item_id"] == "item-03"
            assert [answer["decision"] for answer in told[2]["answers"]] == ["match", "no_match"]
            assert told[4]["photos"][0]["photo_id"] == "new.jpg"
            assert told[5]["photos"] == 1
        names: dict[str, Any] = {}
        exec(CLIENT.replace(ADDRESS, running.address), names)  # noqa: S102 - the README's own lines
        assert names["answer"].matches[0].item_id == "item-03"
    finally:
        stop(running)


@pytest.mark.end_to_end
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on the PATH")
def test_the_calls_of_the_cookbook_and_of_manage_are_answered(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, tmp_path / name)
    with Gallery.open(tmp_path / "gallery") as gallery:
        gallery.declare({"price": "number"})
    text = "".join((ROOT / "docs" / name).read_text() for name in ("cookbook.md", "manage.md"))
    for name in set(re.findall(r"[@ ](\w+\.jpg)", text)) | {"query.jpg"}:
        (tmp_path / name).write_bytes(encode(draw(3, 5)))
    monkeypatch.chdir(tmp_path)
    running = start(tmp_path, tmp_path, "--no-page")
    try:
        lines = [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("curl ")]
        lines = [line for line in lines if "?text=" not in "".join(line)]  # this bundle has no text tower
        assert len(lines) == 11
        request_id = ""
        for line in lines:
            words = [
                word.replace(ADDRESS, running.address).replace("…", request_id).replace("sku-2", "item-02")
                for word in line
            ]
            done = subprocess.run([*words, "-sS", "--fail-with-body"], capture_output=True, check=False)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            request_id = request_id or json.loads(done.stdout)["request_id"]
        (snippet,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import" in each]
        exec(snippet.replace(ADDRESS, running.address), {})  # noqa: S102 - the cookbook's own lines
        assert capsys.readouterr().out == "This is item-03\n"
    finally:
        stop(running)
