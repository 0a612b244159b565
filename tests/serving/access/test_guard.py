"""The guard's request ids, its demand for a key, and the headers of every response."""

from __future__ import annotations

import logging

import pytest
from starlette.types import Receive, Scope, Send

from serving.access import guard
from serving.access.guard import CSP, Guard, _missing_key, _Request, _RequestIds, _with_headers
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


@pytest.mark.parametrize("path", ["/", "/v1/search", "/healthz", "/page/page.js"])
def test_every_response_has_one_policy_and_answers_are_not_stored(path: str) -> None:
    request = _Request("id", "GET", path, 0.0)
    headers = _with_headers([(b"content-type", b"a/b")], request)
    assert [value.decode() for name, value in headers if name == b"content-security-policy"] == [CSP]
    assert dict(headers)[b"x-request-id"] == b"id"
    assert dict(headers)[b"cache-control"] == b"no-store"
    own = [(b"cache-control", b"max-age=5"), (b"content-security-policy", b"img-src 'self'")]
    chosen = _with_headers(own, request)
    assert [header for header in chosen if header[0] in dict(own)] == own


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand for the application behind a guard."""


@pytest.mark.parametrize(
    ("path", "route"),
    [("/docs", "/docs"), ("/metrics", "/metrics"), ("/v1/made-up", "refused"), ("/file=x", "refused")],
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
