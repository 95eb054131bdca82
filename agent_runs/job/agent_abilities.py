"""What an agent that has a profile cannot do of what a configuration asks for: refused, or said before the run."""

from collections.abc import Iterator

from agent_runs.agents.opencode.pricing import PRICES
from agent_runs.agents.profile import AgentProfile
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.request import RunConfig

OPENCODE_ONLY = ("transport", "opencode_features", "extra_args", "agent_db_mode")
"""Fields that say something to OpenCode alone, in the configuration's Python names."""


def check_agent(config: RunConfig, profile: AgentProfile) -> None:
    """Refuses what would be dangerous if it had no effect.

    Raises:
        InvalidRequest: names the field and the remedy.
    """
    name = config.model.partition("/")[2]
    if name.startswith("-") or "\0" in name:
        raise InvalidRequest("config.model: the name after the slash must not begin with '-' or contain NUL")
    if not config.dangerously_skip_permissions and profile.permissions.reject is None:
        raise InvalidRequest(
            f"config.dangerouslySkipPermissions: {profile.title} has no mode in which a tool that leaves the workspace "
            "is denied: set it to true, or choose another agent"
        )


def agent_warnings(config: RunConfig, profile: AgentProfile) -> tuple[str, ...]:
    """A sentence for each field of the configuration that has no effect, or less than it says."""
    return tuple(_warnings(config, profile))


def _warnings(config: RunConfig, profile: AgentProfile) -> Iterator[str]:
    fields = RunConfig.model_fields
    for name in OPENCODE_ONLY:
        if getattr(config, name) != fields[name].default:
            yield f"config.{fields[name].alias} has no effect: it is OpenCode's, and the agent is {profile.title}"
    if not profile.rests and config.keep_warm_sec not in (0, fields["keep_warm_sec"].default):
        yield f"config.keepWarmSec has no effect: the profile of {profile.title} does not let its pod rest"
    if config.variant and not profile.takes_effort:
        yield f"config.variant has no effect: {profile.title} takes no effort"
    if profile.skills is None and config.skills == "folders" and config.paperclip_runtime_skills:
        yield f"Skills are not linked where {profile.title} looks for them: the prompt names their folders"
    if config.max_cost_usd and profile.cost is None and config.model not in PRICES:
        yield (
            f"config.maxCostUsd has no effect: {profile.title} reports no cost, and no price of {config.model} is "
            "known; set config.maxTokens"
        )
    if (config.max_cost_usd or config.max_tokens) and profile.usage is None:
        yield f"config.maxTokens and config.maxCostUsd have no effect: {profile.title} reports no tokens"
    elif (config.max_cost_usd or config.max_tokens) and profile.usage_comes_late:
        yield (
            f"config.maxTokens and config.maxCostUsd end no turn of {profile.title}, which reports its tokens at the "
            "end of it; timeoutSec and maxSteps do"
        )
