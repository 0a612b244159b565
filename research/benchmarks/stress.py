"""Stress tests of the endpoint: start-up, overload and bundle reloads."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle, write_bundle
from retrieval.errors import BundleError
from retrieval.retriever import Retriever
from retrieval.threshold.calibrate import calibrate

from .load import Answer, Connections, closed_loop, poisson
from .peers import INSIDE, OURS, Served
from .tables import Row, ms

STARTS, LARGE, BLOCK, PHOTOS_PER_ITEM = 3, 100_000, 20_000, 5
DEADLINE_S, PLACES = 10, 33  # defaults of `retrieval serve` on one core
OVERLOAD, MIB = 4, 2**20
NORMAL, IN_A_ROW, PATIENCE_S = (
    2,
    5,
    60,
)  # recovered: this many answers in a row, each within this multiple of the usual time
RELOAD_EVERY_S, CLIENTS, MOST_PHOTOS = 2.0, 2, 100
OTHER_FPIRS = (0.2, 0.01)  # one of these gives another threshold than the bundle's

Facts = tuple[object, ...]


def starts(start: Callable[..., Served], bundle: Path, folder: Path) -> list[Row]:
    """Measure the start with a large gallery, for the server and the search alone in turns; files are cached."""
    gallery = large_gallery(folder / "large", Bundle.open(bundle))
    ready, page, searched = [], [], []
    for _ in range(STARTS):
        server = start(OURS, gallery=gallery, page=True)
        ready.append(server.wait_for("/readyz"))
        page.append(server.wait_for("/"))
        server.stop()
        inside = start(INSIDE, gallery=gallery)
        inside.line()
        searched.append(time.perf_counter() - inside.started)
        inside.stop()
    took, least = float(np.median(ready)), float(np.median(searched))
    what = f"from the start to the first 200 of /readyz, {LARGE:,} photos, with the page"
    return [
        Row(what, f"{took:.2f} s", f"{least:.2f} s to a first search", f"{took / least:.2f}"),
        Row("to the first 200 of the page", f"{np.median(page):.2f} s"),
    ]


def large_gallery(path: Path, bundle: Bundle, photos: int = LARGE) -> Path:
    """Write a gallery of random vectors for a bundle."""
    generator = np.random.default_rng(0)
    with Gallery.create(path, dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        for first in range(0, photos, BLOCK):
            numbers = range(first, min(photos, first + BLOCK))
            vectors = generator.normal(size=(len(numbers), bundle.dim)).astype(np.float32)
            gallery.add(
                [f"photo-{number}" for number in numbers],
                [f"item-{number // PHOTOS_PER_ITEM}" for number in numbers],
                vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            )
        gallery.rebuild_if_due()
    return path


def overload(server: Served, images: Sequence[bytes], *, capacity: float, seconds: float) -> list[Row]:
    """Send four times the capacity, then repeat one photo until the latency is normal again."""

    async def storm() -> tuple[list[Answer], float]:
        usual = await closed_loop(server.port, images[:1], range(20), concurrency=1)
        limit = NORMAL * float(np.median([answer.seconds for answer in usual]))
        generator = np.random.default_rng(1)
        answers = await poisson(server.port, images, rate=OVERLOAD * capacity, seconds=seconds, generator=generator)
        return answers, await normal_again(server.port, images[0], limit=limit)

    with server.awake():
        before = server.resident()
        answers, normal = uvloop.run(storm())
        after = server.resident()
    accepted = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 503]
    other = len(answers) - len(accepted) - len(refused)
    polite = sum(answer.retry_after for answer in refused)
    longest = max(answer.done - answer.sent for answer in answers)
    rate = len(accepted) / (max(answer.done for answer in answers) - answers[0].due)
    p99, bound = float(np.percentile([answer.seconds for answer in accepted], 99)), PLACES / rate
    quick = float(np.percentile([answer.seconds for answer in refused] or [0.0], 99))
    again = max(0.0, normal - answers[-1].due)
    late = float(np.percentile([answer.sent - answer.due for answer in answers], 99))
    memory = f"{(after - before) / MIB:+.1f} MiB"
    return [
        Row("asked", f"{len(answers):,}: {len(answers) / seconds:.0f}/s", f"{capacity:.0f}/s", f"{OVERLOAD}"),
        Row("answered 200", f"{len(accepted) / len(answers):.1%}"),
        Row("refused 503", f"{len(refused) / len(answers):.1%}"),
        Row("of these with Retry-After", f"{polite:,}", f"{len(refused):,}"),
        Row("other answers, or none", f"{other}"),
        Row("answered 200 a second", f"{rate:.1f}/s", f"{capacity:.1f}/s of capacity", f"{rate / capacity:.2f}"),
        Row("longest wait", f"{longest:.2f} s"),
        Row("p99 of the answered", ms(p99), f"{ms(bound)}, mean of {PLACES} places", f"{p99 / bound:.2f}"),
        Row("p99 of the refused", ms(quick)),
        Row("the load itself was late, p99", ms(late)),
        Row("memory at the end", f"{after / MIB:.0f} MiB", f"{before / MIB:.0f} MiB at the start", memory),
        Row("until normal afterwards", f"{again:.2f} s"),
    ]


async def normal_again(port: int, image: bytes, *, limit: float) -> float:
    """Return the time from which several answers in a row are within the limit; infinity if there is none."""
    connections, good, end = Connections(port), list[float](), time.perf_counter() + PATIENCE_S
    while len(good) < IN_A_ROW and time.perf_counter() < end:
        answer = await connections.ask(0, image)
        good = [*good, answer.sent] if answer.status == 200 and answer.seconds <= limit else []
    connections.close()
    return good[0] if len(good) == IN_A_ROW else math.inf


@dataclass(frozen=True)
class Candidate:
    """A bundle that may answer, and its expected answers to every photo."""

    path: Path
    bundle_id: str
    answers: list[Facts]


@dataclass(frozen=True)
class Reload:
    """A requested reload: its bundle and time."""

    bundle_id: str
    asked: float
    done: float
    status: int


def swap(
    start: Callable[[Path], Served], bundle: Path, gallery: Path, images: Sequence[bytes], folder: Path, seconds: float
) -> list[Row]:
    """Alternate between two bundles with different thresholds and check every answer."""
    images = images[:MOST_PHOTOS]
    first = Bundle.open(bundle)
    for fpir in OTHER_FPIRS:
        other = with_target(first, folder / f"fpir-{fpir}", fpir)
        if other.threshold != first.threshold:
            break
    candidates = [candidate(path, gallery, images) for path in (bundle.resolve(), other.path)]
    link = folder / "current"
    link.symlink_to(candidates[0].path)
    server = start(link)
    server.wait_for("/readyz")

    async def ask() -> tuple[list[Answer], list[Reload]]:
        done = asyncio.Event()
        numbers = itertools.takewhile(lambda _: not done.is_set(), itertools.count())
        load = asyncio.create_task(closed_loop(server.port, images, numbers, concurrency=CLIENTS))
        reloads = await keep_reloading(server.port, link, candidates, seconds)
        done.set()
        return await load, reloads

    answers, reloads = uvloop.run(ask())
    server.stop()
    return swap_rows(answers, reloads, candidates)


def with_target(bundle: Bundle, path: Path, fpir: float) -> Bundle:
    """Write a bundle with the same model and the threshold for another target."""
    if bundle.calibration is None:
        raise BundleError(f"{bundle.path} has no calibration searches", remedy="Export it again from its run")
    point = calibrate(
        bundle.calibration.scores, target_fpir=fpir, allow_estimate=True, groups=bundle.calibration.groups
    )
    return write_bundle(
        path,
        model=bundle.path / "model.onnx",
        preprocessing=bundle.preprocessing,
        dim=bundle.dim,
        operating_point=point,
        distance_form=bundle.distance_form,
        precision=bundle.precision,
        provider=bundle.provider,
        evidence=bundle.manifest["evidence"],
        files={name: bundle.read(name) for name in bundle.further_files},
    )


def candidate(path: Path, gallery: Path, images: Sequence[bytes]) -> Candidate:
    """Return a bundle's expected answers, computed in process."""
    retriever = Retriever.open(path, gallery)
    answers = [facts(retriever.search(image).to_dict()) for image in images]
    return Candidate(path, retriever.bundle.bundle_id, answers)


