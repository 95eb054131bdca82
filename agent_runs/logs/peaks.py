"""What an attempt's pod used at most, from the sidecar's last frame and the container's status."""

from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.logs.frames import LastFrame


def with_peaks(end: ContainerEnd, last: LastFrame | None) -> ContainerEnd:
    """The end with the peaks that the last frame reports. The limit of the pod's own declaration has priority.

    A runner that was killed with its container reports no peak: then it is what the status tells.
    """
    if last is None:
        return end
    limit = end.peaks.memory_limit if end.peaks.memory_limit is not None else last.memory_limit
    known = end.peaks.model_copy(update={"memory_limit": limit, "output_disk": last.disk})
    if last.memory_peak is not None:
        known = known.model_copy(update={"memory": last.memory_peak, "memory_reached_limit": False})
    return end.model_copy(update={"peaks": known})
