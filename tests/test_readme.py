"""What the README tells people to type is run, in its order, on a tiny catalogue with the real backbone."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from retrieval.cli import main

from .conftest import ROOT
from .world import draw, write_folder

README = (ROOT / "README.md").read_text()
QUICK = ["--epochs", "1", "--size", "96", "--items-per-batch", "4", "--dim", "16"]  # so that training takes seconds
TINY = {"0.05": "0.3"}  # four calibration items cannot tell 5 %


@pytest.mark.data
@pytest.mark.slow
def test_the_walk_through_works(test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "PHOTOS", items=range(20), photos=range(6))
    rows = [f"PHOTOS/{photo.relative_to(folder)},{photo.parent.name}" for photo in sorted(folder.rglob("*.png"))]
    draw(3, 6).save(tmp_path / "query.jpg")
    (tmp_path / "DATA" / "grocery").mkdir(parents=True)
    (tmp_path / "DATA" / "grocery" / "PHOTOS").symlink_to(folder)
    (tmp_path / "DATA" / "grocery" / "grocery.csv").write_text("\n".join(["path,label", *rows]))
    (tmp_path / "DATA" / "weights").symlink_to(test_data / "weights")
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line) for line in README.splitlines() if line.startswith("retrieval ")]
    assert [line[1] for line in lines] == [
        *("data", "train", "evaluate", "export", "index", "search", "serve", "doctor"),
        *["gallery"] * 6,
    ]
    for line in lines:
        if line[1] == "serve":
            continue  # tests/serving starts it
        words = [TINY.get(word, word) for word in line] + (QUICK if line[1] == "train" else [])
        monkeypatch.setattr(sys, "argv", words)
        main()
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(snippet, names)  # noqa: S102 - the README's own lines
    assert getattr(names["result"], "decision", None) in ("match", "no_match")
