"""Names that identify a run everywhere: workflow id, Kubernetes names and labels, transcripts and their links.

All are pure functions of (agent, Paperclip run, attempt), so a retried activity finds what it created before.
"""

import hashlib
import re
from typing import Final, Self

from agent_runs.contracts.base import Contract

WORKFLOW_TYPE: Final = "AgentRunWorkflow"
WORKFLOW_ID_PREFIX: Final = "agent-run:"
CHECK_WORKFLOW_TYPE: Final = "AgentCheckWorkflow"
LABEL_LIMIT: Final = 63
_PARTED_BY: Final = "~"
_SLUG: Final = 16
_DISTINCT: Final = 16


class RunKey(Contract):
    """Identifies a run: Paperclip's agent, company and heartbeat run id, each in Paperclip's spelling."""

    agent_id: str
    company_id: str
    run_id: str

    @property
    def name(self) -> str:
        """`<agent id>~<run id>`: the run in the transcript store, in links and in their tokens. No id has a `~`.

        Two agents can have runs with one id: a caller chooses it, and two Paperclips know nothing of each other.
        """
        return f"{self.agent_id}{_PARTED_BY}{self.run_id}"

    @classmethod
    def named(cls, name: str, company_id: str = "") -> Self:
        """The run with this name; without `~` it is the id of a run of no agent."""
        agent_id, _, run_id = name.rpartition(_PARTED_BY)
        return cls(agent_id=agent_id, company_id=company_id, run_id=run_id)


class AttemptKey(Contract):
    """Identifies an attempt of a run. Attempts are numbered from 1; each has at most one Job, ever."""

    run: RunKey
    attempt: int = 1

    @property
    def job_name(self) -> str:
        """`agent-opencode-<agent>-<run>-<hash>`, and `-<attempt>` from the second on; at most 63 characters."""
        run = self.run
        digest = hashlib.sha256(f"{run.agent_id}:{run.run_id}".encode()).hexdigest()[:6]
        name = f"agent-opencode-{_slug(run.agent_id)}-{_slug(run.run_id)}-{digest}"
        return name if self.attempt == 1 else f"{name}-{self.attempt}"

    @property
    def prompt_secret_name(self) -> str:
        """The Secret that holds this attempt's prompt under the key `prompt`."""
        return f"{self.job_name}-prompt"

    @property
    def run_secret_name(self) -> str:
        """The Secret that holds this attempt's environment, OpenCode configuration and runner."""
        return f"{self.job_name}-run"

    @property
    def transcript(self) -> str:
        """The name of the transcript in logs and pages."""
        return f"{self.run.run_id}/{self.attempt}"


def workflow_id(agent_id: str) -> str:
    """`agent-run:<agent id>`: Temporal allows one open run per id, and that is the concurrency guard."""
    return f"{WORKFLOW_ID_PREFIX}{agent_id}"


def check_workflow_id(check_id: str) -> str:
    """`agent-check:<id>` of a check, whose id its caller has chosen."""
    return f"agent-check:{check_id}"


def label_value(text: str) -> str:
    """`text` as a valid label value: lowercase letters, digits, `-`, `_`, `.`, at most 63, alphanumeric at both ends.

    The same function serves labels and selectors, so a selector always finds what was labelled.
    Source: kubernetes.io, Labels and Selectors, Syntax and character set.
    """
    valid = re.sub(r"[^a-z0-9._-]", "", text.lower())[:LABEL_LIMIT]
    return valid.strip("-_.")


def identity_label(text: str) -> str:
    """An id as a label value that no other id has: `label_value`, and a digest where that is not the id itself."""
    return distinct(label_value(text), text, LABEL_LIMIT)


def distinct(name: str, text: str, limit: int) -> str:
    """`name`, which stands for `text`; with a digest if it is not `text` itself, so that it stands for nothing else."""
    if name == text:
        return name
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DISTINCT]
    return "-".join(filter(None, (name[: limit - _DISTINCT - 1].rstrip("-_."), digest)))


def _slug(identifier: str) -> str:
    return re.sub(r"[^a-z0-9-]", "", identifier.lower())[:_SLUG]
