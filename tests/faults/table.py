"""`python -m tests.faults.table`: docs/guarantees.md from the results of a real run of all rows."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dev_stack.agent_programs import PROGRAMS
from tests.faults.checks import COLUMNS, RESULTS, RowResult
from tests.faults.rows import rows
from tests.faults.scenarios import Row

PAGE: Final = Path(__file__).parents[2] / "docs" / "guarantees.md"
OPENING: Final = """# Guarantees

What can go wrong, and what is guaranteed all the same. Generated from the results of a run of `tests/faults`; do not
edit.

    TEST_ALL_AGENTS=1 .venv/bin/pytest tests/faults -m "slow or not slow"
    .venv/bin/python -m tests.faults.table

Every row is a run on the embedded cluster with a real Temporal server and workers in processes of their own. The
agent numbers its lines and notes each of them, each of its starts and whether two of it run at a time; the fault comes
after a random number of lines, whose seed is the row's name. In the tables of OpenCode's servers and of claimed pods it
is the real OpenCode behind its server (`transport: serve`) with a scripted model, and each line is the output of a
tool; a claimed pod has rested after an earlier run of the agent, and may rest again. The same checks read what each row
leaves:

- **one Job per attempt**: Jobs that were ever created, by name and uid, and starts noted by the agent. The number is
  that of Jobs.
- **no line lost or doubled**: stored lines against noted ones, and the receipt. The number is that of the last
  attempt's lines. *gap*: lines were lost with the pod; the receipt does not say `verified`.
- **right name**: the outcome's name and those of all attempts are the row's, with a message and a next step.
- **nothing left over**: Jobs, pods, Secrets and processes of the agent.
- **ends in bounded time**: seconds from attach to the outcome, mostly Temporal's time-outs: 10 to 30 s for a
  heartbeat, 60 s for a step that has none, 10 s before the next attempt.
- **secrets absent**: token, environment, MCP header and prompt hold canaries. They are found in the agent's Secrets,
  and not in histories, transcript store, logs of workers and callers, nor any state of Jobs and pods.
"""

OF_AGENTS: Final = """## Other agents

The same checks of runs with the real programs that speak the Agent Client Protocol, and a scripted model. Each line is
the output of a tool; what is done while lines come, comes in the third of four tools. "All hold" means the six columns
of the tables above; the numbers are Jobs, lines of the last attempt, and seconds from attach to the outcome. The key of
the model's provider is one more canary.

- Gemini CLI does not report what a command prints: its lines are the commands that it reports as completed.
- pi takes no MCP server, so its pod has no header of one.
"""
UNITS: Final = {"one_job": "Job", "lines": "line"}

REAL: Final = """## On a real cluster

`tests/real_cluster` repeats these on Kubernetes 1.37 with the real OpenCode in real containers; CI runs it where the
cluster kit is there. In the rows about lost pods, nodes and memory each agent's steps are numbered, and a watch of its
pods sees every state: one Job and one agent per attempt, no pod of a later attempt while an agent is alive, each step
stored once and in order, nothing left over.

| what is done | outcome |
| --- | --- |
| 50 callers of two processes wake one agent at once | one workflow, one Job |
| cancel while the agent writes | `cancelled`; the session is kept |
| somebody deletes the pod | `k8s_pod_lost`, then the next attempt succeeds |
| the pod is evicted through the API, as by `kubectl drain` | the same |
| the kubelet evicts the pod, which wrote more than its limit of disk | `disk_limit_exceeded`, one attempt |
| a pod of a higher priority class preempts it | `k8s_pod_lost`, then the next attempt succeeds |
| its node is disconnected until Kubernetes deletes the pod, and comes back | the same, with the same session |
| its node is disconnected for a while, and comes back | the same pod continues; `succeeded` |
| a run is joined by a later one | 409 before, 200 after; no token in the agent's container |
| the agent's container or OpenCode (memory) is killed | the Job fails; the sidecar exits 0 |
| OpenCode is killed for the container's memory limit | `oom_killed`, one attempt |
| a tool is killed for that limit, and OpenCode continues to its end | `succeeded`, a note once its status is read |
| kubelet and API server are killed repeatedly, connections cut, workers killed | every line once |
| kubelet or API server is killed while a pod rests, or while it works for the next run | that run, in that pod |
| one of them is away when the pod is to get the prompt, or when it has it and answers | the same |
| each other agent in its image, twice | `succeeded`, one session, the model's tokens; no key in a Job or pod |

Observed there:

- **A disconnected node keeps its agent.** It continues, and what it writes is read when the kubelet is back. The pod of
  a lost node stays, being deleted, until its kubelet reports that it has ended; only then the next attempt begins.
  Whoever deletes it by force (`--force --grace-period=0`), or the Node object, prevents that report: then two agents
  may run.
