"""What the server counts, in the text format of Prometheus."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

ENDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, math.inf)
"""Upper ends, in seconds, of the buckets that answers are counted in."""
REQUESTS, BUSY = "unmask_requests_total", "unmask_busy_seconds_total"
COUNTED = {
    REQUESTS: "Requests answered.",
    "unmask_batches_total": "Batches run.",
    "unmask_items_total": "Texts, rows, pictures or patients in them.",
    "unmask_slots_total": "Tokens, cells, patches or events in them.",
    BUSY: "Seconds in which the model worked.",
}


class Metrics:
    """Counts of requests and batches; methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started = time.time()
        self.waiting = self.restarts = 0
        self._counts: dict[str, dict[str, float]] = {name: defaultdict(float) for name in COUNTED}
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    def request(self, model: str, action: str, status: int, seconds: float) -> None:
        """An answer went out."""
        label = f'model="{model}",action="{action}"'
        with self._lock:
            self._counts[REQUESTS][f'{label},status="{status}"'] += 1
            self._seconds[label] += seconds
            counts = self._buckets.get(label, [0] * len(ENDS))
            self._buckets[label] = [count + (seconds <= end) for count, end in zip(counts, ENDS, strict=True)]

    def batch(self, model: str, items: int, slots: int, seconds: float) -> None:
        """A batch was worked on."""
        with self._lock:
            for name, value in zip(list(COUNTED)[1:], (1, items, slots, seconds), strict=True):
                self._counts[name][f'model="{model}"'] += value

    def mean_seconds(self) -> float:
        """Seconds of the models' work per request so far; 0 before any."""
        with self._lock:
            return sum(self._counts[BUSY].values()) / max(1.0, sum(self._counts[REQUESTS].values()))

    def text(self) -> str:
        """All of it."""
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, about in COUNTED.items():
            yield from _family(name, "counter", about)
            for label, value in sorted(self._counts[name].items()):
                yield f"{name}{{{label}}} {value:.6f}".rstrip("0").rstrip(".")
        yield from _family("unmask_request_seconds", "histogram", "Seconds from the whole request to its answer.")
        for label, counts in sorted(self._buckets.items()):
            for end, count in zip(ENDS, counts, strict=True):
                yield f'unmask_request_seconds_bucket{{{label},le="{end if end < math.inf else "+Inf"}"}} {count}'
            yield f"unmask_request_seconds_sum{{{label}}} {self._seconds[label]:.6f}"
            yield f"unmask_request_seconds_count{{{label}}} {counts[-1]}"
        for name, kind, about, shown in (
            ("unmask_waiting", "gauge", "Requests taken and not answered yet.", f"{self.waiting}"),
            ("unmask_worker_restarts_total", "counter", "Worker processes that were replaced.", f"{self.restarts}"),
            (
                "unmask_start_time_seconds",
                "gauge",
                "When the server began, in seconds since 1970.",
                f"{self.started:.3f}",
            ),
        ):
            yield from _family(name, kind, about)
            yield f"{name} {shown}"


def _family(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
