"""Prometheus metrics: counters and histograms, and gauges read at scrape time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from retrieval.retriever import Retriever
from retrieval.search.result import SearchResult
from serving.pool import SearchPool

from .drift import DriftMonitor

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # variable of prometheus_client: a folder with the counts of all processes
METRICS = (  # names without the suffixes that Prometheus appends
    "retrieval_requests",
    "retrieval_request_seconds",
    "retrieval_stage_seconds",
    "retrieval_decisions",
    "retrieval_norm",
    "retrieval_nearest_distance",
    "retrieval_busy",
    "retrieval_reloads",
    "retrieval_queue_depth",
    "retrieval_overdue_threads",
    "retrieval_gallery_photos",
    "retrieval_gallery_items",
    "retrieval_gallery_version",
    "retrieval_threshold",
    "retrieval_target_fpir",
    "retrieval_fpir",
    "retrieval_fpir_upper",
    "retrieval_threshold_broken",
    "retrieval_gallery_outgrown",
    "retrieval_drift_effect",
    "retrieval_drift_alarm",
    "retrieval_bundle_info",
)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
NORMS = tuple(float(2 ** (i / 2)) for i in range(-4, 17))  # 0.25 to 256
DISTANCES = tuple(i / 20 for i in range(1, 41))  # up to 2


class Serving(Protocol):
    """The service that gauges read."""

    retriever: Retriever
    pool: SearchPool
    drift: DriftMonitor


class Metrics:
    """Metrics of a server.

    Counters and histograms cover all processes of a server with several. Gauges are those of the answering process.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        shared = FOLDER in os.environ
        made: dict[str, Any] = {"registry": None if shared else self.registry}
        if shared:
            MultiProcessCollector(self.registry)  # type: ignore[no-untyped-call]
        self._requests = Counter("retrieval_requests", "Requests answered.", ["route", "status"], **made)
        self._seconds = Histogram("retrieval_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, **made)
        self._stages = Histogram(
            "retrieval_stage_seconds", "Time of a search's stages.", ["stage"], buckets=SECONDS, **made
        )
        self._decisions = Counter("retrieval_decisions", "Answers by decision.", ["decision", "reason"], **made)
        self._norm = Histogram("retrieval_norm", "Norm of the embeddings.", buckets=NORMS, **made)
        self._nearest = Histogram(
            "retrieval_nearest_distance", "Distance to the nearest item.", buckets=DISTANCES, **made
        )
        self.busy = Counter(
            "retrieval_busy", "Searches refused because the queue was full or the deadline had passed.", **made
        )
        self.reloads = Counter("retrieval_reloads", "Reloads by outcome.", ["outcome"], **made)

        self._by_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._by_stage: dict[str, Histogram] = {}

    def watch(self, service: Serving) -> None:
        """Register gauges that are read from a service at each scrape."""
        self.registry.register(_State(service))

    def request(self, route: str, status: int, seconds: float) -> None:
        """Record a request: count and duration."""
        metrics = self._by_route.get((route, status))
        if metrics is None:  # bounded: routes and statuses are few
            metrics = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._by_route[route, status] = metrics
        metrics[0].inc()
        metrics[1].observe(seconds)

    def answer(self, result: SearchResult) -> None:
        """Record a search result: stage times, decision, norm and nearest distance."""
        if result.embedding_norm is not None:
            self._norm.observe(result.embedding_norm)
        if result.nearest_distance is not None:
            self._nearest.observe(result.nearest_distance)
        for stage, milliseconds in result.timings_ms.items():
            if stage not in self._by_stage:
                self._by_stage[stage] = self._stages.labels(stage)
            self._by_stage[stage].observe(milliseconds / 1e3)
        self._decisions.labels(result.decision, result.reason).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus text format."""
        return generate_latest(self.registry)


class _State(Collector):
    """Collector of gauges that are read from a service."""

    def __init__(self, service: Serving) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not read the gallery."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        retriever = self._service.retriever
        point, rates = retriever.gallery_point.measured()
        pool = self._service.pool
        numbers = {
            "queue_depth": ("Searches waiting for a thread.", pool.waiting),
            "overdue_threads": ("Threads whose search has exceeded the deadline.", pool.overdue),
            "gallery_photos": ("Photos in the gallery.", len(retriever.gallery)),
            "gallery_items": ("Items in the gallery.", retriever.gallery.items),
            "gallery_version": ("Number of changes to the gallery.", retriever.gallery.version),
            "target_fpir": ("FPIR that the threshold was set for.", point.target_fpir),
        }
        if point.decides:
            numbers["threshold"] = ("Distance up to which an item matches.", point.threshold)
        broken = rates is not None and rates.broken(point)
        numbers["threshold_broken"] = ("1 if the gallery's own threshold no longer keeps its target.", broken)
        if rates is not None:
            numbers["fpir"] = ("FPIR of the threshold, measured in this gallery.", rates.fpir(point.threshold))
            numbers["fpir_upper"] = ("Upper 95 % bound on the FPIR.", rates.fpir_upper(point.threshold))
        numbers["gallery_outgrown"] = (
            "1 if the gallery has more items than the threshold was set for.",
            retriever.gallery_point.outgrown,
        )
        for name, (text, number) in numbers.items():
            yield GaugeMetricFamily(f"retrieval_{name}", text, value=float(number))
        effect = GaugeMetricFamily(
            "retrieval_drift_effect", "Kolmogorov-Smirnov statistic of live photos.", labels=["statistic"]
        )
        alarm = GaugeMetricFamily(
            "retrieval_drift_alarm", "1 if the statistic exceeds its limit.", labels=["statistic"]
        )
        for drift in self._service.drift.state():
            if drift.effect is not None:
                effect.add_metric([drift.statistic], drift.effect)
            alarm.add_metric([drift.statistic], float(drift.alarm))
        yield effect
        yield alarm
        info = GaugeMetricFamily("retrieval_bundle_info", "The bundle in service.", labels=["bundle_id", "status"])
        info.add_metric([retriever.bundle.bundle_id, point.status], 1)
        yield info
