"""The contexts on which the two languages must agree, and what Python makes of them today.

`python -m tests.paperclip.vectors` writes `tests/fixtures/preparation/vectors.json`; a test here says when it is stale,
and the adapter's tests hold the TypeScript twin to it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.request import PromptSource
from agent_runs.paperclip.preparation import BULKY_LIMIT, NESTING_LIMIT, VARIABLE_LIMIT, prepare_with_notes
from agent_runs.paperclip.prompt import compose, instructions_section, join_skills
from tests.paperclip.contexts import FIXTURES, NAMES, OPENER, SEALER, captured, minimal, with_value

FILE: Final = FIXTURES / "preparation" / "vectors.json"
LONG: Final = "<long>"
"""Stands for a text of so many characters `x`, so that the file stays small."""

CAPTURED: Final = "<captured>"
"""Stands for a captured context: the name of its file."""

Context = Any

WRONG: Final[tuple[tuple[str, Any], ...]] = (
    ("runId", None),
    ("runId", ""),
    ("runId", 7),
    ("runId", "run 1"),
    ("runId", "r" * 129),
    ("agent", None),
    ("agent", "ada"),
    ("agent", []),
    ("agent.id", None),
    ("agent.id", "-ada "),
    ("agent.id", "ada\n"),
    ("agent.companyId", None),
    ("agent.companyId", {"id": 1}),
    ("agent.name", 5),
    ("runtime", "later"),
    ("runtime.sessionId", 5),
    ("runtime.sessionId", "ses 1"),
    ("runtime.sessionId", "s" * 129),
    ("runtime.sessionDisplayId", []),
    ("runtime.taskKey", 12),
    ("runtime.sessionParams", "ses_1"),
    ("runtime.sessionParams", ["ses_1"]),
    ("runtime.sessionParams", {"sessionId": 42}),
    ("runtime.sessionParams", {"session_id": ["a"]}),
    ("runtime.sessionParams", {"sessionID": "--help"}),
    ("config", None),
    ("config", "fast"),
    ("config", [1]),
    ("config.model", None),
    ("config.model", ""),
    ("config.model", "sonnet"),
    ("config.model", "/sonnet"),
    ("config.model", "anthropic/ "),
    ("config.model", ["a/b"]),
    ("config.variant", 3),
    ("config.extraArgs", "--print-logs"),
    ("config.extraArgs", {"a": "b"}),
    ("config.extraArgs", ["--a", 1, None]),
    ("config.timeoutSec", "soon"),
    ("config.timeoutSec", -1),
    ("config.timeoutSec", 1.5),
    ("config.timeoutSec", "1.5"),
    ("config.timeoutSec", True),
    ("config.timeoutSec", [60]),
    ("config.timeoutSec", 2592001),
    ("config.graceSec", {}),
    ("config.graceSec", "-5"),
    ("config.scheduleTimeoutSec", 0),
    ("config.startTimeoutSec", 0),
    ("config.firstOutputTimeoutSec", "1__0"),
    ("config.silenceTimeoutSec", "0x10"),
    ("config.ttlSecondsAfterFinished", "never"),
    ("config.infrastructureRetries", 11),
    ("config.infrastructureRetries", False),
    ("config.cwd", "relative/path"),
    ("config.cwd", "/with\ttab"),
    ("config.cwd", "/with\u200bformat"),
    ("config.cwd", 5),
    ("config.namespace", "Bad Name"),
    ("config.namespace", "n" * 64),
    ("config.namespace", 5),
    ("config.image", "a b"),
    ("config.image", "a\x07b"),
    ("config.image", ["a"]),
    ("config.imagePullPolicy", "Sometimes"),
    ("config.imagePullPolicy", 5),
    ("config.serviceAccountName", "_x"),
    ("config.serviceAccountName", {}),
    ("config.resources", "lots"),
    ("config.resources", []),
    ("config.resources.requests", "lots"),
    ("config.resources.requests.cpu", "lots"),
    ("config.resources.requests.cpu", 2),
    ("config.resources.limits.memory", "4 Gi"),
    ("config.nodeSelector", "no equals"),
    ("config.nodeSelector", "=x"),
    ("config.nodeSelector", '{"a": '),
    ("config.nodeSelector", {"a": 5}),
    ("config.nodeSelector", ["a"]),
    ("config.labels", "bad key!=1"),
    ("config.labels", {"-a": "b"}),
    ("config.labels", {"a": None, "b": True}),
    ("config.labels", '{"a": null}'),
    ("config.tolerations", "[oops"),
    ("config.tolerations", '{"key": "gpu"}'),
    ("config.tolerations", [5]),
    (
        "config.tolerations",
        [{"key": 5, "operator": "Sometimes", "effect": "Never", "value": [], "tolerationSeconds": "x"}],
    ),
    ("config.retainJobs", "perhaps"),
    ("config.retainJobs", 2),
    ("config.dangerouslySkipPermissions", "yes!"),
    ("config.resumeLastSession", []),
    ("config.agentDbMode", "cloud"),
    ("config.agentDbStorageClass", 5),
    ("config.agentDbStorageCapacity", "big"),
    ("config.agentDbStorageCapacity", " "),
    ("config.instructionsFilePath", {"path": "/a"}),
    ("config.paperclipApiUrl", "paperclip.example"),
    ("config.paperclipApiUrl", "ftp://paperclip.example"),
    ("config.paperclipApiUrl", "http://ada:secret@paperclip.example"),
    ("config.paperclipApiUrl", "http://paperclip.example/?a=b"),
    ("config.paperclipApiUrl", "http://paperclip.example/#a"),
    ("config.paperclipApiUrl", "http://"),
    ("config.paperclipApiUrl", "http://paperclip.example:99999"),
    ("config.paperclipApiUrl", "http://paperclip.example:0/"),
    ("config.paperclipApiUrl", "http://paper clip"),
    ("config.paperclipApiUrl", 5),
    ("config.paperclipRuntimeSkills", {"a": 1}),
    ("config.paperclipRuntimeSkills", ["a"]),
    (
        "config.paperclipRuntimeSkills",
        [{"runtimeName": 5, "source": [], "sourceStatus": 1, "missingDetail": 2, "required": 9}],
    ),
    ("config.paperclipSkillSync", "all"),
    ("config.paperclipSkillSync.desiredSkills", "all"),
    ("config.paperclipSkillSync.desiredSkills", [5, {}, {"key": 5}, {"key": "a", "versionId": 5}]),
    ("config.env", "A=b"),
    ("config.env", {"A": 5, "B": ["x"]}),
    ("config.env", {"1 BAD": "x"}),
    ("config.env", {"A": "x\0"}),
    ("config.env", {"": "x"}),
    ("config.promptTemplate", 5),
    ("config.bootstrapPromptTemplate", []),
    ("config.mcpServers", "docs"),
    ("config.mcpServers", {"docs": "https://x"}),
    ("config.kubeconfig", "/root/.kube/config"),
    ("context", "wake"),
    ("context.taskId", 5),
    ("context.issueId", []),
    ("context.wakeReason", {}),
    ("context.wakeCommentId", 1),
    ("context.commentId", 1),
    ("context.approvalId", 1),
    ("context.approvalStatus", 1),
    ("context.issueIds", "a"),
    ("context.issueIds", ["a", 5]),
    ("context.issueWorkMode", 1),
    ("context.retryOfRunId", 1),
    ("context.previousRunId", 1),
    ("context.paperclipRuntimePrimaryUrl", 1),
    ("context.paperclipWorkspace", "here"),
    ("context.paperclipWorkspace.cwd", "here"),
    ("context.paperclipWorkspace.cwd", 5),
    ("context.paperclipWorkspace.source", 5),
    ("context.paperclipWorkspace.strategy", 5),
    ("context.paperclipWorkspace.workspaceId", 5),
    ("context.paperclipWorkspace.repoUrl", 5),
    ("context.paperclipWorkspace.repoRef", 5),
    ("context.paperclipWorkspace.branchName", 5),
    ("context.paperclipWorkspace.worktreePath", 5),
    ("context.paperclipWorkspace.agentHome", 5),
    ("authToken", {"token": "x"}),
    ("runtimeTools", "x"),
    ("runtimeTools.bearerToken", ["x"]),
    ("runtimeTools.mcpEndpoint", 5),
    ("runtimeTools.rest", "x"),
    ("runtimeTools.expiresAt", 5),
    ("runtimeTools.tools", "x"),
    ("runtimeTools.tools", [5]),
    ("runtimeTools.guidance", 5),
    ("wakePrompt", "x"),
    ("wakePrompt.fresh", 5),
    ("wakePrompt.resumed", []),
)
"""Every validated field wrong at least once."""

RIGHT: Final[tuple[tuple[str, Any], ...]] = (
    ("runId", "a:b.c_d-e"),
    ("agent.name", "Ada 𝄞"),
    ("config.model", " anthropic / claude "),
    ("config.model", "openrouter/anthropic/claude"),
    ("config.variant", "  "),
    ("config.variant", " high "),
    ("config.effort", "high"),
    ("config.thinkingEffort", "low"),
    ("config.thinkingEffort", "  "),
    ("config.effort", 3),
    ("config.extraArgs", []),
    ("config.extraArgs", ["--a", ""]),
    ("config.timeoutSec", " 60 "),
    ("config.timeoutSec", "1_000"),
    ("config.timeoutSec", "60.0"),
    ("config.timeoutSec", "+60"),
    ("config.timeoutSec", 60.0),
    ("config.graceSec", 60),
    ("config.graceSec", "61"),
    ("config.infrastructureRetries", 0),
    ("config.cwd", "/a/../b//c/"),
    ("config.cwd", " "),
    ("config.namespace", " agents "),
    ("config.image", " busybox:1.36 "),
    ("config.imagePullPolicy", "Always"),
    ("config.serviceAccountName", "agents"),
    ("config.resources", {"requests": {"cpu": " 500m ", "memory": ""}, "limits": {}}),
    ("config.resources", {"requests": None, "limits": {"memory": "4Gi", "gpu": "1"}}),
    ("config.nodeSelector", {}),
    ("config.nodeSelector", "# nodes\n kind = gpu \r\n\nzone=a=b\n"),
    ("config.nodeSelector", ' {"kind": "gpu"}'),
    ("config.labels", "team=\nexample.com/owner=ada"),
    ("config.labels", "  "),
    ("config.tolerations", []),
    ("config.tolerations", "  "),
    ("config.tolerations", '[{"key": "gpu", "operator": "Exists", "value": null, "tolerationSeconds": "30"}]'),
    ("config.tolerations", "null"),
    ("config.tolerations", [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 3.0, "unknown": 1}, {}]),
    ("config.retainJobs", "TRUE"),
    ("config.retainJobs", 1),
    ("config.retainJobs", "off"),
    ("config.dangerouslySkipPermissions", False),
    ("config.dangerouslySkipPermissions", "n"),
    ("config.resumeLastSession", 0),
    ("config.agentDbMode", "dedicated_pvc"),
    ("config.agentDbStorageCapacity", "10Gi"),
    ("config.paperclipApiUrl", "https://paperclip.example:8443/base/"),
    ("config.paperclipApiUrl", "http://[::1]:3100"),
    ("config.env", {"TMPDIR": "/data/tmp", "TMP": "/scratch", "PAPERCLIP_SCRATCH_DIR": "/scratch", "A": ""}),
    (
        "config.env",
        {"PAPERCLIP_API_KEY": "mine", "GH_CONFIG_DIR": "/x", "PAPERCLIP_GITHUB_BROKER_TOKEN": "x", "B": "\ud83d"},
    ),
    ("config.env", {"A": None, "b.c-d": "x"}),
    (
        "config.mcpServers",
        {"docs": {"url": "https://x", "headers": {"Authorization": "Bearer x"}, "off": None}, "gone": None},
    ),
    ("config.promptTemplate", " {{agent.name}} "),
    ("config.bootstrapPromptTemplate", "  "),
    ("config.instructionsFilePath", "/paperclip/AGENTS.md"),
    ("config.unknown", {"anything": [1, 2, 3]}),
    ("runtime.sessionParams", {}),
    ("runtime.sessionParams", {"cwd": "/elsewhere"}),
    (
        "runtime.sessionParams",
        {"sessionId": " ses_1 ", "folder": "/paperclip/", "repo_url": "https://ada:pw@git/x", "__paperclipX": 1},
    ),
    ("runtime.sessionParams", {"sessionId": " ", "session_id": "ses_2", "cwd": "/elsewhere"}),
    ("runtime.sessionParams", {"sessionId": "ses_1", "workspace_id": "w", "repoRef": "main"}),
    ("runtime.sessionId", " ses_3 "),
    ("runtime.taskKey", "task-1"),
    ("context.issueIds", ["a", "", "b"]),
    ("context.issueIds", []),
    ("context.taskId", " "),
    ("context.paperclipIssue", {"workMode": " planning "}),
    ("context.paperclipWake", {"issue": {"id": "1", "workMode": "planning"}}),
    (
        "context.paperclipWorkspace",
        {"cwd": "//net/x/", "repoUrl": "https://ada:pw@git.example/r.git", "agentHome": "/h"},
    ),
    ("context.paperclipRuntimePrimaryUrl", "https://ada:pw@preview.example/"),
    ("context.paperclipWorkspaces", [{"cwd": "/a", "n": 1.5, "big": 1e21, "none": None}]),
    ("context.paperclipRuntimeServices", [{"é": "\u2028"}]),
    ("context.paperclipRuntimeServiceIntents", []),
    ("context.paperclipTaskMarkdown", "\ufeff half \ud83d emoji \n"),
    ("context.paperclipSessionHandoffMarkdown", 5),
    ("context.constructor", {"prototype": 1, "toString": "x"}),
    (
        "context.anything",
        {"apiKey": "x", "a_token": "x", "login": "see https://a:b@c/d", "list": [{"password": "x", "ok": 1}]},
    ),
    ("context.anything", ["[undefined]", None, True, 1e-7, 123456789012]),
    ("context.undefined", "[undefined]"),
    ("agent.adapterConfig", {"env": {"A": {"type": "secret_ref"}}, "cwd": "/x", "headers": {"a": "b"}}),
    ("authToken", ""),
    ("authToken", "canary-token"),
    (
        "runtimeTools",
        {
            "bearerToken": "t",
            "mcpEndpoint": "http://h/mcp",
            "rest": {"connectionsSearch": "http://h/s"},
            "tools": ["a", "b"],
        },
    ),
    ("runtimeTools", {"guidance": "use\0them", "expiresAt": " "}),
    ("runtimeTools", {"rest": {"connectionsSearch": 5, "connectionRequest": ["x"]}}),
    ("wakePrompt", {"fresh": "Hello.", "resumed": ""}),
)
"""Values that are taken, with what becomes of them."""

WAKES: Final[tuple[Any, ...]] = (
    {"reason": "only a reason"},
    {"commentIds": [" a ", "", 5, "b"], "latestCommentId": " "},
    {
        "comments": [{"body": " hi ", "author": {"type": "user", "id": " u "}}, {"body": " "}, "x"],
        "commentWindow": {"requestedCount": 0},
    },
    {
        "issue": {"title": " T "},
        "skillTest": [],
        "truncated": 1,
        "fallbackFetchNeeded": True,
        "commentWindow": {"missingCount": True},
    },
    {"taskWatchdog": {"instructions": "𝄞" * 4100, "leaves": list(range(30)), "capabilities": list(range(60)), "n": 1}},
    {"livenessContinuation": {"attempt": 0, "maxAttempts": 0}},
    {"livenessContinuation": {"attempt": 1, "maxAttempts": 2.5, "state": " s "}},
    {"executionStage": {"wakeRole": "king", "allowedActions": ["a", 1], "currentParticipant": {"type": "agent"}}},
    {"unresolvedBlockerSummaries": [{"id": "1"}, {}, 5], "skillTest": "yes"},
    {"checkboxSelection": {"selectedOptions": [{}, {"a": 1}]}, "recovery": {}, "questionResponse": {"x": None}},
    {"activeTreeHold": {"holdId": "", "mode": "m"}, "interactionKind": " k "},
)


def contexts() -> Iterator[tuple[str, Context]]:
    """Names and contexts."""
    for name in NAMES:
        yield name.removesuffix(".json"), {CAPTURED: name}
    for at, (path, value) in enumerate(WRONG):
        yield f"wrong {at}: {path}", with_value(minimal(), path, value)
    for at, (path, value) in enumerate(RIGHT):
        yield f"right {at}: {path}", with_value(minimal(), path, value)
    for at, wake in enumerate(WAKES):
        yield f"wake {at}", with_value(minimal(), "context.paperclipWake", wake)
    yield from skills()
    yield from resources()
    yield from sessions()
    yield "no object", []
    yield (
        "many at once",
        with_value(
            minimal(model="nameless", timeoutSec="soon", kubeconfig="/root/.kube/config", cwd="here"),
            "agent",
            {"companyId": "c"},
        ),
    )
    deep: Any = "end"
    for _ in range(NESTING_LIMIT + 1):
        deep = [deep]
    yield "endless nesting", with_value(minimal(), "context.anything", deep)
    yield "a variable too long", with_value(minimal(), "config.env.A", {LONG: VARIABLE_LIMIT - 1})
    yield "a variable just short enough", with_value(minimal(), "config.env.A", {LONG: VARIABLE_LIMIT - 2})
    yield "a bulky variable", with_value(minimal(), "context.paperclipWorkspaces", [{"cwd": {LONG: BULKY_LIMIT}}])
    yield "external instructions", minimal(instructionsBundleMode="external", instructionsRootPath=" /bundle ")


def skills() -> Iterator[tuple[str, Context]]:
    """How names of skills are resolved."""
    offered = [
        {"key": "paperclipai/paperclip/paperclip", "runtimeName": "paperclip", "source": "/skills/paperclip"},
        {
            "key": "company/One",
            "runtimeName": "first",
            "source": "/skills/one",
            "required": "no",
            "sourceStatus": "available",
        },
        {"key": "other/one", "runtimeName": "second", "source": "/skills/two", "sourceStatus": "missing"},
        {"key": "other/three", "source": None, "missingDetail": "gone", "required": True},
    ]
    for at, desired in enumerate(
        (None, [], [" First ", "SECOND", "one", "three", "", "nobody"], [{"key": "company/one", "versionId": "v"}])
    ):
        yield f"skills {at}", minimal(paperclipRuntimeSkills=offered, paperclipSkillSync={"desiredSkills": desired})


def resources() -> Iterator[tuple[str, Context]]:
    """The flat keys of Paperclip's form beside nested objects."""
    flat = {
        "resources.requests.cpu": "1",
        "resources.limits.memory": "2Gi",
        "resources.other.cpu": "x",
        "resources.": "y",
    }
    nested: Any
    for at, nested in enumerate(
        (None, {}, {"requests": {"cpu": "2"}}, {"requests": 5}, 5, [], {"limits": {"memory": "bad"}})
    ):
        yield f"resources {at}", minimal(**flat, **({} if nested is None else {"resources": nested}))
    yield "resources wrong in the form", minimal(**{"resources.requests.cpu": "lots"})


