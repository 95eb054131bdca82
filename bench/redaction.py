"""What redaction costs: an ordinary line, a long line, and a line that is nothing but secrets, by how many there are.

Run as `python -m bench.redaction`. An ordinary line is an OpenCode event of 1.1 kB without a secret. Times are the
thread's CPU time, the best of five rounds; the memory is the most that Python held beside the line itself.
"""

import hashlib
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

from agent_runs.paperclip.redaction import Redaction

ROUNDS: Final = 5
LINES: Final = 2000
SECRETS: Final = 20_000
LONG: Final = 16 * 1024 * 1024
TEXT: Final = "I will run the next step and read what it says, as in /usr/bin/env. "


def values(count: int) -> list[tuple[str, str]]:
    """So many secrets of 40 characters."""
    digests = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(count))
    return [(f"SECRET_{number}_TOKEN", digest[:40]) for number, digest in enumerate(digests)]


def cpu(call: Callable[[], object]) -> float:
    """Seconds of CPU, the best of all rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        call()
        best = min(best, time.thread_time() - began)
    return best


def peak(call: Callable[[], object]) -> int:
    """Most bytes at a time."""
    tracemalloc.start()
    call()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def row(count: int, line: bytes, long: bytes) -> str:
    known = values(count)
    redaction = Redaction.of(known)
    secrets = b"".join(value.encode() for _, value in known) * (SECRETS // count)
    build = cpu(lambda: Redaction.of(known))
    ordinary = cpu(lambda: [redaction.redact(line) for _ in range(LINES)])
    whole = cpu(lambda: redaction.redact(long))
    each = cpu(lambda: redaction.redact(secrets)) / SECRETS
    return f"| {count} | {build * 1e3:.1f} | {ordinary / LINES * 1e6:.1f} | {whole * 1e3:.0f} | {each * 1e6:.1f} |"


def main() -> None:
    part = {"id": "prt_8", "messageID": "msg_1", "type": "text", "text": TEXT * 15}
    line = json.dumps({"type": "text", "timestamp": 1, "sessionID": "ses_1", "part": part}).encode()
    long = (line + b" ") * (LONG // len(line))
    print("| secrets | build, ms | ordinary line, us | 16 MiB, ms | nothing but secrets, us each |")
    print("|---:|---:|---:|---:|---:|")
    for count in (1, 10, 40, 200, 500):
        print(row(count, line, long))
    short = Redaction.of([(f"{'N' * 240}_TOKEN", "s3cret-8")])
    worst = b"s3cret-8" * (LONG // 8)
    print(f"\n16 MiB of one secret of 8 characters: {cpu(lambda: short.redact(worst)):.1f} s, ", end="")
    print(f"{len(short.redact(worst)) / LONG:.1f} times as long, {peak(lambda: short.redact(worst)) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
