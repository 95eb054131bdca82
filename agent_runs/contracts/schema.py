"""Exports the contracts as one JSON Schema document, from which `adapter/` generates its TypeScript types.

`python -m agent_runs.contracts.schema` rewrites the committed file; a test keeps it fresh.
"""

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agent_runs.contracts import messages, start, updates
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import RunRequest

SCHEMA_FILE: Final = Path(__file__).with_name("schema.json")

CALLER_CONTRACTS: Final[tuple[type[BaseModel], ...]] = (
    start.RunStart,
    start.SealedRun,
    start.SealedJoin,
    start.CheckStart,
    start.SealedCheck,
    start.CheckReport,
    Outcome,
    updates.Join,
    updates.Joined,
    start.SealedMessage,
    updates.Tell,
    updates.Question,
    updates.Answer,
    updates.Delivery,
)
ACTIVITY_CONTRACTS: Final[tuple[type[BaseModel], ...]] = (
    messages.PrepareRun,
    RunRequest,
    messages.IntrospectPod,
    messages.PodProfile,
    messages.BundlePrompt,
    messages.PromptBundle,
    messages.CreateJob,
    messages.JobRef,
    messages.RotateToken,
    messages.TellAgent,
    messages.AwaitSchedule,
    messages.StartProgress,
    messages.PodRef,
    messages.StreamLogs,
    messages.Ended,
    messages.OverBudget,
    messages.StreamProgress,
    messages.ParseTranscript,
    messages.Silence,
    messages.OverQuota,
    messages.StopAgent,
    messages.EndJob,
    messages.KeepJob,
    messages.EndUnreportedJob,
    messages.Finished,
)


def json_schema() -> dict[str, Any]:
    """Returns every contract under `$defs`, in the form that is read from the wire (validation mode)."""
    models = [(model, "validation") for model in (*CALLER_CONTRACTS, *ACTIVITY_CONTRACTS)]
    _, document = models_json_schema(models, title="agent-runs contracts")  # type: ignore[arg-type]  # literal widened
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text())