def sessions() -> Iterator[tuple[str, Context]]:
    """Which stored session a wake resumes."""
    stored = with_value(minimal(), "runtime.sessionParams", {"sessionId": "ses_1", "cwd": "/project/"})
    yield "session of another folder", stored
    yield "session of the same folder", with_value(stored, "context.paperclipWorkspace.cwd", "/x/../project")
    yield "session of the configured folder", with_value(stored, "config.cwd", "/project")
    yield "session of a folder that only looks the same", with_value(stored, "config.cwd", "//project")
    yield "session that is not wanted", with_value(stored, "config.resumeLastSession", False)


def expanded(value: Any) -> Any:
    """The context that its short form stands for."""
    if isinstance(value, dict) and CAPTURED in value:
        return captured(value[CAPTURED])
    if isinstance(value, dict):
        return "x" * value[LONG] if LONG in value else {name: expanded(item) for name, item in value.items()}
    return [expanded(item) for item in value] if isinstance(value, list) else value


def made_of(context: Context) -> dict[str, Any]:
    """What Python makes of a context; long texts stay out of the file, their count says enough."""
    try:
        result = prepare_with_notes(expanded(context), SEALER)
    except InvalidRequest as refused:
        return {"refused": refused.message}
    request = result.request.model_dump(mode="json", exclude_defaults=True, exclude={"sealed_secrets", "sealed_prompt"})
    opened = {
        "secrets": OPENER.secrets(result.request).model_dump(mode="json", exclude_defaults=True),
        "prompt": OPENER.prompt(result.request).model_dump(mode="json", exclude_defaults=True),
    }
    return {"request": request, **opened, "notes": list(result.notes)}


