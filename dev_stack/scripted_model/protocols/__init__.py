"""How a conversation and its answer are written in the protocols of OpenAI, Anthropic and Google.

One module per protocol, each with one `Encoding`. They know JSON and server-sent events; they decide nothing.
"""

from dev_stack.scripted_model.protocols.anthropic_messages import ANTHROPIC_MESSAGES
from dev_stack.scripted_model.protocols.encoding import Answer, Encoding
from dev_stack.scripted_model.protocols.google_content import GOOGLE_CONTENT
from dev_stack.scripted_model.protocols.openai_chat import OPENAI_CHAT
from dev_stack.scripted_model.protocols.openai_responses import OPENAI_RESPONSES

__all__ = ["ANTHROPIC_MESSAGES", "GOOGLE_CONTENT", "OPENAI_CHAT", "OPENAI_RESPONSES", "Answer", "Encoding"]
