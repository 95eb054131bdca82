"""The last frame has the container's memory peak and limit and the output's size on disk; bounded, or not known."""

import json
from pathlib import Path

import pytest

from agent_runs.contracts.outcome import ContainerEnd, Peaks
from agent_runs.logs.frames import LastFrame, with_peaks
from tests.pod.harness import Runner

MIB = 1024 * 1024
V2 = {"memory.peak": f"{300 * MIB}", "memory.max": f"{512 * MIB}"}
V1 = {"memory/memory.max_usage_in_bytes": f"{300 * MIB}", "memory/memory.limit_in_bytes": f"{512 * MIB}"}


def cgroup(runner: Runner, folder: Path, files: dict[str, str]) -> LastFrame:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    runner.env = {**runner.env, "RUNNER_CGROUP": str(folder)}
    return runner.start("sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo; exit 3").end().last


@pytest.mark.parametrize("files", [V2, V1], ids=["cgroup v2", "cgroup v1"])
def test_peak_and_limit_are_those_of_the_container(runner: Runner, tmp_path: Path, files: dict[str, str]) -> None:
    last = cgroup(runner, tmp_path, files)
    assert (last.exit_code, last.memory_peak, last.memory_limit) == (3, 300 * MIB, 512 * MIB)
    assert last.disk is not None
    assert 100_000 <= last.disk < 1_000_000


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"memory.peak": "", "memory.max": "max"},
        {"memory.peak": "1 result 0", "memory.max": "-5"},
        {"memory.peak": "9" * 19, "memory.max": "9223372036854771712"},
    ],
    ids=["no cgroup", "no limit", "no numbers", "too large"],
)
def test_what_is_no_amount_is_not_known(runner: Runner, tmp_path: Path, files: dict[str, str]) -> None:
    last = cgroup(runner, tmp_path, files)
    assert (last.exit_code, last.memory_peak, last.memory_limit) == (3, None, None)


@pytest.mark.parametrize("amount", ["-1", "1e30", "1000000000000000000", '"1"', "1.5", "true"])
def test_an_amount_that_no_sidecar_writes_makes_the_frame_unreadable(amount: str) -> None:
    frame = LastFrame.parse(json.dumps({"exit_code": 0, "memory_peak": "?"}).replace('"?"', amount).encode())
    assert frame.error == "last_frame_unreadable"


def test_the_declared_limit_counts_more_than_the_reported_one() -> None:
    end = ContainerEnd(exit_code=0, peaks=Peaks(memory_limit=5))
    last = LastFrame(memory_peak=3, memory_limit=9, disk=7)
    assert with_peaks(end, last).peaks == Peaks(memory=3, memory_limit=5, output_disk=7)
    assert with_peaks(end, None) == end


def test_a_container_that_was_killed_at_its_limit_had_reached_it_unless_its_runner_tells_more() -> None:
    killed = ContainerEnd(peaks=Peaks(memory=5, memory_reached_limit=True, memory_limit=5))
    assert with_peaks(killed, LastFrame(disk=7)).peaks == killed.peaks.model_copy(update={"output_disk": 7})
    known = LastFrame(memory_peak=4, disk=7)
    assert with_peaks(killed, known).peaks == Peaks(memory=4, memory_limit=5, output_disk=7)


def test_a_limit_is_advised_from_the_evidence() -> None:
    limit = 512 * MIB
    assert Peaks(memory=limit, memory_limit=limit).memory_advice == (
        "; limit 512 MiB, peak 512 MiB: set resources.limits.memory to at least 768Mi"
    )
    assert Peaks(memory=limit, memory_reached_limit=True, memory_limit=limit).memory_advice == (
        "; limit 512 MiB, peak at least 512 MiB: set resources.limits.memory to at least 768Mi"
    )
    assert Peaks(memory_limit=1000 * MIB).memory_advice == (
        "; limit 1,000 MiB, which it reached: set resources.limits.memory to at least 1536Mi"
    )
    assert Peaks(memory=limit).memory_advice == ""


def test_peaks_are_one_line_for_people() -> None:
    assert Peaks(memory=300 * MIB, memory_limit=512 * MIB, output_disk=9).text == (
        "memory 300 MiB of 512 MiB, output on disk 9 bytes"
    )
    assert Peaks(memory=MIB, memory_reached_limit=True, memory_limit=MIB).text == ("memory at least 1 MiB of 1 MiB")
    assert Peaks().text == ""
