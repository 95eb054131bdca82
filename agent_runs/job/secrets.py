"""The Secrets of one attempt as pure functions: the prompt, and what the pod runs with.

Values are in `data` only; everything else about a Secret may be logged. The digest in its annotations lets a repeated
step recognise its own Secret without reading its content.
"""

from collections.abc import Mapping
from pathlib import Path
from posixpath import basename
from typing import Any, Final

from agent_runs import pod
from agent_runs.contracts.errors import InvalidRequest, JobCreateFailed, PromptTooLarge
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.pod import RUNNER_FILE, SIDECAR_FILE
from agent_runs.kube.ownership import CONTENT_DIGEST, content_digest, owner_labels, secret_data
from agent_runs.pod.sidecar.tokens import RUN_ID_FILE, TOKEN_FILE, TOOLS_TOKEN_FILE

SECRET_LIMIT: Final = 1024 * 1024
"""Bytes of all values of one Secret. Source: core/v1 MaxSecretSize."""
ARGUMENT_LIMIT: Final = 128 * 1024
"""Bytes of `NAME=value` with its NUL, or of one argument. Source: Linux MAX_ARG_STRLEN; more fails with E2BIG."""
PROMPT_KEY: Final = "prompt"
RUNNER_KEY: Final = basename(RUNNER_FILE)
SCRIPT_KEYS: Final = (RUNNER_KEY, "processes.sh", "prepare.sh")
"""The runner, and the scripts that it needs beside it."""
SERVE_KEY: Final = "serve.sh"
TURN_KEY: Final = "turn.json"
WORKSPACE_KEY: Final = "workspace.json"
CONFIG_KEY: Final = "opencode.json"
AGENT_FILES_KEY: Final = "agent-files"
"""Lists the files that are written before an agent's start; `agent_runs/pod/acp.sh` reads it."""
AGENT_SKILLS_KEY: Final = "agent-skills"
"""Lists the skills that are linked into the agent's home before its start; `agent_runs/pod/acp.sh` reads it."""
SIDECAR_KEY: Final = basename(SIDECAR_FILE)
TOKEN_KEYS: Final = (TOKEN_FILE, RUN_ID_FILE, TOOLS_TOKEN_FILE)
UPSTREAM_KEY: Final = "paperclip-api-url"
ENVIRONMENT_PREFIX: Final = "env."
"""Before a variable's name in the run Secret, so that a variable called `runner.sh` is not the runner."""
_KEY_LIMIT: Final = 253


def prompt_secret(attempt: AttemptKey, namespace: str, prompt: bytes) -> dict[str, Any]:
    """Return the Secret with the prompt under the key `prompt`.

    Raises:
        PromptTooLarge: more than 1 MiB.
    """
    if len(prompt) > SECRET_LIMIT:
        raise PromptTooLarge(
            f"the prompt has {len(prompt)} bytes and a Secret holds {SECRET_LIMIT}: "
            "shorten the instructions, skills or templates of this agent"
        )
    return _secret(attempt, namespace, attempt.prompt_secret_name, {PROMPT_KEY: prompt})


def run_secret(
    attempt: AttemptKey,
    namespace: str,
    environment: Mapping[str, str],
    opencode_config: str | None,
    files: Mapping[str, bytes],
) -> dict[str, Any]:
    """Return the Secret with OpenCode's configuration, if there is one, one key per variable, and other files.

    Raises:
        InvalidRequest: an environment variable is impossible; the message has its name, never its value.
        JobCreateFailed: more than 1 MiB in all.
    """
    content = {**files} if opencode_config is None else {**files, CONFIG_KEY: opencode_config.encode()}
    content |= {variable_key(name): _variable(name, value) for name, value in environment.items()}
    total = sum(len(value) for value in content.values())
    if total > SECRET_LIMIT:
        largest = sorted(environment, key=lambda name: -len(environment[name]))[:3]
        raise JobCreateFailed(
            f"the agent's environment and configuration have {total} bytes and a Secret holds {SECRET_LIMIT}: "
            f"make the largest variables smaller ({', '.join(largest)})"
        )
    return _secret(attempt, namespace, attempt.run_secret_name, content)


def script(name: str) -> bytes:
    """Return a script that runs in the agent's container."""
    return Path(pod.__file__).with_name(name).read_bytes()


def token_files(run_id: str, token: str, tools_token: str | None) -> dict[str, bytes]:
    """Return the files that the pod's proxy reads for each request."""
    files = {RUN_ID_FILE: run_id.encode(), TOKEN_FILE: token.encode()}
    return files | ({TOOLS_TOKEN_FILE: tools_token.encode()} if tools_token else {})


def variable_key(name: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{name}"


def _variable(name: str, value: str) -> bytes:
    if len(variable_key(name)) > _KEY_LIMIT:
        raise InvalidRequest(f"env: the name {name[:40]}... is longer than {_KEY_LIMIT - len(ENVIRONMENT_PREFIX)}")
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"env: the value of {name} is not valid Unicode") from None
    if b"\0" in raw:
        raise InvalidRequest(f"env: the value of {name} has a NUL byte, which no environment variable can hold")
    if len(name.encode()) + len(raw) + 2 > ARGUMENT_LIMIT:
        raise InvalidRequest(
            f"env: {name} has {len(raw)} bytes and Linux takes {ARGUMENT_LIMIT} with its name (E2BIG): "
            "put the content into a file of the workspace and its path into the variable"
        )
    return raw


def _secret(attempt: AttemptKey, namespace: str, name: str, content: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": owner_labels(attempt),
            "annotations": {CONTENT_DIGEST: content_digest(content)},
        },
        "data": secret_data(content),
    }
