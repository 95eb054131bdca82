"""A run with secrets, for tests that call an activity without a workflow."""

from agent_runs.contracts.request import Secrets
from agent_runs.paperclip.redaction import Redaction

SECRETS = Secrets(
    run_id="run",
    auth_token="eyJhbGciOiJIUzI1NiJ9.run-token",
    env={"ANTHROPIC_API_KEY": "sk-ant-0123456789", "GITHUB_TOKEN": "ghp_0123456789abcdef", "GREETING": "good morning"},
    mcp_servers={"docs": {"headers": {"Authorization": "Bearer mcp-header-token"}}},
)


class FakeSecrets:
    """Redacts what a usual run redacts."""

    async def redaction(self) -> Redaction:
        return Redaction.from_secrets(SECRETS)
