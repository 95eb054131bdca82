"""Names and paths in an agent pod that several packages and activities rely on."""

from typing import Final

AGENT_CONTAINER: Final = "opencode"
"""The container that runs the agent."""
SIDECAR_CONTAINER: Final = "sidecar"
"""The container whose log has the agent's output, and through which the agent reaches Paperclip."""
RESTORE_CONTAINER: Final = "restore-workspace"
"""The init container that puts a carried workspace into its place."""
RESTORE_RETRYABLE: Final = 1
"""Its exit code if the same may succeed later."""
DATA_DIRECTORY: Final = "/paperclip"
"""Where the worker mounts the data volume that Paperclip shares with it, and where agents find their folders of it."""
HOME_DIRECTORY: Final = "/home/agent"
"""An agent's home, its own folder of the data volume."""
PROMPT_DIRECTORY: Final = "/tmp/prompt"  # noqa: S108 - a path in the pod, the one the peers use
PROMPT_FILE: Final = f"{PROMPT_DIRECTORY}/prompt.txt"
RUN_DIRECTORY: Final = "/agent-run"
SKILLS_DIRECTORY: Final = f"{RUN_DIRECTORY}/skills"
"""Where the agent's container has the skills that come with Paperclip."""
OUTPUT_DIRECTORY: Final = f"{RUN_DIRECTORY}/output"
"""In both containers."""
CONTROL_DIRECTORY: Final = f"{RUN_DIRECTORY}/control"
"""In the sidecar only, as the next ones."""
SIDECAR_FILE: Final = f"{RUN_DIRECTORY}/sidecar/sidecar.pyz"
TOKEN_DIRECTORY: Final = f"{RUN_DIRECTORY}/token"
RUNNER_FILE: Final = f"{RUN_DIRECTORY}/secret/runner.sh"
"""In the agent's container only."""
