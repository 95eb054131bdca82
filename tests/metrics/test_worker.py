"""What a real worker exposes while it runs agents, and what it logs."""

import json
import signal
from pathlib import Path

from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.metrics.definitions import ALL, Counter, Histogram
from tests.metrics.scrape import environment, free_address, until, until_sampled
from tests.runs.system import open_system, replay_script
from tests.service.test_life import started

EVERY_METRIC = {metric.exposed for metric in ALL}


async def test_a_worker_exposes_every_metric_of_the_table_and_none_besides_with_bounded_labels(
    temporal: Client, tmp_path: Path
) -> None:
    metrics = free_address()
    async with open_system(temporal, tmp_path) as system, started(environment(system, metrics)) as process:
        before = await until_sampled(metrics)
        raw = system.agent(replay_script("tool-bash"))
        outcome = await outcome_at_close((await system.start(raw)).handle(temporal))
        after = await until(metrics, "agent_runs_ended_total", outcome="succeeded")
        failed = system.agent("cat > /dev/null; exit 3")
        await outcome_at_close((await system.start(failed)).handle(temporal))
        after = await until(metrics, "agent_runs_ended_total", outcome="failed")
        process.send_signal(signal.SIGTERM)
        log, errors = await process.communicate()
    ours = {name for name in after.types if name.startswith("agent_runs_")}
    assert ours == EVERY_METRIC
    for metric in ALL:
        suffix = "_count" if isinstance(metric, Histogram) else ""
        series = [each for each in after.values if each.name == metric.exposed + suffix]
        for each in series:
            given = {name: value for name, value in each.labels if name in metric.labels}
            foreign = {name for name, _ in each.labels} - set(metric.labels)
            assert all(value in metric.labels[name] for name, value in given.items()), each
            of_the_sdk = {"namespace", "task_queue", "workflow_type"} if metric.in_workflow else set()
            assert foreign == {"service_name"} | of_the_sdk
        if isinstance(metric, Counter):
            counted = [each for each in before.values if each.name == metric.exposed]
            assert set(counted) == set(series), "a counter is exposed with 0 before its first event"
    assert outcome.usage is not None
    assert after.value("agent_runs_tokens_total", kind="input", model="other") == outcome.usage.input_tokens
    assert after.value("agent_runs_output_lines_total") >= 6
    assert after.value("agent_runs_failures_total") == 1
    exposed = str([*after.values])
    for name in (raw["runId"], raw["agent"]["id"], failed["runId"], failed["agent"]["id"]):
        assert name not in exposed
    assert errors == b""
    assert [json.loads(line) for line in log.splitlines()]
