"""A scripted model with fixed, repeatable answers, so that OpenCode and other agents run offline.

It speaks OpenAI's Chat Completions and Responses, Anthropic's Messages and Google's generateContent.

The model's name picks the scenario: `scenario/<name>[:<argument>…]`, for example `scenario/text`, `scenario/hang:30`
or `scenario/error:429`. With `scenario/script` the steps are in the prompt itself, with anything around them:

    <<<fake-llm
    {"steps": [
      {"tools": [{"name": "bash", "args": {"command": "echo hi", "description": "say hi"}}]},
      {"reasoning": "hmm", "text": "done", "usage": {"prompt": 10, "completion": 2}}
    ]}
    fake-llm>>>

Scenarios call the tools `bash`, `read` and `write`; an agent that offers others of the kind gets the call in its words.

The server keeps no conversation. The number of assistant messages after the last user message says which step of a
scenario is next, so a scenario survives restarts and resumed sessions. Requests for a session title or a summary,
which OpenCode sends on its own, get a fixed answer in every scenario.

Belongs here: what the model answers (`scenarios`), how a protocol writes it (`protocols`) and how it is
served. The stack starts it as a process; tests may import it.
"""

from dev_stack.scripted_model.scenarios import SCENARIOS, Step, Usage
from dev_stack.scripted_model.server import ScriptedModel, Sent, provider_block, serve
from dev_stack.scripted_model.tools import Tool

__all__ = ["SCENARIOS", "ScriptedModel", "Sent", "Step", "Tool", "Usage", "provider_block", "serve"]
