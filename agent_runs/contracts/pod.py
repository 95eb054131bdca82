"""Names and paths in an agent pod that several packages and activities rely on."""

from typing import Final

AGENT_CONTAINER: Final = "opencode"
"""The container that runs the agent."""
SIDECAR_CONTAINER: Final = "sidecar"
"""The container whose log has the agent's output, and through which the agent reaches Paperclip."""
DATA_DIRECTORY: Final = "/paperclip"
"""Where the worker mounts the data volume that Paperclip shares with it, and where agents find their folders of it."""
HOME_DIRECTORY: Final = "/home/agent"
"""An agent's home, its own folder of the data volume."""
