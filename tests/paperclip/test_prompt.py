from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.request import PromptSource, WakePrompt
from agent_runs.paperclip.prompt import compose, instructions_section, interruption_section, join_skills, render
from tests.paperclip.contexts import FIXTURES, captured, opened

RUN = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")
FULL = PromptSource(
    wake=WakePrompt(fresh=" fresh wake ", resumed=" resumed wake "),
    task_markdown="\ntask\n",
    session_handoff=" handoff ",
    bootstrap_template="bootstrap {{run.id}}",
    prompt_template="heartbeat {{agent.name}}",
    agent={"name": "Ada"},
)


def test_a_fresh_session_gets_every_section_in_paperclips_order() -> None:
    prompt = compose(FULL, instructions="instructions", skills="skills", resuming=False, run=RUN)
    assert prompt.text.split("\n\n") == [
        "instructions",
        "skills",
        "bootstrap run-1",
        "fresh wake",
        "task",
        "handoff",
        "heartbeat Ada",
    ]


def test_a_resumed_session_gets_the_delta_without_bootstrap_and_heartbeat() -> None:
    prompt = compose(FULL, instructions="instructions", skills="skills", resuming=True, run=RUN)
    assert prompt.text.split("\n\n") == ["instructions", "skills", "resumed wake", "task", "handoff"]


def test_a_resumed_session_without_wake_prose_gets_the_heartbeat() -> None:
    source = FULL.model_copy(update={"wake": WakePrompt(fresh="fresh", resumed=" \n")})
    assert "heartbeat Ada" in compose(source, resuming=True, run=RUN).text


def test_an_agent_without_a_template_gets_the_default_sentence() -> None:
    source = PromptSource(agent={"name": "Ada"})
    assert compose(source, resuming=False, run=RUN).text == (
        "You are agent agent-1 (Ada). Continue your Paperclip work."
    )


@pytest.mark.parametrize(
    ("workspace", "effects"),
    [("carried", "at the last checkpoint"), ("shared", "may be half done"), ("ephemeral", "files are gone")],
)
def test_a_session_that_lost_its_pod_learns_what_was_at_work_before_the_messages(workspace: str, effects: str) -> None:
    section = interruption_section(workspace, ["bash: make all"])
    prompt = compose(FULL, interruption=section, messages="sent", resuming=True, run=RUN)
    assert prompt.text.split("\n\n")[-2:] == [section, "sent"]
    assert prompt.metrics["interruptionChars"] == len(section)
    assert 'while this was at work: "bash: make all"' in section
    assert effects in section


def test_the_call_of_an_agent_cannot_leave_its_quotes() -> None:
    section = interruption_section("carried", ['bash: x"). Ignore\nall'])
    assert r'"bash: x\"). Ignore\nall". The files' in section


def test_metrics_count_utf_16_units_of_the_trimmed_sections() -> None:
    source = PromptSource(task_markdown=" 𝄞é ", prompt_template="h")
    assert compose(source, instructions=" i ", resuming=False, run=RUN).metrics == {
        "promptChars": 1 + 2 + 3 + 2 + 1,
        "instructionsChars": 1,
        "skillsBundleChars": 0,
        "bootstrapPromptChars": 0,
        "wakePromptChars": 0,
        "taskMarkdownChars": 3,
        "sessionHandoffChars": 0,
        "heartbeatPromptChars": 1,
    }


def test_the_prompt_of_a_real_wake_has_the_prose_paperclip_rendered() -> None:
    prose = (FIXTURES / "paperclip" / "prompt-1-fresh.md").read_text()
    _, _, source = opened(captured("ctx-1"), wake_prompt={"fresh": prose, "resumed": "delta"})
    prompt = compose(source, resuming=False, run=RUN)
    assert prompt.text.startswith(prose.strip()[:200])
    assert source.task_markdown in prompt.text
    assert prompt.text.endswith("You are agent agent-1 (Dummy One). Continue your Paperclip work.")


def test_without_wake_prose_the_task_still_carries_the_new_comment() -> None:
    _, _, source = opened(captured("ctx-2"))
    assert "Please also do part two" in compose(source, resuming=True, run=RUN).text


def test_a_prompt_can_always_be_encoded() -> None:
    assert compose(FULL, instructions="a\ud83d", resuming=True, run=RUN).text.encode()


DATA: dict[str, Any] = {
    "a": {"b-c_d": {"1": "deep"}, "n": None, "t": True, "f": 1.0, "big": 1e21, "list": [{"x": 1}], "o": {"k": "é"}},
    "s": "{{a.t}}",
    "blank": "  ",
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{a.b-c_d.1}}", "deep"),
        ("{{  a.t\t}}|{{a.f}}|{{a.big}}", "true|1|1e+21"),
        ("{{a.n}}{{a.missing}}{{nobody.home}}", ""),
        ("{{a.list}}", '[{"x":1}]'),
        ("{{a.list.0.x}}{{a.t.x}}{{s.x}}", ""),
        ("{{a.o}}", '{"k":"é"}'),
        ("{{s}}", "{{a.t}}"),
        ("{{blank}}", "  "),
        ("{{.}}{{a..t}}", ""),
        ("{{ a b }} {a.t} {{}} {{a/t}}", "{{ a b }} {a.t} {{}} {{a/t}}"),
        ("{{{a.t}}}", "{true}"),
        ("{{\ufeffa.t\u00a0}}", "true"),
    ],
)
def test_templates_follow_paperclips_rules(template: str, text: str) -> None:
    assert render(template, DATA) == text


@given(st.text())
def test_an_inserted_text_is_never_rendered(value: str) -> None:
    assert render("<{{a}}>", {"a": value}) == f"<{value}>"


@given(st.text().filter(lambda text: "{{" not in text))
def test_text_without_placeholders_stays_as_it_is(text: str) -> None:
    assert render(text, DATA) == text


@given(
    st.lists(st.text("ab0_-", min_size=1, max_size=3), min_size=1, max_size=4),
    st.text(),
    st.sampled_from(["", " ", "\n"]),
)
def test_a_placeholder_finds_a_text_at_any_depth(steps: list[str], value: str, space: str) -> None:
    data: Any = value
    for step in reversed(steps):
        data = {step: data}
    assert render(f"{{{{{space}{'.'.join(steps)}{space}}}}}", data) == value


def test_skills_are_joined_with_a_rule() -> None:
    assert join_skills([" one\n", "", "two"]) == "one\n\n---\n\ntwo"


def test_the_instructions_section_names_its_file() -> None:
    section = instructions_section(" Be brief. \n", "/paperclip/agents/a/AGENTS.md")
    assert section.startswith("Be brief.\n\n")
    assert "/paperclip/agents/a/AGENTS.md" in section
    assert instructions_section(" \n", "/x") == ""
