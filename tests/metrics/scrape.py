"""Reads what a worker exposes at `/metrics`, and lets alerts look at it."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp

from tests.runs.system import System
from tests.support.ports import HOST, free_port

_SAMPLE = re.compile(r"(?P<name>[a-z_:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Series:
    """One series: the name of its sample, as `_bucket` has one of its own, and its labels."""

    name: str
    labels: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return self.name + "{" + ",".join(f'{name}="{value}"' for name, value in self.labels) + "}"


@dataclass(frozen=True)
class Scrape:
    """What one scrape showed.

    Attributes:
        types: of each metric, by its name.
    """

    values: Mapping[Series, float] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """The sum of the series of this name that have these labels; 0 without any."""
        return sum(value for series, value in self._matching(name, labels))

    def has(self, name: str, **labels: str) -> bool:
        return any(True for _ in self._matching(name, labels))

    def _matching(self, name: str, labels: dict[str, str]) -> Iterator[tuple[Series, float]]:
        for series, value in self.values.items():
            if series.name == name and labels.items() <= dict(series.labels).items():
                yield series, value


def parsed(text: str) -> Scrape:
    """The samples of Prometheus' text format."""
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
        elif line and not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match, line
            labels = tuple(sorted((name, value) for name, value in _LABEL.findall(match["labels"] or "")))
            values[Series(match["name"], labels)] = float(match["value"])
    return Scrape(values, types)


async def scrape(address: str) -> Scrape:
    """Scrape a worker; nothing if it does not answer, as Prometheus then has nothing."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as response:
            return parsed(await response.text())
    except aiohttp.ClientError:
        return Scrape()


def free_address() -> str:
    """An address of this machine that nobody listens at."""
    return f"{HOST}:{free_port()}"


async def until(address: str, name: str, least: float = 1, **labels: str) -> Scrape:
    """The first scrape in which this sample has at least this value."""
    while (seen := await scrape(address)).value(name, **labels) < least:  # noqa: ASYNC110 - another process counts
        await asyncio.sleep(0.1)
    return seen


async def until_sampled(address: str) -> Scrape:
    """The first scrape of a worker that has taken a sample."""
    while not (seen := await scrape(address)).has("agent_runs_open_runs"):  # noqa: ASYNC110 - another process samples
        await asyncio.sleep(0.1)
    return seen


def environment(system: System, metrics: str) -> dict[str, str]:
    return {**system.environment, **system.worker_environment, "AGENT_RUNS_METRICS_LISTEN": metrics}
