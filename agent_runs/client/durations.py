"""Durations for people."""

from datetime import timedelta


def duration_text(duration: timedelta) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
