"""Requests in, answers out, for the models of one process: made ready beside the model, batched, answered in order.

Three kinds of threads work side by side, none of them the event loop of the server:

- one per model makes its requests ready: JSON, shapes, tokens (`Verb.prepare`), so that a request that is long to read
  holds up no other model;
- one or more per model take the items of the oldest request and of all others that may share its batch, up to a budget
  of slots, and run them (`Work.run`);
- whoever worked on the last item of a request writes its answer (`Work.finish`).

So a batch is as large as what is waiting, and nobody waits for a batch to fill.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from unmask.errors import UserError
from unmask.serving.limits import Limits, Refusal
from unmask.serving.metrics import Metrics
from unmask.serving.shapes import checked
from unmask.serving.verbs import Served, Warned, Work

JSON = "application/json"
WARNING = "x-unmask-warning"
"""Header of an answer whose form has no place for warnings."""
NAMED_IN_BODY = ""
"""In place of a model's name, where the body says which: its key `model`."""
PROBE = ""
"""In place of a verb: the model's own example, ahead of what waits, to see that it answers."""
PIECE = 1 << 18
"""Bytes of a body that are counted at a time; between two pieces other threads go on."""
TURN = 5e-4
"""Seconds after which a thread that runs Python gives way to one that waits: one that reads a large request else makes
every step of another model's answer wait 5 ms."""
UNCOUNTED = bytes(set(range(256)) - set(b'",:[{'))


@dataclass(frozen=True)
class Reply:
    """What goes back: a status of HTTP and a body of JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: UserError) -> Reply:
        """What says that a request is not answered as asked: 400 for what a person sent, unless the error says
        otherwise. OpenAI's clients show `message`, which is both sentences."""
        status, headers = (error.status, error.headers) if isinstance(error, Refusal) else (400, {})
        message = f"{error.what}. {error.hint}".rstrip(" .") + "."
        body = {"status": status, "what": error.what, "hint": error.hint, "message": message}
        return cls(status, orjson.dumps({"error": body}), headers)


@dataclass(eq=False)
class ModelRequest:
    """A request on its way.

    Attributes:
        action: a verb, 'DIALECT/TASK', or `PROBE`.
        content: type of the body.
        until: when it is given up (`time.monotonic`).
        cancelled: nobody waits for the answer any more.
        retried: it is handed over for the second time.
        tag: for whoever gets the answer.
        value: the body as JSON, where it was read to see which model it names.
        held: bytes of the body that the server counts.
    """

    model: str
    action: str
    body: bytes
    content: str
    until: float
    tag: Any = None
    cancelled: bool = False
    retried: bool = False
    value: Any = None
    held: int = 0


Deliver = Callable[[list[tuple[ModelRequest, Reply]]], None]
"""Gets answers, several at a time, in a thread of the engine."""


