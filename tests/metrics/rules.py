"""The alerts of deploy/, and whether one fires for what scrapes show one after the other, as Prometheus decides."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from agent_runs.metrics.definitions import ALL, Histogram, Metric
from tests.metrics.scrape import Scrape, Series

FILE: Final = Path(__file__).parents[2] / "deploy" / "components" / "monitoring" / "rules.yaml"
SPEC: Final[dict[str, Any]] = yaml.safe_load(FILE.read_text())["spec"]
RULES: Final[list[dict[str, Any]]] = [rule for group in SPEC["groups"] for rule in group["rules"]]
ALERTS: Final = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED: Final = {rule["record"] for rule in RULES if "record" in rule}
PROMTOOL: Final = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)")

HEALTHY_MINUTES: Final = 31
"""How long the first scrape stays as it was: longer than the longest range of a rule."""
STEP_MINUTES: Final = 2
OF_THE_SDK: Final = frozenset(
    {
        "temporal_worker_task_slots_available",
        "temporal_worker_task_slots_used",
        "temporal_workflow_task_execution_failed_total",
        "temporal_activity_execution_failed_total",
        "temporal_request_failure_total",
        "temporal_activity_schedule_to_start_latency_seconds_bucket",
        "temporal_num_pollers",
    }
)
"""Those of Temporal's SDK that are used here."""
_METRIC: Final = re.compile(r"\b(?:agent_runs|temporal)_?:?[a-z0-9_:]+")
CHECK_MINUTES: Final = 7
"""From the last scrape, in addition to the alert's `for`: longer than Prometheus takes a vanished series to exist."""


def assert_fires(alert: str, scrapes: Sequence[Scrape], folder: Path) -> None:
    """Fails unless the alert is silent at first and fires after the last of these scrapes."""
    minutes = [HEALTHY_MINUTES, *[STEP_MINUTES] * (len(scrapes) - 2), 60]
    held = int(ALERTS[alert].get("for", "0m").removesuffix("m"))
    fires_at = sum(minutes[:-1]) + held + CHECK_MINUTES
    state = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": str(series), "values": _values(series, scrapes, minutes)}
            for series in sorted({each for scrape in scrapes for each in scrape.values}, key=str)
            if series.name.startswith(("agent_runs_", "temporal_worker_task_slots", "temporal_workflow_task_exec"))
        ],
        "promql_expr_test": [
            {
                "expr": f"count({state}) > bool 0 or vector(0)",
                "eval_time": f"{at}m",
                "exp_samples": [{"labels": "{}", "value": value}],
            }
            for at, value in ((HEALTHY_MINUTES - 1, 0), (fires_at, 1))
        ],
    }
    run_promtool(folder, test)


def run_promtool(folder: Path, test: dict[str, Any]) -> None:
    """`promtool test rules` with one test; fails with what it prints."""
    (folder / "rules.json").write_text(json.dumps(SPEC))
    (folder / "test.json").write_text(json.dumps({"rule_files": ["rules.json"], "tests": [test]}))
    command = [str(PROMTOOL), "test", "rules", "test.json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def _values(series: Series, scrapes: Sequence[Scrape], minutes: Sequence[int]) -> str:
    parts = []
    for scrape, length in zip(scrapes, minutes, strict=True):
        value = scrape.values.get(series)
        parts += ["_"] * length if value is None else [f"{value:f}".rstrip("0").rstrip(".")] * length
    return " ".join(_with_stale_markers(parts))


def _with_stale_markers(parts: list[str]) -> list[str]:
    """Where a series ends, its last scrape leaves a marker."""
    pairs = zip(["_", *parts], parts, strict=False)
    return ["stale" if now == "_" and before != "_" else now for before, now in pairs]


def unknown_metrics(expression: str) -> set[str]:
    """Names of metrics in a query that neither a worker exposes nor a rule records."""
    series = {f"{metric.exposed}{suffix}" for metric in ALL for suffix in _suffixes(metric)} | RECORDED | OF_THE_SDK
    return set(_METRIC.findall(expression)) - series


def _suffixes(metric: Metric) -> tuple[str, ...]:
    return ("_bucket", "_sum", "_count") if isinstance(metric, Histogram) else ("",)
