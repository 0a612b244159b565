"""Reaching the hub: asked once, quickly, and never in offline mode; the choice that follows from it."""

from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval.errors import InvalidParameter
from training.backbones import choose_backbone, hub, load_backbone
from training.backbones.hub import ON_CPU, ON_GPU


class Refusing(http.server.BaseHTTPRequestHandler):
    """A hub that answers, whatever it says."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield "up"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    reachable = hub.hub_is_reachable
    reachable.cache_clear()
    yield
    reachable.cache_clear()


@pytest.mark.usefixtures("endpoint")
def test_any_answer_counts() -> None:
    assert hub.hub_is_reachable()


@pytest.mark.usefixtures("endpoint")
def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not hub.hub_is_reachable()


def test_no_answer_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert not hub.hub_is_reachable()
    with pytest.raises(InvalidParameter, match="nobody/nothing"):
        load_backbone("nobody/nothing")


def test_the_wait_is_announced_and_a_silent_hub_is_not_asked_again_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: None
) -> None:
    from huggingface_hub import constants

    answering = constants.ENDPOINT
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert not hub.hub_is_reachable()
    assert "Asking whether the Hugging Face hub answers" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", answering)
    hub.hub_is_reachable.cache_clear()  # another process
    assert not hub.hub_is_reachable()
    told = capsys.readouterr().err
    assert "did not answer 0 minutes ago" in told
    (remembered,) = (tmp_path / "cache").iterdir()
    assert f"To ask it now, remove {remembered}" in told
    os.utime(remembered, (0, time.time() - 3601))
    hub.hub_is_reachable.cache_clear()
    assert hub.hub_is_reachable()
    assert not remembered.exists()


@pytest.mark.parametrize(
    ("reachable", "cached", "gpu", "name", "reason"),
    [
        (True, False, False, ON_CPU, "hub answers"),
        (True, False, True, ON_GPU, "a GPU"),
        (False, True, False, ON_CPU, "in the cache"),
        (False, False, False, "efficientnet-lite0", "does not answer"),
        (False, False, True, "efficientnet-lite0", "does not answer"),
    ],
)
def test_the_choice_says_why(
    monkeypatch: pytest.MonkeyPatch, reachable: bool, cached: bool, gpu: bool, name: str, reason: str
) -> None:
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: reachable)
    monkeypatch.setattr(hub, "is_cached", lambda name: cached)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    chosen, why = choose_backbone()
    assert chosen == name
    assert reason in why
