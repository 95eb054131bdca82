"""docs/agents.md: which agents there are, what each can do, and how an operator adds one.

`python -m dev_stack.agents_page` rewrites the committed page; a test keeps it fresh.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from agent_runs.agents.form import CAPABILITIES
from agent_runs.agents.profile import PLACEHOLDERS, AgentProfile, load
from dev_stack.markdown import table

PAGE_FILE: Final = Path(__file__).parents[1] / "docs" / "agents.md"

_INTRODUCTION: Final = """# Agents

Whose program a run starts: the field `agent` of an agent's configuration. `python -m dev_stack.agents_page` writes this
page from the profiles of agents.

`opencode` is the default, and has [a page of its own](opencode.md). The others speak the Agent Client Protocol (ACP),
and each is a profile: a file of `agent_runs/agents`. Their lines in the transcript have OpenCode's form, so log, pages,
budgets, silence, redaction and receipts are the same for all.

What each can do, as the run's page, Paperclip's form and `agent-runs doctor` say it, too:

"""
_REST: Final = """
What of a configuration its agent cannot do is a warning of the run, of Paperclip's environment test and of
`agent-runs doctor`: a field of OpenCode's alone (`opencode`, `opencodeFeatures`, `transport`, `extraArgs`,
`agentDbMode`), an effort, a budget without tokens or prices, an MCP server. One thing is refused: an agent without a
mode that denies tools outside of the workspace needs `dangerouslySkipPermissions`.

## What is the same for all

- `model` is `<provider>/<model>`. The agent gets what follows the first slash; the provider's name decides prices and
  what Paperclip shows. Models that an agent names itself are suggestions in Paperclip's list of models; any other is
  passed on, and its provider judges it. Paperclip has one list for all agents of an
  adapter, so each model there names its agents, and those of an operator's agent have to be in
  `PAPERCLIP_ADAPTER_MODELS`, which replaces the list.
- A session is continued only by the agent that made it, in its own directory. After a change of `agent` a run begins
  a fresh one, and a warning says so. Sessions are in the agent's home on the data volume; without one they end with the
  pod.
