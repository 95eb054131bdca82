"""docs/metrics.md: metrics, objectives and alerts, from their declarations.

`python -m dev_stack.metrics_page` rewrites the committed page; a test keeps it fresh.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from agent_runs.metrics.definitions import ALL, CODES, MODELS, Histogram, Metric
from agent_runs.service.sampling import INTERVAL
from dev_stack.markdown import table

ROOT: Final = Path(__file__).parents[1]
PAGE_FILE: Final = ROOT / "docs" / "metrics.md"
RULES_FILE: Final = ROOT / "deploy" / "components" / "monitoring" / "rules.yaml"

_INTRODUCTION: Final = f"""# Metrics, objectives and alerts

`AGENT_RUNS_METRICS_LISTEN=IP:PORT` (off by default; 9464 in `deploy/`) serves our metrics and those of Temporal's SDK
at `/metrics` for Prometheus. `python -m dev_stack.metrics_page` writes this page from the declarations; a test compares
them with the scrape of a worker.

`deploy/components/monitoring` has what the Prometheus Operator and Grafana need: a PodMonitor, the rules below and a
dashboard in a ConfigMap. List it among the `components` of an overlay whose cluster has the operator:

    components:
      - ../../../components/monitoring

## Metrics
- Labels are bounded: no id, no name that somebody chooses, no text of an agent. What a label does not list is `other`.
- A run counts once, where a worker decides on it. A worker that is killed in that moment may count it twice, or lose
  what it had counted since the last scrape. The exact numbers of a run are in its outcome.
- Counters begin with 0, so that the first event is an increase. Histograms appear with their first value, which
  Prometheus' `rate` does not see.
- Metrics of runs also have the SDK's labels `namespace`, `task_queue` and `workflow_type`.
- Samples (gauges) are taken every {INTERVAL.total_seconds():.0f} s.

"""
_SDK: Final = {
    'temporal_worker_task_slots_available{worker_type="ActivityWorker"}': "free activity slots",
    "temporal_activity_schedule_to_start_latency_seconds": "how long steps wait for a worker",
    "temporal_activity_execution_failed_total": "activity attempts that failed, and are mostly retried",
    "temporal_workflow_task_execution_failed_total": "a bug in workflow code, or a change without a patch",
    "temporal_request_failure_total": "Temporal refuses or is away",
    "temporal_num_pollers": "0: the same as a failing check `polling`",
}
_ALERTS: Final = """
## Alerts
Each one fires in a test, for what a worker exposes after a real fault. The link of an alert is the path of this page:
set `runbook_url` to where you publish it.
"""
_KINDS: Final = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}
_LONG_LISTS: Final = {CODES: "a failure's name, `other`", MODELS: "a model of the price table, `other`"}


def page_text() -> str:
    rules = yaml.safe_load(RULES_FILE.read_text())["spec"]["groups"]
    alerts = [rule for group in rules for rule in group["rules"] if "alert" in rule]
    return "".join([
        _INTRODUCTION,
        table(["metric", "type", "unit", "labels", "what"], map(_row, ALL)),
        "\nOf Temporal's own metrics, worth a look:\n\n",
        table(["metric", "meaning"], ([f"`{name}`", meaning] for name, meaning in _SDK.items())),
        "\n## Objectives\n",
        table(["recorded", "objective", "alert"], _objectives(alerts)),
        _ALERTS,
        *map(_alert, alerts),
    ])  # fmt: skip


def _row(metric: Metric) -> tuple[str, ...]:
    labels = (f"`{name}`: {_values(values)}" for name, values in metric.labels.items())
    kind = _KINDS[type(metric).__name__]
    return f"`{metric.exposed}`", kind, _unit(metric), "; ".join(labels), metric.help


def _values(values: tuple[str, ...]) -> str:
    return _LONG_LISTS.get(values) or ", ".join(f"`{value}`" for value in values)


def _unit(metric: Metric) -> str:
    last = metric.name.rpartition("_")[2]
    return {"seconds": "s", "usd": "USD", "bytes": "bytes"}.get(last, "" if isinstance(metric, Histogram) else "1")


def _objectives(alerts: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for alert in alerts:
        recorded, _, rest = alert["expr"].partition(" > ")
        if recorded.startswith("agent_runs:"):
            yield f"`{recorded}`", f"at most {rest.split()[0]} s", f"`{alert['alert']}`"


def _alert(alert: dict[str, Any]) -> str:
    notes = alert["annotations"]
    wait = f", for {alert['for']}" if "for" in alert else ""
    return "\n".join(
        [
            "",
            f"### {alert['alert']}",
            f"{alert['labels']['severity'].capitalize()}. {notes['summary']}",
            "",
            f"    {' '.join(alert['expr'].split())}{wait}",
            "",
            f"Next step: {notes['next_step']}",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE_FILE.write_text(page_text())
