"""Ideal queues, and the searches in process that servers are compared with."""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from research.benchmarks.load import Answer, ideal_queue
from research.benchmarks.peers import search_inside
from retrieval.retriever import Retriever

from ...world import draw, encode


def test_a_queue_for_each_worker_waits_longer_than_one_for_all() -> None:
    arrivals = [Answer(0, float(due), float(due), float(due), 200) for due in range(400)]
    one = ideal_queue(arrivals, [1.6], np.random.default_rng(0), places=2)
    assert one == pytest.approx([1.6] * 400)
    assert one == ideal_queue(arrivals, [1.6], np.random.default_rng(0), places=2, queues=1)
    two = ideal_queue(arrivals, [1.6], np.random.default_rng(0), places=1, queues=2)
    assert min(two) == pytest.approx(1.6)
    assert np.mean(two) > 2


def test_searches_in_process_use_the_threads_that_are_asked_for(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: list[str] = []
    monkeypatch.setattr(Retriever, "search", lambda *_: names.append(threading.current_thread().name))
    monkeypatch.setattr(sys, "stdin", io.StringIO("3\n4 2\n"))
    search_inside([encode(draw(3, 5))], [str(world / "bundle"), str(world / "gallery")])
    ready, *lines = capsys.readouterr().out.splitlines()
    assert (ready, [len(json.loads(line)) for line in lines]) == ("ready", [3, 4])
    assert set(names[:4]) == {threading.current_thread().name}  # with the first search
    assert all(name.startswith("ThreadPool") for name in names[4:])