class ServingEngine:
    """Answers for some models.

    Args:
        served: the models by name.
        deliver: gets every answer once, except of requests that are `cancelled`.
        threads: per model; default see `threads_of`.
    """

    def __init__(
        self,
        served: Mapping[str, Served],
        deliver: Deliver,
        limits: Limits,
        metrics: Metrics,
        *,
        threads: int | None = None,
    ) -> None:
        self.served, self.deliver, self.limits, self.metrics = served, deliver, limits, metrics
        sys.setswitchinterval(TURN)
        self._lanes = {name: Lane(name, one, self, threads or threads_of(one)) for name, one in served.items()}
        self._arrived: dict[str, queue.SimpleQueue[ModelRequest | None]] = {
            name: queue.SimpleQueue() for name in (NAMED_IN_BODY, *served)
        }
        self._readers = {
            name: threading.Thread(target=self._make_ready, args=(name,), name=f"{name}-requests", daemon=True)
            for name in self._arrived
        }
        for reader in self._readers.values():
            reader.start()

    def submit(self, request: ModelRequest) -> None:
        """Take a request; its answer goes to `deliver`."""
        self._arrived[request.model].put(request)

    def submitters(self, model: str) -> Sequence[Callable[[ModelRequest], object]]:
        """What takes requests for a model, per process."""
        return [self.submit]

    def cancel(self, request: ModelRequest) -> None:
        """Nobody waits for an answer any more."""
        request.cancelled = True

    def close(self, seconds: float | None = None) -> None:
        """Answer what was taken, then end the threads; one that is stuck for so long is left behind. Default: until all
        answers are late."""
        until = time.monotonic() + (self.limits.seconds if seconds is None else seconds)
        for name, reader in self._readers.items():  # first that of bodies which name a model: it hands them on
            self._arrived[name].put(None)
            reader.join(max(0.0, until - time.monotonic()))
        for lane in self._lanes.values():
            lane.close(until)
        for one in self.served.values():
            one.close()

    def _make_ready(self, name: str) -> None:
        while (request := self._arrived[name].get()) is not None:
            if request.cancelled:
                continue
            try:
                if name == NAMED_IN_BODY:
                    request.value = _json(request, self.limits)
                    request.model = self._named(request.value, request.action)
                    self.submit(request)
                    continue
                lane = self._lanes[request.model]
                if request.action == PROBE and lane.busy():
                    self.deliver([(request, Reply(200, b"{}"))])
                    continue
                work = self._read(request)
                self._check(work)
                if work.items:
                    lane.add(QueuedRequest(request, work))
                else:
                    self.deliver([(request, _finished(work, []))])
            except BaseException as error:  # a panic in a library is no Exception, and this thread reads on
                self.deliver([(request, failure(error))])

    def _read(self, request: ModelRequest) -> Work:
        one = self.served[request.model]
        if request.action == PROBE:
            return _probe(one)
        verb = one.dialects[request.action] if "/" in request.action else one.verbs[request.action]
        body = request.value
        if body is None:
            raw = None if "json" in request.content else verb.raw
            body = _json(request, self.limits) if raw is None else raw(request.body)
        return verb.prepare(checked(verb.request, body))

    def _named(self, body: Any, action: str) -> str:
        """The model that a body names, refused where it is none that answers the action."""
        name = body.get("model") if isinstance(body, dict) else None
        able = [known for known, one in self.served.items() if action in one.dialects]
        if name not in able:
            named = f"model {str(name)[:60]!r}" if name is not None else "no model is named"
            raise Refusal(404 if name is not None else 400, named, hint="/models lists those that are served.")
        return str(name)

    def _check(self, work: Work) -> None:
        total = sum(work.slots)
        if total > self.limits.slots:
            raise Refusal(
                400,
                f"{total:,} slots (tokens, cells, patches or events), at most {self.limits.slots:,} per request",
                hint="Send it in parts.",
            )


@dataclass(eq=False)
class QueuedRequest:
    """A request in a lane.

    Attributes:
        taken: how many of its items are or were worked on.
        left: how many have no answer yet.
    """

    request: ModelRequest
    work: Work
    taken: int = 0
    left: int = 0
    answers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = len(self.work.items)
        self.answers = [None] * self.left


Part = tuple[QueuedRequest, int, int]
"""A job and which of its items, from and to."""


