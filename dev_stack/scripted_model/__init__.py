"""A scripted model: an OpenAI-compatible chat API with fixed, repeatable answers, so that OpenCode runs offline.

The model's name picks the scenario: `scenario/<name>[:<argument>…]`, for example `scenario/text`, `scenario/hang:30`
or `scenario/error:429`. With `scenario/script` the steps are in the prompt itself, with anything around them:

    <<<fake-llm
    {"steps": [
      {"tools": [{"name": "bash", "args": {"command": "echo hi", "description": "say hi"}}]},
      {"reasoning": "hmm", "text": "done", "usage": {"prompt": 10, "completion": 2}}
    ]}
    fake-llm>>>

The server keeps no conversation. The number of assistant messages after the last user message says which step of a
scenario is next, so a scenario survives restarts and resumed sessions. Requests for a session title or a summary,
which OpenCode sends on its own, get a fixed answer in every scenario.

Belongs here: what the model answers and how it is served. The stack starts it as a process; tests may import it.
"""

from dev_stack.scripted_model.scenarios import SCENARIOS, Step, Tool, Usage
from dev_stack.scripted_model.server import ScriptedModel, provider_block, serve

__all__ = ["SCENARIOS", "ScriptedModel", "Step", "Tool", "Usage", "provider_block", "serve"]
