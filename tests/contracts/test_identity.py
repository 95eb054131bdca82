"""Names are deterministic, valid and the peers' own."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from agent_runs.contracts.identity import AttemptKey, RunKey, distinct, identity_label, label_value, workflow_id
from agent_runs.job.volumes import claim_name

UUID = "b1677834-f306-4a0e-9c14-97a6dc937575"
RUN = RunKey(agent_id=UUID, company_id="c", run_id="7d6733a4-a207-4bf9-87db-cf32e87a5407")


def test_the_first_attempt_keeps_the_peers_job_name() -> None:
    name = AttemptKey(run=RUN).job_name
    assert name == "agent-opencode-b1677834-f306-4a-7d6733a4-a207-4b-" + name[-6:]
    assert re.fullmatch(r"[0-9a-f]{6}", name[-6:])


def test_each_attempt_has_its_own_names() -> None:
    names = {AttemptKey(run=RUN, attempt=n).job_name for n in (1, 2, 3)}
    assert len(names) == 3
    assert all(len(name) <= 63 for name in names)


def test_the_workflow_id_is_the_guard_of_one_agent() -> None:
    assert workflow_id(UUID) == f"agent-run:{UUID}"


@given(st.text(max_size=200), st.text(max_size=200), st.integers(1, 999))
def test_any_identifier_gives_a_valid_job_name(agent: str, run: str, attempt: int) -> None:
    key = AttemptKey(run=RunKey(agent_id=agent, company_id="c", run_id=run), attempt=attempt)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", key.job_name)


@given(st.text(max_size=200))
def test_any_text_gives_a_valid_label_value(text: str) -> None:
    value = label_value(text)
    assert re.fullmatch(r"([a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?)?", value)
    assert label_value(value) == value


@given(st.text(max_size=200))
@example("x" * 64)
def test_any_id_gives_a_valid_label_of_its_own(text: str) -> None:
    value = identity_label(text)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?", value) or not text
    assert value == text or value != label_value(text)


def test_ids_that_are_equal_as_labels_are_different_agents() -> None:
    ids = ("probe-ax", "probe-aX", "Probe-AX", "probe:ax", "probe-ax.", "x" * 70, "x" * 71)
    assert len({identity_label(each) for each in ids}) == len(ids)
    assert len({claim_name(each) for each in ids}) == len(ids)
    assert identity_label(UUID) == UUID


def test_a_name_that_is_cut_is_as_long_as_it_may_be() -> None:
    for limit in (20, 63):
        name = distinct("x" * 300, "another", limit)
        assert re.fullmatch(rf"x{{{limit - 17}}}-[0-9a-f]{{16}}", name), name
