"""deploy/components/monitoring/dashboard.json: what a person looks at first, as a Grafana dashboard.

`python -m dev_stack.dashboard` rewrites the committed file; a test keeps it fresh, and its queries true.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[1] / "deploy" / "components" / "monitoring" / "dashboard.json"
WIDTH: Final = 24
"""Columns of Grafana's grid."""
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        queries: PromQL by legend; `{{label}}` in a legend is the label's value.
        unit: Grafana's name of the unit.
        width: columns of 24.
        limit: a red line, the objective.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    limit: float | None = None


def _p95(metric: str) -> dict[str, str]:
    rate = f"sum by (le) (rate({metric}_bucket[$__rate_interval]))"
    return {f"p{part * 100:.0f}": f"histogram_quantile({part}, {rate})" for part in (0.5, 0.95)}


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Now": (
        Panel("Checks", {"{{check}}": "min by (check) (agent_runs_check_ok)"}, kind="stat", width=8),
        Panel("Open runs", {"{{phase}}": "max by (phase) (agent_runs_open_runs)"}, width=8),
        Panel(
            "Free activity slots",
            {"{{pod}}": 'temporal_worker_task_slots_available{worker_type="ActivityWorker"}'},
            width=8,
            limit=0,
        ),
    ),
    "Outcomes": (
        Panel("Runs ended", {"{{outcome}}": "sum by (outcome) (increase(agent_runs_ended_total[1h]))"}),
        Panel("Failures by name", {"{{code}}": "sum by (code) (increase(agent_runs_failures_total[1h])) > 0"}),
        Panel("Further attempts, by cause", {"{{code}}": "sum by (code) (increase(agent_runs_retries_total[1h])) > 0"}),
        Panel(
            "Duration of runs",
            {
                "p95, {{outcome}}": "histogram_quantile(0.95, "
                "sum by (le, outcome) (rate(agent_runs_duration_seconds_bucket[1h])))"
            },
            unit="s",
        ),
        Panel("Runs begun per minute", {"runs": "60 * sum(rate(agent_runs_started_total[5m]))"}),
        Panel("Contradicted ends", {"ends": "sum(increase(agent_runs_contradicted_ends_total[1h]))"}),
    ),
    "Waits": (
        Panel("Wait for a worker", _p95("agent_runs_queue_wait_seconds"), unit="s", limit=0.5),
        Panel("Start to running agent, without the cluster", _p95("agent_runs_dispatch_seconds"), unit="s", limit=5),
        Panel("First line", _p95("agent_runs_first_line_seconds"), unit="s", limit=15),
        Panel("Wait for a node", _p95("agent_runs_scheduling_wait_seconds"), unit="s"),
        Panel("Start of the container", _p95("agent_runs_start_wait_seconds"), unit="s"),
        Panel("From written to stored", _p95("agent_runs_line_delay_seconds"), unit="s", limit=2),
    ),
    "Output": (
        Panel("Bytes stored", {"bytes/s": "sum(rate(agent_runs_output_bytes_total[5m]))"}, unit="Bps"),
        Panel("Lines stored", {"lines/s": "sum(rate(agent_runs_output_lines_total[5m]))"}),
        Panel(
            "Gaps and reconnects",
            {
                "gaps": "sum(increase(agent_runs_output_gaps_total[1h]))",
                "reconnects": "sum(increase(agent_runs_log_reconnects_total[1h]))",
            },
        ),
        Panel(
            "Transactions of the store",
            {
                "p95, {{operation}}": "histogram_quantile(0.95, "
                "sum by (le, operation) (rate(agent_runs_store_seconds_bucket[5m])))"
            },
            unit="s",
            limit=1,
        ),
        Panel(
            "Failed transactions",
            {"{{operation}}": "sum by (operation) (increase(agent_runs_store_errors_total[1h]))"},
        ),
    ),
    "Cost": (
        Panel("Spent per day", {"{{model}}": "sum by (model) (increase(agent_runs_cost_usd_sum[1d]))"}, "currencyUSD"),
        Panel("Cost of a run", _p95("agent_runs_cost_usd"), unit="currencyUSD"),
        Panel("Tokens per hour", {"{{kind}}": "sum by (kind) (increase(agent_runs_tokens_total[1h]))"}),
    ),
    "Temporal": (
        Panel(
            "Failed requests to Temporal",
            {"{{operation}}": "sum by (operation) (rate(temporal_request_failure_total[5m])) > 0"},
        ),
        Panel(
            "Failed activity attempts",
            {"{{activity_type}}": "sum by (activity_type) (rate(temporal_activity_execution_failed_total[5m])) > 0"},
        ),
        Panel(
            "Failed workflow tasks",
            {"tasks": "sum(increase(temporal_workflow_task_execution_failed_total[10m]))"},
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it (schema of Grafana 9 and later)."""
    panels: list[dict[str, Any]] = []
    line = 0
    for title, row in ROWS.items():
        panels.append(_positioned({"type": "row", "title": title, "collapsed": False}, len(panels), 0, line, WIDTH, 1))
        line, column = line + 1, 0
        for panel in row:
            if column + panel.width > WIDTH:
                line, column = line + 8, 0
            panels.append(_positioned(_panel(panel), len(panels), column, line, panel.width, 8))
            column += panel.width
        line += 8
    return {
        "uid": "agent-runs",
        "title": "Agent runs",
        "schemaVersion": 38,
        "tags": ["agent-runs"],
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def _positioned(panel: dict[str, Any], count: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": count + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}, **panel}


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    custom = {"thresholdsStyle": {"mode": "off" if panel.limit is None else "line"}}
    defaults = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}, "custom": custom}
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def file_text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(file_text())
