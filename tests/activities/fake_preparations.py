"""A run with secrets, and what becomes of its prompt, for tests that call an activity without a workflow."""

import base64

from agent_runs.contracts.request import AgentRef, PromptSource, RunConfig, RunRequest, Secrets
from agent_runs.kube.objects import Manifest
from agent_runs.paperclip.preparation import Preparation

REQUEST = RunRequest(
    run_id="run", agent=AgentRef(id="ada", company_id="acme"), config=RunConfig(model="fake/scenario/text")
)

SECRETS = Secrets(
    run_id="run",
    auth_token="eyJhbGciOiJIUzI1NiJ9.run-token",
    env={"ANTHROPIC_API_KEY": "sk-ant-0123456789", "GITHUB_TOKEN": "ghp_0123456789abcdef", "GREETING": "good morning"},
    mcp_servers={"docs": {"headers": {"Authorization": "Bearer mcp-header-token"}}},
)


class FakePreparations:
    """The prepared wake of a usual run."""

    async def current(self) -> Preparation:
        return Preparation(REQUEST, SECRETS, PromptSource(), names_address=True)


class KeptPrompt:
    """Stands in for the cluster, as far as a prompt needs one."""

    namespace = "agents"
    text = ""

    async def put_secret(self, manifest: Manifest) -> str:
        self.text = base64.b64decode(manifest["data"]["prompt"]).decode()
        return "created"