class Lane:
    """The work that waits for one model, and the threads that do it."""

    def __init__(self, name: str, served: Served, engine: ServingEngine, threads: int) -> None:
        self.name, self.served, self.engine = name, served, engine
        self._jobs: deque[QueuedRequest] = deque()
        self._lock = threading.Lock()
        self._first, self._others = threading.Condition(self._lock), threading.Condition(self._lock)
        self._closed = False
        self._torch = importlib.import_module("torch") if threads > 1 else sys.modules.get("torch")
        given = self._torch.get_num_threads() if self._torch else 1
        self._cores_alone = cores_alone(served) if threads > 1 else given
        self._busy = [False] * threads
        self._began = [0.0] * threads
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, job: QueuedRequest) -> None:
        with self._lock:
            if job.request.action == PROBE:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            self._wake_one()

    def _wake_one(self) -> None:
        """The first thread where it has nothing to do, else another."""
        (self._others if self._busy[0] else self._first).notify()

    def busy(self) -> bool:
        """Whether every thread works on what somebody has asked, one of them for less than an answer may take: a probe
        would only wait for it."""
        return min(self._began) > 0 and time.monotonic() - max(self._began) < self.engine.limits.seconds

    def close(self, until: float) -> None:
        """Work on what is waiting, then end; at most until a time."""
        with self._lock:
            self._closed = True
            self._first.notify_all()
            self._others.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self, number: int) -> None:
        while (parts := self._next(number)) is not None:
            if parts:
                if self._torch:  # what another thread has set is the default of this one
                    self._torch.set_num_threads(self._cores(number))
                self._began[number] = time.monotonic() if parts[0][0].request.action != PROBE else 0.0
                self._run(parts)
                self._began[number] = 0.0

    def _cores(self, number: int) -> int:
        """For the products of one of several threads: a core each; more for the first one, which takes what comes
        alone, while no other is at work and nothing waits. An only thread has all that torch was given."""
        with self._lock:
            alone = number == 0 and not any(self._busy[1:]) and not (self._jobs and len(self._busy) > 1)
        return self._cores_alone if alone else 1

    def _next(self, number: int) -> list[Part] | None:
        """Items for one batch of a thread: of the oldest job, and of those that may share it; None when all is done."""
        late: list[QueuedRequest] = []
        with self._lock:
            self._busy[number] = False
            while not self._jobs or (number > 0 and not self._busy[0]):
                if self._closed and not self._jobs:
                    self._others.notify_all()
                    return None
                (self._others if number else self._first).wait()
            self._busy[number] = True
            now, remaining, parts = time.monotonic(), deque[QueuedRequest](), list[Part]()
            room, together = self.served.batch_slots, None
            while self._jobs:
                job = self._jobs.popleft()
                if job.request.cancelled:
                    continue
                if job.request.until < now:
                    late.append(job)
                    continue
                if not parts or (room > 0 and together is not None and job.work.together == together):
                    end = _fit(job, room, first=not parts)
                    if end > job.taken:
                        together = job.work.together
                        parts.append((job, job.taken, end))
                        room -= sum(job.work.slots[job.taken : end])
                        job.taken = end
                if job.taken < len(job.work.items):
                    remaining.append(job)
                if room <= 0 or (parts and together is None):
                    break
            remaining.extend(self._jobs)
            self._jobs = remaining
            if remaining:
                self._wake_one()
        if late:
            error = Refusal(504, f"no answer within {self.engine.limits.seconds:g} s", hint="Ask for less, or later.")
            self.engine.deliver([(job.request, Reply.of(error)) for job in late])
        return parts

    def _run(self, parts: list[Part]) -> None:
        start = time.perf_counter()
        payloads = [item for job, first, end in parts for item in job.work.items[first:end]]
        try:
            answers = parts[0][0].work.run(payloads)
        except BaseException as error:
            if len({id(job) for job, _, _ in parts}) > 1:  # one request's fault is not the others'
                for part in parts:
                    self._run([part])
                return
            job = parts[0][0]
            job.request.cancelled, unheard = True, job.request.cancelled
            if not unheard:
                self.engine.deliver([(job.request, failure(error))])
            return
        slots = sum(sum(job.work.slots[first:end]) for job, first, end in parts)
        self.engine.metrics.batch(self.name, len(payloads), slots, time.perf_counter() - start)
        self._hand_out(parts, answers)

    def _hand_out(self, parts: Sequence[Part], answers: Sequence[Any]) -> None:
        done, place = [], 0
        for job, first, end in parts:
            job.answers[first:end] = answers[place : place + end - first]
            place += end - first
            with self._lock:  # items of one job may be in the hands of several threads
                job.left -= end - first
                whole = job.left == 0
            if whole and not job.request.cancelled:
                done.append((job.request, _finished(job.work, job.answers)))
        if done:
            self.engine.deliver(done)


def threads_of(served: Served) -> int:
    """How many threads work for a model where it is not said: for texts in bf16 or int8 on a CPU one per core, each
    with its own requests, since two cores are not twice as soon done with the short products of one batch as one is;
    else one, whose products have all cores."""
    if _short_products(served):
        import torch

        return torch.get_num_threads()
    return 1