PROMPTS: Final[tuple[dict[str, Any], ...]] = (
    {"runId": "run-1"},
    {"runId": "run-1", "wake": {"fresh": "Fresh.", "resumed": "Resumed."}, "instructions": " Be kind.\n", "skills": []},
    {"runId": "run-1", "wake": {"resumed": " \ufeff"}, "skills": ["# One", " ", "# Two\n"], "taskMarkdown": "Task"},
    {
        "runId": "run-1",
        "bootstrapTemplate": "{{ agent.name }} {{agent.n}} {{agent.big}} {{agent.yes}} {{agent.list}} {{agent.list.0}}",
        "promptTemplate": "{{run.source}} {{company.id}} {{context.a.b}} {{context.a}} {{nothing.here}} {{ bad path}}",
        "agent": {"name": "Ada {{runId}}", "n": 1.0, "big": 1e21, "yes": True, "list": [1, "é", None]},
        "context": {"a": {"b": -1e-7, "c": "𝄞"}},
        "sessionHandoff": "Handoff",
    },
    {"runId": "run-1", "promptTemplate": " ", "taskMarkdown": "half \ufffd", "instructions": ""},
    {"runId": "run-1", "promptTemplate": "{{context.paperclipTaskMarkdown}} {{agent.id}}", "taskMarkdown": "Task"},
)
"""What a prompt is made of."""


