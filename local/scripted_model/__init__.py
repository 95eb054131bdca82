"""A scripted model: an OpenAI-compatible chat API that plays exact, repeatable scenes without any provider.

It exists so that the real OpenCode binary can be run offline, in demos and tests. The model's name picks the scene:
`scenario/<name>[:<argument>…]`, for example `scenario/text`, `scenario/hang:30` or `scenario/flaky:503:2`. With
`scenario/script` the scene stands in the prompt itself, with anything around it:

    <<<fake-llm
    {"steps": [
      {"tools": [{"name": "bash", "args": {"command": "echo hi", "description": "say hi"}}]},
      {"reasoning": "hmm", "text": "done", "usage": {"prompt": 10, "completion": 2}}
    ]}
    fake-llm>>>

The server keeps no conversation. Which step of a scene is due is the number of assistant messages after the last user
message, so scenes survive restarts and resumed sessions. Only scenes that fail a few times first count attempts, per
identical list of messages. Requests for a session title or a summary, which agents send on the side, get a canned
answer whatever the scene is.

    async with running() as model:
        config = opencode_config(model.base_url)  # run: opencode run -m fake/scenario/tool-bash
        ...
        assert model.requests[-1].scenario == "tool-bash"
"""

from local.scripted_model.config import opencode_config, provider_block
from local.scripted_model.scenarios import SCENARIOS
from local.scripted_model.server import ScriptedModel, Seen, running
from local.scripted_model.steps import Ask, Step, Tool, Usage

__all__ = [
    "SCENARIOS",
    "Ask",
    "ScriptedModel",
    "Seen",
    "Step",
    "Tool",
    "Usage",
    "opencode_config",
    "provider_block",
    "running",
]