- A skill that comes with Paperclip, or is on the data volume, is a link where the agent looks for skills, so the agent
  offers it to its model and reads it when it needs it, with its references and scripts. The links of earlier runs go; a
  skill of the agent's own that has the same name stays, and the log says so. Any other skill is in the prompt
  ([the same conditions](opencode.md#skills) as for OpenCode), and so are those that come with Paperclip for an agent
  that looks for skills nowhere.
- Paperclip's instructions are in the prompt, as for OpenCode. Files that the agent takes for instructions by itself
  count besides; none is written, since they belong to the agent or to the workspace.
- The driver speaks version 1 of the protocol. An agent that answers with another version gets no prompt
  (`agent_protocol`).
- What an agent sends after the answer to its prompt is part of the turn until it is quiet for 0.5 s, for 3 s at most.
  The turn's last line counts what comes later.
- MCP servers (`mcpServers`, and Paperclip's own) go to the agent by the protocol. `{env:NAME}` in one is replaced.
- People see what they see of OpenCode, and besides the agent's plan, its notices (which are no part of its answer) and
  changes of its mode. Everything else that it sends is in the transcript, under `acp`, but for
  pieces of what is there whole.
- Known keys of the model's provider are redacted, whatever their variables are called.
- The pod of an agent that has succeeded rests for `keepWarmSec` where the table says so
  ([a pod that rests](cluster.md#a-pod-that-rests)). Its process ends with each run; for the next one it starts anew in
  that pod.
- Tools may do what the pod may. An agent's own sandbox is off, because none works in an unprivileged container.

## Images

The worker needs the image of each agent, such as
`AGENT_RUNS_AGENT_IMAGES=claude=registry.example/agent-claude:0.101.0,codex=registry.example/agent-codex:2.6.0`, or the
configuration's `image`. `./dev images --only claude` builds one; all have one recipe, `deploy/acp.Dockerfile`. An agent
without an image is refused before anything is created. The [policy](policy.md) lists
the agents that a configuration may choose (`agents`).

## An agent of your own

Write `NAME.yaml` into a folder, name that folder in `AGENT_RUNS_AGENTS` of every worker, and restart them. A key that
is not known, or a value that is wrong, ends the start with its name. A profile with the name of one of ours replaces
it. What the folder holds decides which variables are redacted, so all workers of a task queue need the same one.
`agent_runs/agents/*.yaml` are examples; a small one is

```yaml
name: goose
title: goose
image: registry.example/agent-goose:1
command: [goose, acp]
environment: {GOOSE_MODEL: "{model}", GOOSE_PROVIDER: "{provider}"}
keys: [OPENAI_API_KEY]
sessions: [.local/share/goose]
unknown_session: [{matches: "Session not found"}]
```

"""


def page_text() -> str:
    profiles = list(load().values())
    return "".join([
        _INTRODUCTION,
        table(["", *(f"`{name}`" for name in CAPABILITIES)], _capabilities()),
        "\nWith `transport: run`, `opencode` does not rest, and a message is its next prompt. The other profiles:\n\n",
        table(["", *(f"`{each.name}`" for each in profiles)], _profiles(profiles)),
        "\n",
        *(f"- {each.title}: {limit}\n" for each in profiles for limit in each.limits),
        _REST,
        table(["key", "what it says"], _keys()),
        "\nPlaceholders of commands, variables and files:\n\n",
        table(["placeholder", "stands for"], ((f"`{{{name}}}`", what) for name, what in PLACEHOLDERS.items())),
    ])  # fmt: skip


_ROWS: Final[dict[str, Callable[[AgentProfile], str]]] = {
    "agent": lambda each: each.title,
    "packages": lambda each: "; ".join(f"`{name}` {_window(*window)}" for name, window in each.packages.items()),
    "program": lambda each: f"`{each.command[0]}`",
    "key of the provider, one of": lambda each: ", ".join(f"`{name}`" for name in each.keys),
    "address of the provider": lambda each: f"`{each.base_url.variable}`" if each.base_url else "its own variable",
    "sessions, below the home": lambda each: ", ".join(f"`{path}`" for path in each.sessions),
    "skills, below the home": lambda each: f"`{each.skills}`" if each.skills else "no",
    "instructions of its own": lambda each: ", ".join(f"`{file}`" for file in each.instructions),
    "models, suggested": lambda each: ", ".join(f"`{model}`" for model in each.models) or "none",
    "effort (`variant`)": lambda each: _yes(each.takes_effort),
    "denies tools outside of the workspace": lambda each: _yes(each.permissions.reject is not None),
    "MCP servers": lambda each: ", ".join(each.mcp_servers) or "no",
}


def _capabilities() -> Iterator[list[str]]:
    said = [each.words for each in CAPABILITIES.values()]
    return ([what, *(words[what] for words in said)] for what in said[0])


def _profiles(profiles: Iterable[AgentProfile]) -> Iterator[list[str]]:
    known = list(profiles)
    return ([name, *map(say, known)] for name, say in _ROWS.items())


def _keys() -> Iterator[list[str]]:
    """Each key of a profile, from the model's own documentation."""
    text = (AgentProfile.__doc__ or "").partition("Attributes:")[2]
    said: dict[str, str] = {}
    name = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        before, colon, after = line.partition(":")
        if colon and before in AgentProfile.model_fields:
            name, said[before] = before, after.strip()
        else:
            said[name] += f" {line}"
    return ([f"`{key}`", said[key]] for key in AgentProfile.model_fields)


def _window(oldest: str, newest: str) -> str:
    return oldest if oldest == newest else f"{oldest} to {newest}"


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


if __name__ == "__main__":
    PAGE_FILE.write_text(page_text())