- **A cluster without any ready node deletes no pod**: it takes itself to be disconnected. With only one node nothing is
  evicted, however long it is disconnected.
- **A restarted kubelet mounts a running pod's volumes once more**, and does nothing for the pod while one of them
  cannot be mounted: it does not end it, report its end, nor remove it (until 1.21). So all volumes of Secrets are
  optional: the prompt is deleted once the agent has it, and the others with the Job.
- **A kubelet that comes back to a deleted pod removes its log within a second or two of its end.** So the log of a pod
  that is being deleted is requested every half second at least; what was written while the node was disconnected is
  read.
- **An evicted pod has no container statuses**: phase `Failed`, reason `Evicted`, and nothing about the agent's end.
- **The memory limit ends the largest process, not the container** (cgroup v1, or `singleProcessOOMKill`). The runtime
  marks the container `OOMKilled` for good, also when OpenCode continues and exits 0. That counts as success where the
  last step ended with `stop` and the receipt is `verified`; everything else stays `oom_killed`.
"""


def page(table: Iterable[Row], results_by_row: dict[str, RowResult]) -> str:
    groups: dict[str, list[Row]] = {}
    of_agents: list[Row] = []
    for row in table:
        (of_agents if row.agent else groups.setdefault(row.fault, [])).append(row)
    parts = [group(name, members, results_by_row) for name, members in groups.items()]
    return "\n".join([OPENING, *parts, by_agent(of_agents, results_by_row), REAL])


def group(name: str, members: list[Row], results_by_row: dict[str, RowResult]) -> str:
    head = ["row", "what is done", "outcome", *COLUMNS.values(), "s"]
    lines = [f"## {name[0].upper()}{name[1:]}", "", cells(head), cells("---" for _ in head)]
    lines += [cells(line(row, results_by_row[row.name])) for row in members]
    return "\n".join([*lines, ""])


def by_agent(members: list[Row], results_by_row: dict[str, RowResult]) -> str:
    """A line for each fault and a column for each agent."""
    faults: dict[str, list[Row]] = {}
    for row in members:
        faults.setdefault(row.name.removeprefix(f"{row.agent}-"), []).append(row)
    agents = [row.agent for row in next(iter(faults.values()))]
    lines = [OF_AGENTS, cells(["row", "what is done", *agents]), cells("---" for _ in range(2 + len(agents)))]
    for fault, rows_of_fault in faults.items():
        results_of_fault = [cell(results_by_row[row.name]) for row in rows_of_fault]
        lines.append(cells([f"`{fault}`", rows_of_fault[0].action, *results_of_fault]))
    return "\n".join([*lines, ""])


def cell(result: RowResult) -> str:
    """One fault of one agent: its outcome, then what does not simply hold, then the numbers."""
    columns = result.columns
    held = [f"{COLUMNS[name]}: {text}" for name, text in columns.items() if not text.startswith("yes")] or ["all hold"]
    numbers = {unit: columns[name].removeprefix("yes: ") for name, unit in UNITS.items()}
    counted = [f"{number} {unit}{'s' * (number != '1')}" for unit, number in numbers.items() if number.isdigit()]
    return f"`{result.outcome}`, {'; '.join(held)} ({', '.join([*counted, f'{result.seconds:.0f} s'])})"


def line(row: Row, row_result: RowResult) -> list[str]:
    columns = [row_result.columns[name] for name in COLUMNS]
    return [f"`{row.name}`", row.action, f"`{row_result.outcome}`", *columns, f"{row_result.seconds:.0f}"]


def cells(texts: Iterable[str]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


def results() -> dict[str, RowResult]:
    return {file.stem: RowResult(**json.loads(file.read_text())) for file in RESULTS.glob("*.json")}


def rows_of(document: str) -> list[str]:
    """The names of the rows of a rendered document."""
    names, agents = [], [""]
    for line in document.splitlines():
        if line.startswith("| row |"):
            agents = [f"{agent}-" for agent in line.strip("| ").split(" | ")[2:] if agent in PROGRAMS] or [""]
        elif line.startswith("| `"):
            names += [f"{agent}{line.split('`')[1]}" for agent in agents]
    return names


def main() -> None:
    """Writes the page.

    Raises:
        SystemExit: a row has no result.
    """
    table, results_by_row = rows(), results()
    if missing := [name for name in table if name not in results_by_row]:
        sys.exit(f'no result of {", ".join(missing)}: run pytest tests/faults -m "slow or not slow" first')
    PAGE.write_text(page(table.values(), results_by_row))


if __name__ == "__main__":
    main()
