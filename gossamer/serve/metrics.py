"""The counters of a server, as Prometheus metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gossamer.serve.models import Models, ServedModel

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the histogram's buckets, in seconds."""


@dataclass
class Total:
    """The number of events, and their total duration."""

    count: int = 0
    seconds: float = 0.0

    def described(self) -> dict[str, int]:
        """Return the total in Triton's format."""
        return {"count": self.count, "ns": int(1e9 * self.seconds)}


class Metrics:
    """The counters of one server.

    registry: all counters, for Prometheus.
    """

    def __init__(self, models: Models) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("gossamer_requests", "Responses by network and HTTP status.",
                                 ["model", "status"], registry=self.registry)
        self._seconds = Histogram("gossamer_request_seconds",
                                  "Seconds from the first byte of a request to its response.",
                                  ["model"], buckets=_SECONDS, registry=self.registry)
        self.registry.register(_Batches(models))
        self._totals: dict[tuple[str, bool], Total] = {}
        self._images: dict[str, int] = {}
        self._batches: dict[str, dict[int, Total]] = {}
        self._last: dict[str, float] = {}

    def statistics(self, name: str, model: ServedModel) -> dict[str, Any]:
        """Return a network's statistics since the start of the server.

        The format is that of Triton's statistics extension of the protocol. The breakdown of a
        request's time is omitted, because it is not measured.
        """
        succeeded, failed = (self._totals.get((name, ok), Total()) for ok in (True, False))
        batches = self._all_batches(model)
        return {"name": name, "version": "", "last_inference": int(1e3 * self._last.get(name, 0)),
                "inference_count": self._images.get(name, 0),
                "execution_count": sum(total.count for total in batches.values()),
                "inference_stats": {"success": succeeded.described(), "fail": failed.described()},
                "batch_stats": [
                    {"batch_size": size, "compute_infer": total.described()}
                    for size, total in sorted(batches.items())]}

    def count_images(self, name: str, images: int) -> None:
        """Count the computed images of a request."""
        self._images[name] = self._images.get(name, 0) + images

    def keep_batches(self, model: ServedModel) -> None:
        """Save the counts of a network's batcher before it is replaced."""
        self._batches[model.name] = self._all_batches(model)

    def _all_batches(self, model: ServedModel) -> dict[int, Total]:
        """Return totals by batch size, over the network's current and earlier batchers."""
        batches = dict(self._batches.get(model.name, {}))
        for size, count in model.batcher.batches.items():
            before = batches.get(size, Total())
            seconds = count * model.batcher.times.get(size, 0.0)
            batches[size] = Total(before.count + count, before.seconds + seconds)
        return batches

    def count(self, model: str, status: int, seconds: float) -> None:
        """Count a response, and add its seconds."""
        self._requests.labels(model, str(status)).inc()
        self._seconds.labels(model).observe(seconds)
        total = self._totals.setdefault((model, status == 200), Total())
        total.count += 1
        total.seconds += seconds
        self._last[model] = time.time()


class _Batches(Collector):
    """Collects the metrics that batchers count."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Any]:
        """Yield the batches by size, the waiting images, and the measured times."""
        batches = CounterMetricFamily("gossamer_batches", "Batches since the network was loaded.",
                                      labels=["model", "size"])
        waiting = GaugeMetricFamily("gossamer_waiting_images", "Images waiting for a device.",
                                    labels=["model"])
        times = GaugeMetricFamily("gossamer_batch_seconds", "Measured seconds of a batch.",
                                  labels=["model", "size"])
        for name, model in self._models.by_name.items():
            waiting.add_metric([name], model.batcher.waiting)
            for size, count in model.batcher.batches.items():
                batches.add_metric([name, str(size)], count)
            for size, seconds in model.batcher.times.items():
                times.add_metric([name, str(size)], seconds)
        yield from (batches, waiting, times)
