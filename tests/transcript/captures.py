"""Captured runs of the real OpenCode: how to read one, and the verdict a person gave each."""

import json
import signal
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agent_runs.contracts.outcome import ContainerEnd
from tests.conftest import FIXTURES


@dataclass(frozen=True)
class Capture:
    """One folder: standard output, standard error and how the process ended."""

    name: str

    @property
    def folder(self) -> Path:
        return FIXTURES / self.name

    @property
    def stdout(self) -> bytes:
        return (self.folder / "events.jsonl").read_bytes()

    @property
    def stderr(self) -> bytes:
        return (self.folder / "stderr.txt").read_bytes()

    @cached_property
    def meta(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "meta.json").read_text()))

    @property
    def end(self) -> ContainerEnd:
        name = self.meta["signal"]
        return ContainerEnd(exit_code=self.meta["exit_code"], signal=signal.Signals[name].value if name else None)

    @property
    def resumed_session(self) -> str | None:
        argv = self.meta["argv"]
        return argv[argv.index("--session") + 1] or None if "--session" in argv else None


def captures(*folders: str) -> list[Capture]:
    """All captures in the named fixture folders."""
    return [Capture(f"{folder}/{found.name}") for folder in folders for found in sorted((FIXTURES / folder).iterdir())]


ALL = captures("opencode", "opencode-old", "opencode-logged")

FAILURES = {
    # killed by the capture harness: a signal that nobody of us sent
    "opencode/compaction-loop": "opencode_crashed",
    "opencode/error-429-long": "opencode_crashed",
    "opencode/hang-no-answer": "opencode_crashed",
    "opencode/resume-other-cwd": "opencode_crashed",
    "opencode/resume-subdir": "opencode_crashed",
    "opencode/sighup-in-tool": "opencode_crashed",
    "opencode/sigint-in-tool": "opencode_crashed",
    "opencode/sigkill-in-stream": "opencode_crashed",
    "opencode/sigkill-in-tool": "opencode_crashed",
    "opencode/sigterm-early": "opencode_crashed",
    "opencode/sigterm-in-stream": "opencode_crashed",
    "opencode/sigterm-in-tool": "opencode_crashed",
    "opencode/stdin-open": "opencode_crashed",
    "opencode/steps-limit-unknown": "opencode_crashed",
    "opencode/stream-no-finish": "opencode_crashed",
    "opencode-logged/hang-no-answer": "opencode_crashed",
    "opencode-logged/resume-hang": "opencode_crashed",
    # it never began; "Session not found" without `--session` is a start-up failure too
    "opencode/attach-bad-password": "opencode_start_failed",
    "opencode/attach-refused": "opencode_start_failed",
    "opencode/config-content-invalid": "opencode_start_failed",
    "opencode/config-invalid-json": "opencode_start_failed",
    "opencode/config-wrong-type": "opencode_start_failed",
    "opencode/db-corrupt": "opencode_start_failed",
    "opencode/db-readonly": "opencode_start_failed",
    "opencode/dir-missing": "opencode_start_failed",
    "opencode/file-missing": "opencode_start_failed",
    "opencode/flag-unknown": "opencode_start_failed",
    "opencode/home-missing": "opencode_start_failed",
    "opencode/home-unset": "opencode_start_failed",
    "opencode/home-unwritable": "opencode_start_failed",
    "opencode/prompt-blank": "opencode_start_failed",
    "opencode/prompt-dash": "opencode_start_failed",
    "opencode/prompt-empty": "opencode_start_failed",
    "opencode/tmp-unwritable": "opencode_start_failed",
    "opencode-logged/flag-unknown": "opencode_start_failed",
    # the session does not exist; old versions report that with exit code 0, or not at all
    "opencode/resume-db-without-wal": "session_unavailable",
    "opencode/resume-unknown": "session_unavailable",
    "opencode-old/1.14.41-malformed-session": "session_unavailable",
    "opencode-old/1.14.41-unknown-session": "session_unavailable",
    "opencode-old/1.2.27-malformed-session": "session_unavailable",
    "opencode-old/1.2.27-unknown-session": "session_unavailable",
    "opencode-logged/resume-malformed": "session_unavailable",
    "opencode-logged/resume-unknown": "session_unavailable",
    # output that could not be written, or is no JSON
    "opencode/format-default": "output_lost",
    "opencode/stdout-closed": "output_lost",
    "opencode/stdout-full": "output_lost",
    # the provider refused
    "opencode/attach-401": "provider_credentials",
    "opencode/error-401": "provider_credentials",
    "opencode/error-403": "provider_credentials",
    "opencode/error-html-401": "provider_credentials",
    "opencode/key-missing": "provider_credentials",
    "opencode/key-wrong": "provider_credentials",
    "opencode-old/1.14.41-error-401": "provider_credentials",
    "opencode-old/1.2.27-error-401": "provider_credentials",
    "opencode-logged/error-401": "provider_credentials",
    "opencode/error-429": "provider_quota",
    "opencode/error-400": "provider_rejected",
    "opencode/error-404": "provider_rejected",
    "opencode-logged/error-after-tool": "provider_rejected",
    "opencode/chunk-timeout": "provider_unavailable",
    "opencode/drop": "provider_unavailable",
    "opencode/error-500": "provider_unavailable",
    "opencode/error-503": "provider_unavailable",
    "opencode/header-timeout": "provider_unavailable",
    "opencode/no-model": "provider_unavailable",
    "opencode/server-dns": "provider_unavailable",
    "opencode/server-unreachable": "provider_unavailable",
    "opencode/context-overflow": "context_overflow",
    "opencode/context-overflow-nocompact": "context_overflow",
    "opencode/error-413": "context_overflow",
    "opencode/content-filter": "model_refused",
    "opencode/empty": "llm_api_error",
    "opencode-logged/empty": "llm_api_error",
    "opencode-logged/length": "output_cut_off",
    # nobody there to give a permission
    "opencode/permission-ask": "permission_blocked",
    "opencode/permission-env": "permission_blocked",
    "opencode/tool-outside": "permission_blocked",
    "opencode-old/1.14.41-permission-ask": "permission_blocked",
    "opencode-old/1.2.27-permission-ask": "permission_blocked",
    "opencode-logged/permission-ask": "permission_blocked",
    "opencode-logged/permission-multiline": "permission_blocked",
    # OpenCode's own; without its log the cause of an "Unexpected server error" is unknown, with it the model is
    "opencode/command-unknown": "opencode_error",
    "opencode/config-missing-file": "opencode_error",
    "opencode/disk-full": "opencode_error",
    "opencode/missing-key-anthropic": "opencode_error",
    "opencode/missing-key-openai": "opencode_error",
    "opencode/model-without-slash": "opencode_error",
    "opencode/resume-moved-workspace": "opencode_error",
    "opencode/resume-wrong-model": "opencode_error",
    "opencode/stream-error": "opencode_error",
    "opencode/stream-garbage": "opencode_error",
    "opencode/wrong-model": "opencode_error",
    "opencode/wrong-provider": "opencode_error",
    "opencode-logged/command-unknown": "opencode_error",
    "opencode-logged/missing-key-anthropic": "model_unknown",
    "opencode-logged/missing-key-openai": "model_unknown",
    "opencode-logged/wrong-model": "model_unknown",
    "opencode-logged/wrong-provider": "model_unknown",
    "opencode-old/1.14.41-wrong-model": "model_unknown",
    "opencode-old/1.2.27-wrong-model": "model_unknown",
}

