"""Claims of one pod that rests, as workers make them."""

import asyncio
import base64
import json
from typing import Any

from agent_runs.contracts.outcome import Outcome
from agent_runs.job.resting_pods import CLAIM_COMMAND, Answer, ask
from agent_runs.kube.objects import Job
from agent_runs.kube.ownership import job_ref
from dev_stack.cluster.kinds import SECRETS
from tests.runs.real_opencode import later
from tests.runs.system import System
from tests.support.ends import assert_whole

NOT_OF_A_CLAIM = frozenset({"keep_warm", "max_age", "max_memory", "pod", "variables"})
"""What the sidecar's turn.json has besides the turn."""


async def one_claim_wins(system: System, job: Job) -> None:
    """Claim the Job's pod for five runs at once and for another configuration; deletes the Job."""
    cluster, namespace = system.kubernetes, job.metadata.namespace
    secret = system.embedded.store.get(SECRETS, namespace, f"{job.metadata.name}-run")
    known = json.loads(base64.b64decode(secret["data"]["turn.json"]))
    turn = {**{name: known[name] for name in known.keys() - NOT_OF_A_CLAIM}, "text": "Hello"}
    content = {"pod": known["pod"], "turn": turn, "environment": {}, "paths": {}, "tokens": {}}

    async def claim(number: int, **changes: Any) -> Answer:
        return await ask(cluster, job_ref(job), CLAIM_COMMAND, {"id": f"run-{number}/1", **content, **changes})

    other = await claim(0, pod="another")
    assert (other.accepted, other.reason) == (False, "the pod is made for another configuration")
    answers = await asyncio.gather(*map(claim, range(1, 6)))
    (winner,) = [number for number, answer in enumerate(answers, 1) if answer.accepted]
    again = await claim(winner)
    assert (again.accepted, again.first) == (True, answers[winner - 1].first)
    await cluster.delete_job(namespace, job.metadata.name, job.metadata.uid)


async def next_run_in_its_own_pod(system: System, raw: dict[str, Any], outcome: Outcome, resting: Job) -> Outcome:
    """The next run, which succeeds in its first attempt, and not in the pod that rested."""
    following = await system.outcome(later(raw, outcome, {"text": "Two."}))
    assert_whole(following, "Two.")
    (attempt,) = following.attempts
    assert attempt.job_name != resting.metadata.name
    return following
