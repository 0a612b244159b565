"""The losses of pytorch-metric-learning: where they come from, and what importing them leaves as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from research.losses import MultiSimilarity
from retrieval.errors import MissingDependency
from training.losses import make_loss

SEARCH = """
import numpy as np
import faiss
from index.ann.faiss_index import Candidates
from index.ann.kinds import KINDS

vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
allowed = np.arange(600) % 2 == 0
built = [Candidates.build(kind, lambda: iter([vectors]), 600, 16, threads=1) for kind in KINDS]
methods = {name: getattr(faiss.IndexFlat, name) for name in ("add", "search", "reconstruct")}

def search():
    return [index.search(vectors[:9], 3, index.selection(allowed))[0] for index in built]

before = search()
from training.losses import LOSSES, make_loss
assert "multi_similarity" in LOSSES
for name in LOSSES:
    make_loss(name, classes=3, dim=16, arguments={})
import research.benchmarks.library_heads, research.benchmarks.losses
assert "pytorch_metric_learning" in __import__("sys").modules
for one, other in zip(before, search(), strict=True):
    np.testing.assert_array_equal(one, other)
    assert set((other % 2).ravel().tolist()) == {0}
assert methods == {name: getattr(faiss.IndexFlat, name) for name in methods}
"""


def test_searches_of_every_kind_find_the_same_after_the_losses_of_the_library_were_made() -> None:
    done = subprocess.run([sys.executable, "-c", SEARCH], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["multi_similarity", "fast_ap", "margin", "triplet", "cosface", "normalized_softmax"])
def test_without_the_library_each_of_its_losses_says_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    monkeypatch.delitem(sys.modules, "pytorch_metric_learning.losses", raising=False)
    with pytest.raises(MissingDependency, match=r"pip install .*'\.\[dev\]'"):
        make_loss(name, classes=3, dim=4, arguments={})


@pytest.mark.parametrize(("items", "value"), [([0, 1, 0, 1], 0.0), ([0, 0, 1, 1], 1.1566)])
def test_multi_similarity_is_zero_where_each_item_has_a_place(items: list[int], value: float) -> None:
    photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    assert MultiSimilarity()(photos, torch.tensor(items)).item() == pytest.approx(value, abs=1e-4)
