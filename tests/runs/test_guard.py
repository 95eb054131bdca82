"""One agent, one run, one Job, however many callers there are."""

import uuid

from agent_runs.client.outcome import outcome_at_close
from tests.runs.concurrent_attach import attach_all
from tests.runs.system import System, attempt_key

AGENT = "cat > /dev/null; echo hello; until [ -e {gate} ]; do sleep 0.05; done"


async def test_fifty_callers_of_two_processes_start_one_agent_once(system: System) -> None:
    gate = system.programs / str(uuid.uuid4())
    raw = system.agent(AGENT.format(gate=gate))
    other_task = {**raw, "context": {**raw["context"], "taskId": "another task", "taskKey": "another task"}}
    share = [system.wake(raw)] * 13
    share += [system.wake({**raw, "runId": str(uuid.uuid4())}) for _ in range(6)]
    share += [system.wake({**other_task, "runId": str(uuid.uuid4())}) for _ in range(6)]
    jobs_before = len([1 for method, path in system.embedded.requests if method == "POST" and path.endswith("/jobs")])
    tickets = await attach_all(system.temporal, system.settings.task_queue, [share, share])
    winner = next(ticket for ticket in tickets if ticket["kind"] == "started")
    gate.touch()
    handle = system.temporal.get_workflow_handle(winner["workflow_id"], run_id=winner["workflow_run_id"])
    await outcome_at_close(handle)
    jobs = [1 for method, path in system.embedded.requests if method == "POST" and path.endswith("/jobs")]
    assert len(tickets) == 50
    assert {ticket["workflow_run_id"] for ticket in tickets} == {winner["workflow_run_id"]}
    assert [ticket["kind"] for ticket in tickets].count("started") == 1
    wakes = [*share, *share]
    holder = next(each for each in wakes if each.key.run_id == winner["run_id"])
    for each, ticket in zip(wakes, tickets, strict=True):
        assert ticket["run_id"] == holder.key.run_id
        if each.key.run_id != holder.key.run_id:
            assert ticket["kind"] == ("joined" if each.start.task == holder.start.task else "busy")
        if ticket["kind"] == "busy":
            assert (ticket["holder"]["run_id"], ticket["holder"]["task"]) == (holder.key.run_id, holder.start.task)
    assert len(jobs) - jobs_before == 1
    started = attempt_key({**raw, "runId": holder.key.run_id})
    assert await system.kubernetes.read_job("default", started.job_name) is None
