"""The commands of the page Search by words, run in order with a tiny model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from retrieval.cli.main import group
from retrieval.retriever import Retriever
from serving.app import create_app

from .conftest import ROOT
from .retrieval.test_client import Recorded
from .training.two_towers import KNOWN, LENGTHS, write_two_towers
from .words import write_shop

PAGE = (ROOT / "docs" / "search-by-words.md").read_text()
MODEL = "openai/clip-vit-base-patch32"


def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, onnx_written_once: None) -> None:
    monkeypatch.chdir(tmp_path)
    name = write_two_towers(tmp_path / "model", "clip")
    table = write_shop(tmp_path, [f"{KNOWN[item % len(KNOWN)]} {item}" for item in range(60)], items=60)
    table.write_text(table.read_text().replace("half", "price"))
    lines = [shlex.split(line) for line in PAGE.splitlines() if line.startswith("retrieval ")]
    assert [line[1] for line in lines] == ["export", "index", "search", "search", "export"]
    results = [
        CliRunner().invoke(group, [name if word == MODEL else word for word in line[1:]], catch_exceptions=False)
        for line in lines[:-1]
    ]
    assert re.search(r"Searches by words: an unknown name returns a match in \d+\.\d% of searches", results[1].output)
    assert json.loads(results[3].output)["decision"] in ("match", "perhaps", "no_match")

    (tmp_path / "clip" / "onnx").mkdir(parents=True)
    shutil.copy("bundles/words/text.onnx", "clip/onnx/text_model.onnx")
    shutil.copy("model/tokenizer.json", "clip/tokenizer.json")
    (tmp_path / "clip" / "tokenizer_config.json").write_text(json.dumps({"model_max_length": LENGTHS["clip"]}))
    last = [name if word == MODEL else word for word in lines[-1][1:]]
    assert "Wrote bundles/mine" in CliRunner().invoke(group, last, catch_exceptions=False).output

    (url,) = re.findall(r"curl -X POST 'http://127.0.0.1:7860(.*)'", PAGE)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with (
        Retriever.open("bundles/words", "galleries/words") as retriever,
        TestClient(create_app(retriever, page=False)) as server,
    ):
        assert server.post(url).status_code == 200
        names = {"RetrievalClient": lambda _address: Recorded(server)}
        exec(code, names)  # noqa: S102, the example of the page
    assert isinstance(names["answer"].bundle_id, str)
