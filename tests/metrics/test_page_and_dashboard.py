"""docs/metrics.md and the dashboard say what is declared and exposed."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agent_runs.metrics.definitions import ALL, MODELS, OTHER, STORE_DURATION, TOKENS, Histogram, Metric
from agent_runs.metrics.recorder import bounded
from agent_runs.transcript.pricing import PRICES
from dev_stack import dashboard, metrics_page
from tests.metrics.rules import ALERTS, SPEC, unknown_metrics
from tests.support.cases import case

QUERIES = [query for row in dashboard.ROWS.values() for panel in row for query in panel.queries.values()]


def test_the_committed_page_and_dashboard_are_fresh() -> None:
    assert metrics_page.PAGE_FILE.read_text() == metrics_page.page_text(), "run: python -m dev_stack.metrics_page"
    assert dashboard.FILE.read_text() == dashboard.file_text(), "run: python -m dev_stack.dashboard"


def test_names_follow_prometheus_conventions() -> None:
    for metric in ALL:
        with case(metric.name):
            assert re.fullmatch(r"agent_runs_[a-z]+(_[a-z]+)*", metric.name)
            assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
            assert not re.search(r"milli|minutes|hours|_ms\b|kib|mib", metric.name)
            if isinstance(metric, Histogram):
                assert metric.name.endswith(("_seconds", "_bytes", "_usd"))
                assert list(metric.buckets) == sorted(set(metric.buckets))
            assert metric.help.endswith(".")


def test_models_are_those_of_the_price_table() -> None:
    assert set(MODELS) == {*PRICES, OTHER}


def test_a_label_value_that_somebody_invents_is_other() -> None:
    assert bounded(TOKENS, {"kind": "input", "model": "fake/scenario/<script>"}) == {"kind": "input", "model": OTHER}
    with pytest.raises(KeyError):
        bounded(STORE_DURATION, {"run_id": "1"})


def test_all_series_of_a_worker_are_a_few_hundred() -> None:
    assert sum(series_of(metric) for metric in ALL) < 600


def series_of(metric: Metric) -> int:
    combinations = math.prod(map(len, metric.labels.values()))
    return combinations * (len(metric.buckets) + 3 if isinstance(metric, Histogram) else 1)


def test_every_query_of_the_dashboard_names_existing_metrics_only() -> None:
    assert QUERIES
    assert [(query, unknown) for query in QUERIES if (unknown := unknown_metrics(query))] == []


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = " ".join(QUERIES)
    assert not [metric.exposed for metric in ALL if metric.exposed not in shown]


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = json.loads(dashboard.FILE.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len({(x, y) for x, y, _, _ in places}) == len(places)
    assert all(x + width <= dashboard.WIDTH for x, _, width, _ in places)


def test_the_page_has_a_section_for_every_alert() -> None:
    page = metrics_page.PAGE_FILE.read_text()
    assert [alert for alert in ALERTS if f"\n### {alert}\n" not in page] == []


def test_the_component_adds_scraping_rules_and_dashboard_to_an_overlay(tmp_path: Path) -> None:
    component = metrics_page.RULES_FILE.parent
    overlay = component.parents[1] / "overlays" / "trial"
    paths = [os.path.relpath(each, tmp_path.resolve()) for each in (overlay, component)]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": paths[:1], "components": paths[1:]}))
    kubectl = str(Path(sys.executable).with_name("kubectl"))
    built = subprocess.run([kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(built.stdout)}
    monitor, rules = objects["PodMonitor", "agent-runs-worker"], objects["PrometheusRule", "agent-runs"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
    assert rules["spec"] == SPEC
    shown = objects["ConfigMap", "agent-runs-dashboard"]
    assert json.loads(shown["data"]["agent-runs.json"])["uid"] == "agent-runs"
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