def prompts() -> Iterator[dict[str, Any]]:
    """The prompts that Python composes of `PROMPTS`."""
    run = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")
    for source in PROMPTS:
        for path in ("/paperclip/agents/AGENTS.md", "/AGENTS.md"):
            content = PromptSource.model_validate(source)
            texts = {
                "instructions": instructions_section(content.instructions or "", path),
                "skills": join_skills(content.skills or ()),
            }
            fresh, resumed = (compose(content, **texts, resuming=resuming, run=run) for resuming in (False, True))
            yield {
                "source": source,
                "path": path,
                "fresh": {"text": fresh.text, "metrics": fresh.metrics},
                "resumed": {"text": resumed.text, "metrics": resumed.metrics},
            }


def vectors() -> str:
    """The file's text."""
    listed = [{"name": name, "context": context, **shortened(made_of(context))} for name, context in contexts()]
    found = {"prompts": list(prompts()), "vectors": listed}
    return json.dumps(found, indent=1, ensure_ascii=True) + "\n"


def shortened(value: Any) -> Any:
    """The result with long texts as the contexts have them."""
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    return (
        {LONG: len(value)}
        if isinstance(value, str) and len(value) > VARIABLE_LIMIT // 2 and set(value) == {"x"}
        else value
    )


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(vectors())
