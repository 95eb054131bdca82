"""A run that has secrets, for tests that start a step without a workflow."""

from contracts.request import Secrets
from paperclip.redaction import Redaction

SECRETS = Secrets(
    run_id="run",
    auth_token="eyJhbGciOiJIUzI1NiJ9.run-token",
    env={"ANTHROPIC_API_KEY": "sk-ant-0123456789", "GITHUB_TOKEN": "ghp_0123456789abcdef", "GREETING": "good morning"},
    mcp_servers={"docs": {"headers": {"Authorization": "Bearer mcp-header-token"}}},
)


class Secretive:
    """Hides what a usual run hides."""

    async def redaction(self) -> Redaction:
        return Redaction.of(SECRETS)
