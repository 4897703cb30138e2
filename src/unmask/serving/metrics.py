"""What the server counts, in the text format of Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

ANSWERED = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends, in seconds, of the buckets that answers are counted in."""


class Metrics:
    """Counts of requests and batches; methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started = time.time()
        self.waiting = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[tuple[str, str]] = Counter()
        self.buckets: dict[tuple[str, str], list[int]] = {}
        self.batches: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        self.slots: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.restarts = 0

    def request(self, model: str, action: str, status: int, seconds: float) -> None:
        """An answer went out."""
        with self._lock:
            self.requests[model, action, status] += 1
            self.seconds[model, action] += seconds  # type: ignore[assignment]
            counts = self.buckets.setdefault((model, action), [0] * (len(ANSWERED) + 1))
            counts[next((n for n, end in enumerate(ANSWERED) if seconds <= end), len(ANSWERED))] += 1

    def batch(self, model: str, items: int, slots: int, seconds: float) -> None:
        """A batch was worked on."""
        with self._lock:
            self.batches[model] += 1
            self.items[model] += items
            self.slots[model] += slots
            self.busy[model] += seconds  # type: ignore[assignment]

    def mean_seconds(self) -> float:
        """Seconds of the models' work per request so far; 0 before any."""
        with self._lock:
            return float(sum(self.busy.values())) / max(1, sum(self.requests.values()))

    def text(self) -> str:
        """All of it."""
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _family("unmask_requests_total", "counter", "Requests answered.")
        for (model, action, status), count in sorted(self.requests.items()):
            yield f'unmask_requests_total{{model="{model}",action="{action}",status="{status}"}} {count}'
        yield from _family("unmask_request_seconds", "histogram", "Seconds from the whole request to its answer.")
        for (model, action), counts in sorted(self.buckets.items()):
            label, total = f'model="{model}",action="{action}"', 0
            for end, count in zip((*ANSWERED, "+Inf"), counts, strict=True):
                total += count
                yield f'unmask_request_seconds_bucket{{{label},le="{end}"}} {total}'
            yield f"unmask_request_seconds_sum{{{label}}} {self.seconds[model, action]:.6f}"
            yield f"unmask_request_seconds_count{{{label}}} {total}"
        for name, about, counter in (
            ("unmask_batches_total", "Batches run.", self.batches),
            ("unmask_items_total", "Texts, rows, pictures or patients in them.", self.items),
            ("unmask_slots_total", "Tokens, cells, patches or events in them.", self.slots),
            ("unmask_busy_seconds_total", "Seconds in which the model worked.", self.busy),
        ):
            yield from _family(name, "counter", about)
            for model, value in sorted(counter.items()):
                yield f'{name}{{model="{model}"}} {value:.6f}'.rstrip("0").rstrip(".")
        yield from _family("unmask_waiting", "gauge", "Requests taken and not answered yet.")
        yield f"unmask_waiting {self.waiting}"
        yield from _family("unmask_worker_restarts_total", "counter", "Worker processes that were replaced.")
        yield f"unmask_worker_restarts_total {self.restarts}"
        yield from _family("unmask_start_time_seconds", "gauge", "When the server began, in seconds since 1970.")
        yield f"unmask_start_time_seconds {self.started:.3f}"


def _family(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
