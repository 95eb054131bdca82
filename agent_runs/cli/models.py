"""`agent-runs models`: the models that people are offered. Works offline."""

from pathlib import Path

from agent_runs.agents.models import suggested_models
from agent_runs.agents.profile import OPENCODE_TITLE, load
from agent_runs.cli.display import Display
from agent_runs.cli.refusals import Refused
from agent_runs.contracts.request import OPENCODE


def models(display: Display, agent: str, profiles: Path | None) -> int:
    """Show models with the agents that take them.

    Args:
        agent: only those of this agent; empty: of all.
        profiles: the operator's folder of profiles.

    Raises:
        Refused: there is no such agent.
        InvalidRequest: a profile cannot be read or is none.
    """
    known = load(profiles)
    titles = {OPENCODE: OPENCODE_TITLE, **{name: profile.title for name, profile in known.items()}}
    if agent and agent not in titles:
        raise Refused(f"there is no agent {agent}: choose one of {', '.join(titles)}")
    suggested = suggested_models(known.values()).items()
    shown = {model: ", ".join(of) for model, of in suggested if not agent or titles[agent] in of}
    display.values(shown or {"any": f"{titles[agent]} names no models of its own: write <provider>/<model>"})
    return 0