_SUCCESSES = """
    agent-plan agent-plan-write agent-unknown attach-text attach-tool concurrent-1 concurrent-same-session-1
    concurrent-same-session-after config-project config-project-disabled config-unknown-key continue-none db-newer
    dir-option dot-opencode drop-once drop-tool-once echo-argv echo-argv-and-stdin echo-argv-words echo-stdin
    file-attach flaky-429-once flaky-500-once hang-10 key-file missing-key-env no-git no-git-binary no-ripgrep
    opencode-db-env opencode-db-env-resume opencode-db-memory permission-ask-auto permission-ask-continue
    permission-deny permission-deny-auto permission-deny-pattern permission-outside-auto permission-subagent-ask
    prompt-1mb prompt-dashdash pwd-mismatch reasoning resume-1-first resume-2-same resume-4-continue resume-5-fork
    resume-db-backup resume-db-checkpointed resume-db-with-wal resume-empty resume-other-cwd-dir
    resume-other-pod-same-path resume-symlink sigint-in-tool-resume sigkill-between-steps-resume
    sigkill-in-stream-resume sigterm-in-stream-resume sigterm-in-tool-resume stdout-file steps-limit subagent
    text-argv text-big text-stdin text-weird title-given tool-bash tool-big-input tool-big-output tool-edit tool-env
    tool-fail tool-invalid tool-question tool-read tool-text-bash tool-todo tool-webfetch tool-write usage-overflow
    variant-known variant-unknown xdg-dirs yolo-flag
    """
SUCCESSES = {f"opencode/{name}" for name in _SUCCESSES.split()} | {
    "opencode-old/1.14.41-text",
    "opencode-old/1.14.41-tool-bash",
    "opencode-old/1.2.27-text",
    "opencode-old/1.2.27-tool-bash",
    "opencode-logged/context-overflow-once",
    "opencode-logged/forged-log-lines",
    "opencode-logged/multi-step",
    "opencode-logged/no-usage",
    "opencode-logged/resume-first",
    "opencode-logged/resume-same",
    "opencode-logged/subagent",
    "opencode-logged/text-surrogate",
    "opencode-logged/tool-bash",
}
