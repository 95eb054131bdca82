"""Records metrics through the meter of Temporal's SDK, which serves them to Prometheus."""

from functools import cache
from itertools import product
from typing import Final

from temporalio.common import MetricMeter

from agent_runs.metrics.definitions import ALL, OTHER, Counter, Gauge, Histogram, Metric


class Recorder:
    """Records the metrics that `agent_runs.metrics.definitions` declares. Cheap: some microseconds for each value."""

    def __init__(self, meter: MetricMeter) -> None:
        self._counter = cache(meter.create_counter)
        self._histogram = cache(meter.create_histogram_float)
        self._gauge = cache(meter.create_gauge_float)

    def count(self, metric: Counter, number: int = 1, **labels: str) -> None:
        """Add to a counter; what is not positive is ignored, because a counter never decreases."""
        if number > 0:
            self._counter(metric.name, metric.help).add(number, bounded(metric, labels))

    def observe(self, metric: Histogram, amount: float, **labels: str) -> None:
        """Record one amount; clocks that differ may make it negative, which counts as 0."""
        self._histogram(metric.name, metric.help).record(max(amount, 0.0), bounded(metric, labels))

    def set(self, metric: Gauge, value: float, **labels: str) -> None:
        """Set a gauge; NaN when its value is not known."""
        self._gauge(metric.name, metric.help).set(value, bounded(metric, labels))

    def zero_counters(self, *, in_workflow: bool) -> None:
        """Expose every counter of ours with 0: Prometheus sees no increase in a series that begins with 1."""
        for metric in ALL:
            if isinstance(metric, Counter) and metric.in_workflow is in_workflow:
                counter = self._counter(metric.name, metric.help)
                for values in product(*metric.labels.values()):
                    counter.add(0, dict(zip(metric.labels, values, strict=True)))


NOT_RECORDED: Final = Recorder(MetricMeter.noop)
"""For a process that serves no metrics."""


def bounded(metric: Metric, labels: dict[str, str]) -> dict[str, str]:
    """The labels with values that the metric lists.

    Raises:
        KeyError: the metric has no such label.
    """
    return {name: value if value in metric.labels[name] else OTHER for name, value in labels.items()}


def histogram_buckets() -> dict[str, tuple[float, ...]]:
    """The bounds of each histogram, for the exporter."""
    return {metric.name: metric.buckets for metric in ALL if isinstance(metric, Histogram)}