def cores_alone(served: Served) -> int:
    """How many cores the first of several threads has while it is the only one at work: two (more were not tried) for
    texts in bf16 or int8, since one text through MiniLM-L6 takes 8 ms then instead of 14, with the same bits. One with
    AMX, where one core was as quick (measured while threads still slept between products)."""
    if not _short_products(served):
        return 1
    import torch

    from unmask.training.precision import bf16_features

    return 1 if "AMX" in bf16_features() else min(2, torch.get_num_threads())


def _short_products(served: Served) -> bool:
    about = served.about
    return served.kind == "text" and about["device"] == "cpu" and about["precision"] in ("bf16", "int8")


def _fit(job: QueuedRequest, room: int, *, first: bool) -> int:
    """Up to which item a job fits into a batch; the first of a batch is taken whatever its size."""
    end, slots = job.taken, job.work.slots
    while end < len(slots) and (slots[end] <= room or (first and end == job.taken)):
        room -= slots[end]
        end += 1
    return end


def _probe(served: Served) -> Work:
    """The first example that the model can answer; where there is none, work that only passes its threads."""
    for verb in served.verbs.values():
        with contextlib.suppress(UserError):
            work = None if verb.example is None else verb.prepare(checked(verb.request, verb.example))
            if work is not None and work.items:
                return work
    return Work(items=[None], slots=[1], run=list, finish=list)


def _json(request: ModelRequest, limits: Limits) -> Any:
    """The body, refused where it is not JSON, or said not to be, or of too many values."""
    if request.content and "json" not in request.content:
        raise Refusal(415, f"a body of type {request.content[:60]}", hint=f"Send JSON, with content-type: {JSON}.")
    if counted(request.body, limits.values) > limits.values:
        raise Refusal(400, f"a body of more than {limits.values:,} keys and values", hint="Send it in parts.")
    try:
        return orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("Not enough memory"):
            raise MemoryError from None
        raise Refusal(400, f"the body is not JSON: {error.msg} at character {error.pos}", hint="Send JSON.") from None


def counted(body: bytes, most: float = math.inf) -> int:
    """Keys and values within a JSON value, before it is read; an empty object or list within counts twice.

    Args:
        most: where there are more, they are not all counted.
    """
    import numpy as np

    count, within, start = 0, False, 0
    while start < len(body) and count <= most:
        piece = body[start : start + PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the character behind a backslash belongs to it
            piece = body[start : start + PIECE + 1]
        start += len(piece)
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        marks = np.frombuffer(plain.translate(None, UNCOUNTED), np.uint8)
        quotes = marks == ord('"')
        texts = np.logical_xor.accumulate(quotes) ^ within
        count += int(np.count_nonzero(~(texts | quotes)))
        within ^= bool(np.count_nonzero(quotes) % 2)
    return count


def _finished(work: Work, answers: Sequence[Any]) -> Reply:
    try:
        found, headers = work.finish(answers), dict[str, str]()
        if isinstance(found, Warned):
            found, headers = found.value, {WARNING: found.header}
        return Reply(200, orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY, default=_plain), headers)
    except BaseException as error:
        return failure(error)


def _plain(value: Any) -> Any:
    """What JSON has no form for: NumPy's numbers, dates and sets as what they stand for."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def failure(error: BaseException) -> Reply:
    """What is said of an error: of a person's all of it, of ours where it is in the code, and never what was sent."""
    if isinstance(error, UserError):
        return Reply.of(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's is a RuntimeError
        return Reply.of(Refusal(503, "there is not enough memory for this request", hint="Send it in parts."))
    places = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)]
    with contextlib.suppress(OSError, ValueError):  # whoever read the log has closed it
        print(f"unmask serve: {type(error).__name__} at " + " < ".join(reversed(places)), file=sys.stderr, flush=True)
    return Reply.of(Refusal(500, f"the server failed: {type(error).__name__}", hint="Its log says where."))
