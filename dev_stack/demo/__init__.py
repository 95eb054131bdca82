"""The demonstration: a real Paperclip execution context, tokens replaced, whose task a scripted model can play."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agent_runs.contracts.request import SessionParams

HERE: Final = Path(__file__).parent
AGENT: Final = "b1677834-f306-4a0e-9c14-97a6dc937575"
"""The agent in `context.json`. One agent runs once at a time, so a second demonstration at once is another agent."""


def context(scenario: str = "script", agent_id: str = AGENT) -> dict[str, Any]:
    """The execution context of a new run, as Paperclip would hand it over.

    Args:
        scenario: what the scripted model plays; `script` takes its lines from the task's description.
        agent_id: also names the agent's workspace on the data volume.
    """
    run_id = str(uuid.uuid4())
    text = (HERE / "context.json").read_text(encoding="utf-8").replace(AGENT, agent_id)
    raw: dict[str, Any] = json.loads(text)
    raw["runId"] = raw["context"]["executionIdentityRunId"] = run_id
    raw["config"]["model"] = f"fake/scenario/{scenario}"
    raw["config"]["workspace"] = "ephemeral"  # a real cluster may have no data volume; nobody needs these files
    return raw


def later_context(raw: Mapping[str, Any], session: SessionParams | None) -> dict[str, Any]:
    """The execution context of the agent's next wake for the same task, with the session of the one before."""
    run_id = str(uuid.uuid4())
    stored = None if session is None else session.model_dump(by_alias=True)
    return {
        **raw,
        "runId": run_id,
        "runtime": {**raw["runtime"], "sessionParams": stored},
        "context": {**raw["context"], "executionIdentityRunId": run_id},
    }
