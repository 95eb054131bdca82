"""What an agent does not get is a warning, seen wherever people look: while the agent works and afterwards."""

import html
import io
from typing import Any

import pytest
from rich.console import Console
from temporalio.api.sdk.v1 import WorkflowMetadata

from agent_runs.cli import runs
from agent_runs.cli.display import TextDisplay
from agent_runs.client.attach import Ticket
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.start import HostTexts
from agent_runs.web.render import Templates
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.run_view import RunViews
from tests.runs.system import System, attempt_key

UNREADABLE = "instructionsFilePath not readable"


async def details(system: System, ticket: Ticket) -> str:
    """The current details, which Temporal's Web UI shows."""
    handle = ticket.handle(system.temporal)
    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(metadata.current_details)


async def header(system: System, run: RunKey) -> str:
    view = await RunViews(system.store, TemporalRunInfo(system.temporal, system.settings)).view(run)
    return html.unescape(Templates().html("run_header.html", view=view))


async def shown(system: System, run_id: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `agent-runs show` prints."""
    for name, value in system.environment.items():
        monkeypatch.setenv(name, value)
    text = io.StringIO()
    await runs.show(run_id, TextDisplay(console=Console(file=text, width=400)))
    return text.getvalue()


@pytest.mark.parametrize(
    ("host", "warning"),
    [
        (HostTexts(), "Instructions are not in the prompt: only Paperclip's plugin reads files for a run"),
        (HostTexts(instructions="", notes=(f"{UNREADABLE}: no such file",)), UNREADABLE),
    ],
    ids=["nobody reads them", "the plugin could not"],
)
async def test_unread_instructions_are_a_warning_wherever_people_look(
    system: System, host: HostTexts, warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = waiting_agent(system)
    raw["config"]["instructionsFilePath"] = "/paperclip/AGENTS.md"
    seen = await places(system, raw, host, monkeypatch)
    assert [place for place, text in seen.items() if text.count(warning) != 1] == []
    assert "**warning**: `" + warning in seen["current details"]


async def test_a_misspelt_field_and_a_variable_without_effect_are_warnings_wherever_people_look(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = waiting_agent(system)
    raw["config"]["timeoutSecs"] = 5
    raw["config"]["env"]["OPENCODE_PERMISSION"] = '{"*": "ask"}'
    seen = await places(system, raw, HostTexts(), monkeypatch)
    for warning in ("config.timeoutSecs is not known: did you mean timeoutSec?", "config.env.OPENCODE_PERMISSION: no"):
        assert [place for place, text in seen.items() if text.count(warning) != 1] == []


def waiting_agent(system: System) -> dict[str, Any]:
    """An agent that works until `places` has looked at it."""
    go = system.programs / "go"
    go.unlink(missing_ok=True)
    raw = system.agent("cat > /dev/null; echo begun; until [ -e $GO ]; do sleep 0.05; done")
    raw["config"]["env"]["GO"] = str(go)
    return raw


async def places(
    system: System, raw: dict[str, Any], host: HostTexts, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What people see of a run of `waiting_agent`, by the place where they look."""
    ticket, run_id = await system.start(raw, host), raw["runId"]
    await system.until_stored(raw)
    seen = {
        "current details": await details(system, ticket),
        "page": await header(system, attempt_key(raw).run),
        "show": await shown(system, run_id, monkeypatch),
    }
    (system.programs / "go").touch()
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    return seen | {
        "current details of the ended run": await details(system, ticket),
        "page of the ended run": await header(system, attempt_key(raw).run),
        "show of the ended run": await shown(system, run_id, monkeypatch),
        "outcome": "\n".join(outcome.warnings),
    }
