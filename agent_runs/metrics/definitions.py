"""Every metric of ours, with its labels and all of their values.

The set of series is bounded: a label is never an id, a name that somebody chooses, or a text of an agent, and a value
that is not listed here is recorded as `other`. Names follow Prometheus' conventions; counters are declared without
`_total`, which the SDK's exporter adds.

Source: prometheus.io, Metric and label naming.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from agent_runs.contracts.errors import FAILURES

OTHER: Final = "other"
"""The value of a label that is not one of those listed."""
Labels: TypeAlias = Mapping[str, tuple[str, ...]]

MODELS: Final = (
    "anthropic/claude-opus-5",
    "openai/gpt-5.6-sol",
    "openai/gpt-5.6-terra",
    "openai/gpt-5.6-luna",
    "openai/gpt-5.5",
    "openai/gpt-5.4",
    "openai/gpt-5.4-mini",
    "openai/gpt-5.2-codex",
    OTHER,
)
"""Models that metrics name: those of the price table (a test compares them)."""
CODES: Final = (*FAILURES, OTHER)
"""Names of failures."""
QUICK: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds in seconds of what should take less than a second."""
WAITS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bounds in seconds of what a person waits for."""
DURATIONS: Final = (10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0)
"""Bounds in seconds of whole runs."""
TRANSACTIONS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds in seconds of one transaction of the store."""
COSTS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0)
"""Bounds in USD."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as it is declared to the SDK.
        help: one sentence for people.
        labels: the values of each label.
        in_workflow: recorded by workflow code, where the SDK adds `namespace`, `task_queue` and `workflow_type`.
    """

    name: str
    help: str
    labels: Labels = field(default_factory=dict)
    in_workflow: bool = False

    @property
    def exposed(self) -> str:
        """The name as Prometheus sees it, without the suffixes of a histogram's series."""
        return self.name


@dataclass(frozen=True)
class Counter(Metric):
    """Counts events; every series is exposed with 0 from the worker's start, so that the first event is an increase."""

    @property
    def exposed(self) -> str:
        return f"{self.name}_total"


@dataclass(frozen=True)
class Gauge(Metric):
    """A state, sampled; NaN while it is not known."""


@dataclass(frozen=True)
class Histogram(Metric):
    """The distribution of amounts, exposed with `_bucket`, `_sum` and `_count` from the first one on."""

    buckets: tuple[float, ...] = ()


# runs, recorded by the workflow

RUNS_STARTED: Final = Counter("agent_runs_started", "Runs that a worker has begun.", in_workflow=True)
OUTCOMES: Final = ("succeeded", "failed", "timed_out", "cancelled")
RUNS_ENDED: Final = Counter(
    "agent_runs_ended", "Runs that have their outcome.", {"outcome": (*OUTCOMES, OTHER)}, in_workflow=True
)
FAILED_RUNS: Final = Counter(
    "agent_runs_failures", "Runs that ended with a failure, by its name.", {"code": CODES}, in_workflow=True
)
RETRIES: Final = Counter(
    "agent_runs_retries",
    "Further attempts of a run, by the name of what ended the one before.",
    {"code": CODES},
    in_workflow=True,
)
CONTRADICTED_ENDS: Final = Counter(
    "agent_runs_contradicted_ends",
    "Agents that ended with exit code 0 according to their process, but not according to their container's status.",
    in_workflow=True,
)
RUN_DURATION: Final = Histogram(
    "agent_runs_duration_seconds",
    "From a run's start to its outcome.",
    {"outcome": (*OUTCOMES, OTHER)},
    in_workflow=True,
    buckets=DURATIONS,
)
QUEUE_WAIT: Final = Histogram(
    "agent_runs_queue_wait_seconds",
    "From a run's start until a worker begins it, by Temporal's clock.",
    in_workflow=True,
    buckets=QUICK,
)
DISPATCH: Final = Histogram(
    "agent_runs_dispatch_seconds",
    "From a run's start until its agent is seen running, less the cluster's own time (from its pod's creation to its "
    "container's start). Kubernetes has whole seconds, so one value may be a second off. First attempts only.",
    in_workflow=True,
    buckets=WAITS,
)
TOKENS: Final = Counter(
    "agent_runs_tokens",
    "Tokens of runs that have ended.",
    {"kind": ("input", "cached_input", "cache_write", "output"), "model": MODELS},
    in_workflow=True,
)
COST: Final = Histogram(
    "agent_runs_cost_usd",
    "Cost of a run that has ended and whose cost is known; `_sum` is what was spent.",
    {"model": MODELS},
    in_workflow=True,
    buckets=COSTS,
)

# the agent's pod and its output, recorded by activities

SCHEDULING_WAIT: Final = Histogram(
    "agent_runs_scheduling_wait_seconds",
    "From the creation of an agent's pod until a node has taken it, by the cluster's clock in whole seconds.",
    buckets=WAITS,
)
START_WAIT: Final = Histogram(
    "agent_runs_start_wait_seconds",
    "From there until the agent's container has started (image, volumes), by the cluster's clocks in whole seconds.",
    buckets=WAITS,
)
FIRST_LINE: Final = Histogram(
    "agent_runs_first_line_seconds",
    "From the start of the agent's container until its first line on stdout is stored.",
    buckets=WAITS,
)
LINE_DELAY: Final = Histogram(
    "agent_runs_line_delay_seconds",
    "From when a line was written, by its node's clock, until it is stored; of each batch its newest line.",
    buckets=QUICK,
)
OUTPUT_LINES: Final = Counter("agent_runs_output_lines", "Lines of agents that were stored.")
OUTPUT_BYTES: Final = Counter("agent_runs_output_bytes", "Bytes of those lines, as agents wrote them.")
OUTPUT_GAPS: Final = Counter("agent_runs_output_gaps", "Places in transcripts where output is missing.")
RECONNECTS: Final = Counter(
    "agent_runs_log_reconnects", "Further connections to the log of an agent that is already followed."
)

# the store, recorded by its database

STORE_OPERATIONS: Final = ("read", "write")
STORE_DURATION: Final = Histogram(
    "agent_runs_store_seconds",
    "One transaction of the transcript store, with its wait for a connection.",
    {"operation": STORE_OPERATIONS},
    buckets=TRANSACTIONS,
)
STORE_ERRORS: Final = Counter(
    "agent_runs_store_errors", "Transactions of the transcript store that failed.", {"operation": STORE_OPERATIONS}
)

# samples

PHASES: Final = ("preparing", "scheduling", "running", "ended")
OPEN_RUNS: Final = Gauge(
    "agent_runs_open_runs",
    "Open runs of the namespace by phase, according to Temporal; every worker reports the same. `preparing`: also runs "
    "that no worker has begun; `ended`: their outcome waits for its caller.",
    {"phase": PHASES},
)
CHECKS: Final = ("temporal", "polling", "transcripts", "cluster")
CHECK_OK: Final = Gauge(
    "agent_runs_check_ok", "1 while this check of `/readyz` is ok, else 0.", {"check": (*CHECKS, OTHER)}
)

ALL: Final[tuple[Metric, ...]] = (
    *(RUNS_STARTED, RUNS_ENDED, FAILED_RUNS, RETRIES, CONTRADICTED_ENDS, RUN_DURATION, QUEUE_WAIT, DISPATCH),
    *(TOKENS, COST, SCHEDULING_WAIT, START_WAIT, FIRST_LINE, LINE_DELAY, OUTPUT_LINES, OUTPUT_BYTES, OUTPUT_GAPS),
    *(RECONNECTS, STORE_DURATION, STORE_ERRORS, OPEN_RUNS, CHECK_OK),
)