def facts(told: dict[str, Any]) -> Facts:
    """Return the parts of an answer that depend on the bundle."""
    return told["bundle_id"], told["threshold"], told["decision"], *[match["item_id"] for match in told["matches"]]


async def keep_reloading(port: int, link: Path, candidates: Sequence[Candidate], seconds: float) -> list[Reload]:
    """Point the link at the other bundle and reload, every two seconds."""
    connections, reloads, start = Connections(port), list[Reload](), time.perf_counter()
    for number in range(1, int(seconds / RELOAD_EVERY_S)):
        await asyncio.sleep(start + number * RELOAD_EVERY_S - time.perf_counter())
        chosen = candidates[number % len(candidates)]
        aside = link.with_name("next")
        aside.symlink_to(chosen.path)
        aside.replace(link)
        answer = await connections.ask(0, b"", path="/v1/admin/reload")
        reloads.append(Reload(chosen.bundle_id, answer.sent, answer.done, answer.status))
    await asyncio.sleep(max(0.0, start + seconds - time.perf_counter()))
    connections.close()
    return reloads


def swap_rows(answers: Sequence[Answer], reloads: Sequence[Reload], candidates: Sequence[Candidate]) -> list[Row]:
    """Return rows about the answers during reloads."""
    right = {one.bundle_id: one.answers for one in candidates}
    told = [(answer, facts(json.loads(answer.body))) for answer in answers if answer.status == 200]
    mixed = [answer for answer, said in told if said not in [right[name][answer.photo] for name in right]]
    ends = [*[reload.asked for reload in reloads[1:]], math.inf]
    late = [
        answer
        for reload, end in zip(reloads, ends, strict=True)
        for answer, said in told
        if reload.done <= answer.sent and answer.done <= end and said[0] != reload.bundle_id
    ]
    failed, refused = len(answers) - len(told), sum(reload.status != 200 for reload in reloads)
    shares = [count / len(told) for _, count in Counter(said[0] for _, said in told).most_common()]
    differing = sum(a[2:] != b[2:] for a, b in zip(candidates[0].answers, candidates[1].answers, strict=True))
    thresholds = " and ".join(f"{one.answers[0][1]:.4f}" for one in candidates)
    took = [reload.done - reload.asked for reload in reloads]
    during: list[float] = []
    calm: list[float] = []
    for answer, _ in told:
        meets = any(reload.asked <= answer.done and answer.sent <= reload.done for reload in reloads)
        (during if meets else calm).append(answer.seconds)
    busy, usual = (float(np.percentile(some or [math.nan], 99)) for some in (during, calm))
    return [
        Row("reloads", f"{len(reloads)}, {refused} of them refused"),
        Row("thresholds of the two bundles", thresholds, f"{differing} of {len(candidates[0].answers)} photos differ"),
        Row("answers", f"{len(told):,}", f"by either: {' and '.join(f'{share:.0%}' for share in shares)}"),
        Row("failed", f"{failed}"),
        Row("mixed: not what one of the two says in process", f"{len(mixed)}"),
        Row("asked after a reload, answered by the old one", f"{len(late)}"),
        Row("a reload took, median", f"{np.median(took):.2f} s"),
        Row(f"p99 during a reload, {CLIENTS} clients", ms(busy), f"{ms(usual)} between them", f"{busy / usual:.2f}"),
    ]
