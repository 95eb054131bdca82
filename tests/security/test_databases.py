"""Different tasks never share a database: one could read what the agent of another one did."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.messages import PodProfile
from agent_runs.job.data_volume import database_path
from agent_runs.job.volumes import keeps_sessions
from tests.job.inputs import create_job_input

ALIKE = ("ISS_1/x", "iss_1_x", "iss_1/x", "ISS_1_X", "iss_1 x", "iss_1_x ", "x" * 200, "x" * 201, "..", "__", ".")
NAMES = st.text(min_size=1)


def test_a_name_that_imitates_the_folder_of_another_has_its_own() -> None:
    folder = database_path("co", "agent", "BLO-1").rpartition("/")[2]
    assert database_path("co", "agent", folder) != database_path("co", "agent", "BLO-1")


def test_names_that_look_alike_have_folders_of_their_own() -> None:
    for first, second in combinations(ALIKE, 2):
        assert database_path("co", "agent", first) != database_path("co", "agent", second), (first, second)


@given(st.tuples(NAMES, NAMES, NAMES), st.tuples(NAMES, NAMES, NAMES))
def test_only_the_same_company_agent_and_task_have_the_same_folder(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (database_path(*one) == database_path(*other)) == (one == other)


@pytest.mark.parametrize("task_key", [None, "", "  "])
def test_a_run_without_a_task_shares_no_database(task_key: str | None) -> None:
    profile = PodProfile(namespace="agents", image="i", data_claim="claim")
    assert not keeps_sessions(create_job_input(task_key=task_key, profile=profile))
    assert keeps_sessions(create_job_input(task_key="task", profile=profile))


def test_a_folder_is_named_after_what_it_is_for_as_far_as_128_characters_go() -> None:
    names = [database_path("co", "agent", "x" * length).rpartition("/")[2] for length in (127, 128, 129, 500)]
    assert names[:2] == ["x" * 127, "x" * 128]
    assert [(len(name), name[:112]) for name in names[2:]] == [(128, f"{'x' * 111}-")] * 2
