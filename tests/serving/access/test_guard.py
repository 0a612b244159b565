"""The guard's request ids, its demand for a key, and the headers of every response."""

from __future__ import annotations

import logging

import pytest
from starlette.types import Receive, Scope, Send

from serving.access import guard
from serving.access.guard import ENDPOINT_CSP, PAGE_CSP, Guard, _missing_key, _Request, _RequestIds, _with_headers
from serving.ops.metrics import Metrics


def test_request_ids_are_16_characters_and_never_repeat() -> None:
    ids = _RequestIds()
    drawn = [next(ids) for _ in range(2000)]  # of four blocks
    assert {len(request_id) for request_id in drawn} == {16}
    assert len(set(drawn)) == len(drawn)
    assert set("".join(drawn)) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "Basic"), ("/docs", "Basic"), ("/v1/report", "Basic"), ("/v1/search", "Bearer"), ("/metrics", "Bearer")],
)
def test_browsers_are_asked_for_a_password_and_programs_for_a_token(path: str, kind: str) -> None:
    response = _missing_key(_Request("id", "GET", path, 0.0))
    assert (response.status_code, response.headers["www-authenticate"].split()[0]) == (401, kind)


@pytest.mark.parametrize(
    ("path", "policy", "stored"),
    [("/", PAGE_CSP, True), ("/v1/search", ENDPOINT_CSP, False), ("/healthz", ENDPOINT_CSP, False)],
)
def test_every_response_has_one_policy_and_answers_are_not_stored(path: str, policy: str, stored: bool) -> None:
    given = [(b"access-control-allow-origin", b"*"), (b"content-type", b"a/b")]
    headers = _with_headers(given, _Request("id", "GET", path, 0.0))
    assert [value.decode() for name, value in headers if name == b"content-security-policy"] == [policy]
    assert dict(headers)[b"x-request-id"] == b"id"
    assert (b"cache-control" not in dict(headers)) == stored
    assert b"access-control-allow-origin" not in dict(headers)
    chosen = _with_headers([(b"cache-control", b"max-age=5")], _Request("id", "GET", path, 0.0))
    assert [value for name, value in chosen if name == b"cache-control"] == [b"max-age=5"]


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand for the application behind a guard."""


@pytest.mark.parametrize(
    ("path", "route"), [("/docs", "/docs"), ("/metrics", "/metrics"), ("/v1/made-up", "refused"), ("/file=x", "page")]
)
def test_a_request_is_logged_with_its_time_under_a_route_that_clients_cannot_make_up(
    path: str, route: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard.time, "perf_counter", lambda: 5.0123456)
    with caplog.at_level(logging.DEBUG, "retrieval.access"):
        Guard(nothing, metrics=Metrics(), keys=None)._record(_Request("id", "GET", path, 5.0), {"state": {}})
    (record,) = caplog.records
    facts = record.facts  # type: ignore[attr-defined]
    assert (facts["route"], facts["ms"]) == (route, 12.35)
