"""What an attempt's pod used at most, from the sidecar's last frame and the container's status."""

from agent_runs.contracts.outcome import ContainerEnd, Peaks
from agent_runs.logs.frames import LastFrame


def with_peaks(end: ContainerEnd, last: LastFrame | None) -> ContainerEnd:
    """The end with the peaks that the last frame reports. The limit of the pod's own declaration has priority."""
    if last is None:
        return end
    limit = end.peaks.memory_limit if end.peaks.memory_limit is not None else last.memory_limit
    peaks = Peaks(memory=last.memory_peak, memory_limit=limit, output_disk=last.disk)
    return end.model_copy(update={"peaks": peaks})
