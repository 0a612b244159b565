from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.errors import BundleError, BundleMismatch, GalleryError, InvalidParameter
from retrieval.process import bind, cores, port_of
from serving.access.keys import add_key
from serving.cli import EXAMPLES, example_files, keys, serve
from serving.launch import ServePlan
from serving.settings import ServeSettings

from ..world import draw


def test_what_cannot_be_served_is_refused_before_it_listens(world: Path, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "other", dim=48, embedding_id="another").close()
    bundle, gallery = str(world / "bundle"), str(world / "gallery")
    for arguments, kind in (
        ([str(tmp_path / "nothing"), gallery], BundleError),
        ([bundle, str(tmp_path / "nothing")], GalleryError),
        ([bundle, str(tmp_path / "other")], BundleMismatch),
        ([bundle, gallery, "--threads", "0"], InvalidParameter),
        ([bundle, gallery, "--deadline", "inf"], InvalidParameter),
        ([bundle, gallery, "--deadline", "nan"], InvalidParameter),
        ([bundle, gallery, "--examples", str(tmp_path / "nothing")], InvalidParameter),
    ):
        with pytest.raises(kind):
            CliRunner().invoke(serve, arguments, catch_exceptions=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """Return the applications that `serve` runs, and their ports, in place of running them."""
    found: list[tuple[Any, int]] = []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        found.append((server.config.app, port_of(sockets)))
        server.started = True
        for listener in sockets:
            listener.close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr("serving.ops.logs.logging.basicConfig", lambda **_: None)  # this process goes on
    monkeypatch.setattr("serving.launch.signal.signal", lambda *_: None)
    return found


def test_a_port_is_taken_before_it_is_announced(world: Path, served: list[tuple[Any, int]]) -> None:
    words = [str(world / "bundle"), str(world / "gallery"), "--no-page", "--port"]
    with socket.create_server(("127.0.0.1", 0)) as busy:
        refused = CliRunner().invoke(serve, [*words, str(busy.getsockname()[1])])
    assert isinstance(refused.exception, InvalidParameter)
    assert "--port must be free" in str(refused.exception)
    assert "http" not in refused.output
    assert served == []
    done = CliRunner().invoke(serve, [*words, "0"], catch_exceptions=False)
    ((_, port),) = served
    assert f"Search at http://127.0.0.1:{port}/v1/search" in done.output


def test_a_host_of_another_machine_is_refused() -> None:
    for host in ("192.0.2.1", "no.such.host.invalid", "a" * 70):
        with pytest.raises(InvalidParameter, match="--host must be an address of this machine"):
            bind(host, 0)


def test_a_name_of_several_addresses_is_bound_to_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    both = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    listeners = bind("localhost", 0)
    assert {listener.getsockname()[1] for listener in listeners} == {port_of(listeners)}
    assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1", "::1"]
    for listener in listeners:
        listener.close()


def test_withdrawing_a_key_that_is_not_there_fails(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    add_key(file, "shop", "search")
    missing = CliRunner().invoke(keys, ["remove", str(file), "nobody"])
    assert isinstance(missing.exception, InvalidParameter)
    assert "NAME must be one of shop, got 'nobody'" in str(missing.exception)
    only = CliRunner().invoke(keys, ["remove", str(file), "shop", "--keep-newest"])
    assert (only.exit_code, only.output) == (0, "0 keys removed.\n")
    assert CliRunner().invoke(keys, ["remove", str(file), "shop"]).exit_code == 0
    again = CliRunner().invoke(keys, ["remove", str(file), "shop"])
    assert "NAME must be in the file" in str(again.exception)


def test_workers_share_the_cores_and_serve_the_page_on_this_machine(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[ServePlan] = []
    monkeypatch.setattr("serving.launch.serve", lambda plan, *_: plans.append(plan))
    words = [str(world / "bundle"), str(world / "gallery"), "--workers", str(2 * cores())]
    for options in ([], ["--threads", "3"]):
        assert CliRunner().invoke(serve, [*words, *options]).exit_code == 0
    assert [(plan.settings.threads, plan.page) for plan in plans] == [(1, True), (3, True)]
    assert "workers must be at least 1" in str(CliRunner().invoke(serve, [*words[:3], "0"]).exception)


def test_examples_are_picked_evenly(tmp_path: Path) -> None:
    assert example_files([]) == []
    for number in range(30):
        draw(0, number).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "notes.txt").write_text("no photo")
    found = example_files([tmp_path])
    assert len(set(found)) == EXAMPLES
    assert (found[0].name, found[-1].name) == ("00.png", "29.png")
    assert example_files([tmp_path / "07.png"]) == [tmp_path / "07.png"]


@pytest.mark.parametrize("show", [",", "price,,brand", "=EUR", "_file", "price,_content_sha256=x"])
def test_what_names_no_column_to_show_is_refused(show: str) -> None:
    with pytest.raises(InvalidParameter, match="--show must name columns of the catalogue"):
        ServeSettings(show=show)


def test_columns_to_show_have_the_units_that_were_given() -> None:
    assert ServeSettings().shown_columns == []
    assert ServeSettings(show="price=EUR, weight = kg,brand").shown_columns == [
        ("price", "EUR"),
        ("weight", "kg"),
        ("brand", ""),
    ]
