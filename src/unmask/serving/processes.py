"""Several processes behind one server: nobody's request is lost in silence when one dies.

By default each model has a process, so that a request that is long to read delays no other model: the interpreter runs
one thread of a process at a time. Else all models are answered for by one or more processes.

One process is started afresh, loads the models and answers (`worker.py`). Where several are asked for, it answers
nothing itself: it is copied (forked) as often, so that all share one set of weights in memory, and a process that dies
is replaced by another copy within milliseconds. Threads do not survive a fork, so that only a process with a single one
is copied; where loading has started others, each process loads for itself. The server sends requests as they came, and
gets answers; what a dead process was working on is handed to another one, once. All answer from the same models: no
process loads a folder that was replaced since.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from unmask.errors import UserError
from unmask.serving.engine import NAMED_IN_BODY, PROBE, ModelRequest, Reply
from unmask.serving.gateway import Gateway
from unmask.serving.limits import Refusal

MODEL_KEY = re.compile(rb'"model"\s*:\s*"([^"\\]+)"')
LONGEST_PAUSE = 30.0
"""Seconds before a process is started again that died before it was ready, at most."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""OpenMP, OpenBLAS and tokenizers keep threads from their first use on, and a process with threads is not copied."""


class Fleet:
    """Processes that answer; as an `Engine` to the server. They begin to load at once; `described` waits for them.

    Args:
        workers: processes with all models each; None: one per model, which is all that it loads.

    Attributes:
        reasons: models of a process -> why one with them could not be replaced; '' when the last one could.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        gateway: Gateway,
        *,
        workers: int | None = None,
        threads: int | None,
        device: str,
        precision: str,
    ) -> None:
        self.gateway, self.count = gateway, workers or 1
        self.settings: dict[str, Any] = {
            "models": dict(models),
            "limits": gateway.limits,
            "threads": threads,
            "device": device,
            "precision": precision,
            "cores": max(1, cores() // self.count),
            "parallel": os.environ.get("TOKENIZERS_PARALLELISM", "true"),
        }
        self._workers: list[Worker] = []
        self._held = deque[ModelRequest]()
        self.reasons: dict[tuple[str, ...], str] = {}
        self.template = Process(self.settings | {"copied": True}) if self.count > 1 else None
        alone = [{name: folder} for name, folder in models.items()] if workers is None else [dict(models)]
        self._processes = [] if self.template else [Process(self.settings | {"models": own}) for own in alone]

    def described(self) -> Mapping[str, Any]:
        """Wait until all are ready; what the models are, by name: see `Served.described`."""
        loaded: dict[str, Any] = {}
        try:
            if self.template is not None:
                found = self.template.hello()
                loaded |= found["models"]
                if not found["alone"]:
                    self.settings |= {"contents": found["contents"]}  # all others load the same
                    self.template.end()
                    self.template, self._processes = None, [Process(self.settings) for _ in range(self.count)]
            for process in self._processes:
                loaded |= process.hello()["models"]
            started: Sequence[Process | None] = self._processes or [None] * self.count
            self._workers = [Worker(self, process) for process in started]
            for worker in self._workers:
                worker.begin()
        except BaseException:
            self.close()
            raise
        return loaded

    def copy(self) -> Connection:
        """The pipe to another copy of the process that has loaded the models, which is loaded again if it has died; an
        OSError where it dies this moment."""
        assert self.template is not None
        with self.template.lock:
            if self.template.ended():
                self.template.start()
                self.template.hello()
            return self.template.copy()

    def submit(self, request: ModelRequest) -> None:
        """Hand a request to the process of its model with the fewest. While none is alive it is held until one has been
        replaced."""
        name = request.model
        if name == NAMED_IN_BODY and (found := MODEL_KEY.search(request.body)):
            name = found[1].decode(errors="replace")
        able = self._of(name)
        for worker in sorted((one for one in able if one.alive), key=lambda one: len(one.pending)):
            if worker.send(request):
                return
        reason = self.reasons.get(able[0].models, "")
        if reason or request.action == PROBE:
            self.refuse([request], f"no process is ready to answer{reason and f': {reason}'}")
            return
        self._held.append(request)
        if any(worker.alive for worker in able):  # since
            self.submit_held()

    def _of(self, model: str) -> Sequence[Worker]:
        """The processes that have a model; those that have the first one refuse a name that none has."""
        return [one for one in self._workers if model in one.models] or self._of(self._workers[0].models[0])

    def retry(self, requests: Sequence[ModelRequest]) -> None:
        """Requests whose process has died: each is handed to another one, once. They leave nothing behind, so that
        asking again is safe; one that ends processes ends two."""
        for request in requests:
            if request.retried or request.action == PROBE:
                self.refuse([request], "the process with this request died")
                continue
            request.retried = True
            self.submit(request)

    def submit_held(self) -> None:
        """A process has been replaced, or cannot be: what waits for one is handed over, or refused."""
        for _ in range(len(self._held)):
            if not (request := self._held.popleft()).cancelled:
                self.submit(request)

    def refuse(self, requests: Sequence[ModelRequest], what: str) -> None:
        """Say of requests that no process answers them."""
        error = Refusal(503, what, hint="Ask again.", wait=1)
        self.gateway.deliver([(request, Reply.of(error)) for request in requests])

    def submitters(self, model: str) -> Sequence[Callable[[ModelRequest], object]]:
        """What takes requests for a model, per process."""
        return [worker.submit for worker in self._of(model) if worker.alive] or [self.submit]

    def cancel(self, request: ModelRequest) -> None:
        """Nobody waits for an answer any more."""
        request.cancelled = True
        for worker in self._workers:
            worker.cancel(request)

    def close(self, seconds: float | None = None) -> None:
        """Have everything answered that was taken, and end the processes; by force after so long, by default when all
        answers are late."""
        until = time.monotonic() + (self.gateway.limits.seconds if seconds is None else seconds)
        for worker in self._workers:
            worker.ask_to_end()
        for worker in self._workers:
            worker.end(until)
        for one in (*self._processes, *filter(None, [self.template])):
            one.end()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Process:
    """A process that loads the models, and the pipe to it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings, self.lock = settings, threading.RLock()
        self.start()

    def start(self) -> None:
        """Start it; it begins to load."""
        self._socket, theirs = socket.socketpair()
        few = ONE_THREAD if self.settings.get("copied") else {}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "unmask.serving.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": str(self.settings["cores"]), **os.environ, **few},
            )
        self.pipe = Connection(os.dup(self._socket.fileno()))
        self.pipe.send(self.settings)

    def hello(self) -> Mapping[str, Any]:
        """Wait until the models are loaded; from then on it starts only with the same contents of their folders."""
        found = hello(self.pipe, self.process)
        self.settings = {**self.settings, "contents": found["contents"]}
        return found

    def copy(self) -> Connection:
        """The pipe to a copy of it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"c"], [theirs.fileno()])
        return Connection(ours.detach())

    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        """Close the pipe, at which it ends."""
        for one in (self.pipe, self._socket):
            with contextlib.suppress(OSError):
                one.close()
        self.process.wait()


def hello(pipe: Connection, process: subprocess.Popen[bytes] | None = None) -> Mapping[str, Any]:
    """Wait until a process is ready: its `pid`, and of one that has loaded the models what they are (`models`), the
    `contents` of their folders, and whether it has one thread `alone`, so that it can be copied.
    """
    try:
        kind, *parts = pipe.recv()
    except (EOFError, OSError):
        code = "" if process is None else f" (exit code {process.wait()})"
        raise UserError(
            f"a worker process ended before it was ready{code}",
            hint="Its own message stands above; is there memory for all of them?",
        ) from None
    if kind == "failed":
        raise UserError(parts[0], hint=parts[1])
    found: Mapping[str, Any] = parts[0]
    return found


class Worker:
    """One process that answers, and what it was asked.

    Args:
        process: one that has been started; None: a copy of the fleet's template is made.
    """

    def __init__(self, fleet: Fleet, process: Process | None) -> None:
        self.fleet, self.process = fleet, process
        self.models: tuple[str, ...] = tuple((fleet if process is None else process).settings["models"])
        self.pending: dict[int, ModelRequest] = {}
        self._answered: dict[str, float] = {}
        self.alive, self._closing, self._number = False, threading.Event(), 0
        self._lock = threading.Lock()
        self._pipe = fleet.copy() if process is None else process.pipe

    def begin(self) -> None:
        """Wait until it is ready, and read its answers from then on."""
        if self.process is None:
            self._pid = hello(self._pipe)["pid"]
        else:
            self._pid = self.process.process.pid
        self._write_to(self._pipe)
        self.alive = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, request: ModelRequest) -> bool:
        """Hand over a request; False where the process is dead."""
        with self._lock:
            if not self.alive:
                return False
            self._number += 1
            self.pending[self._number] = request
            self._out.put((self._number, request))
        return True

    def _write_to(self, pipe: Connection) -> None:
        """Send what is handed over from now on, in a thread of its own: a process may be busy, and a body longer than
        what a pipe holds, while others wait for other processes."""
        self._out = out = queue.SimpleQueue[tuple[int, ModelRequest | None] | None]()

        def write() -> None:
            with contextlib.suppress(OSError):  # the process is dead: `_read` hands over what it had
                while (message := out.get()) is not None:
                    number, request = message
                    if request is None:
                        pipe.send(("cancel", number))
                    elif not request.cancelled:
                        left, about = request.until - time.monotonic(), (request.model, request.action)
                        pipe.send(("submit", number, *about, request.body, request.content, left))
                pipe.send(None)

        threading.Thread(target=write, daemon=True).start()

    def submit(self, request: ModelRequest) -> None:
        """Hand over a request for this process alone."""
        if not self.send(request):
            self.fleet.refuse([request], "the process with this request died")

    def cancel(self, request: ModelRequest) -> None:
        """Nobody waits for an answer any more. Where the time for it is over, and its model has answered nothing in all
        of that time, the process is ended, for it would look like the one with the fewest requests."""
        with self._lock:
            number = next((n for n, one in self.pending.items() if one is request), None)
            if number is None or not self.alive:
                return
            del self.pending[number]
            late, began = time.monotonic() >= request.until, request.until - self.fleet.gateway.limits.seconds
            if request.action != PROBE and late and self._answered.get(request.model, 0.0) < began:
                self._kill()
                return
            self._out.put((number, None))

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        self._closing.set()
        if hasattr(self, "_reader"):
            with self._lock:
                self._out.put(None)

    def end(self, until: float) -> None:
        if hasattr(self, "_reader"):
            self._reader.join(max(0.0, until - time.monotonic()))
            if self._reader.is_alive():
                self._kill()
                self._reader.join()
        if self.process is None:
            self._pipe.close()
        else:
            self.process.end()

    def _read(self) -> None:
        while True:
            with contextlib.suppress(BaseException):  # whatever is wrong with the pipe, the process is replaced
                self._answers()
            with self._lock:
                self.alive = False
                lost, self.pending = list(self.pending.values()), {}
            self.fleet.retry(lost)
            if self._closing.is_set():
                self.fleet.reasons[self.models] = "the server ends"
                self.fleet.submit_held()
                return
            self.fleet.gateway.metrics.restarts += 1
            failed = 0
            while not self.alive and not self._closing.is_set():
                try:
                    self._replace()
                    self.fleet.reasons[self.models] = ""
                    self.fleet.submit_held()
                except Exception as error:
                    self.fleet.reasons[self.models] = (
                        error.what if isinstance(error, UserError) else type(error).__name__
                    )
                    failed += 1
                    if failed == 2:  # once alone: the process that is copied had just died, too
                        print(f"unmask serve: a process cannot be replaced: {error}", file=sys.stderr, flush=True)
                    self.fleet.submit_held()
                    self._closing.wait(min(LONGEST_PAUSE, 2.0 ** (failed - 1)))

    def _replace(self) -> None:
        if self.process is None:
            self._pipe.close()
            pipe = self.fleet.copy()
        else:
            self.process.end()
            self.process.start()
            pipe = self.process.pipe
        found = hello(pipe)
        with self._lock:
            self._out.put(None)
            self._pipe, self._pid, self.alive = pipe, found["pid"], True
            self._write_to(pipe)
            if self._closing.is_set():
                self._out.put(None)

    def _answers(self) -> None:
        gateway = self.fleet.gateway
        while True:
            kind, parts = self._pipe.recv()
            if kind == "batch":
                gateway.metrics.batch(*parts)
                continue
            with self._lock:
                found = []
                for number, model, reply in parts:
                    if (request := self.pending.pop(number, None)) is not None:
                        self._answered |= dict.fromkeys((request.model, model), time.monotonic())
                        request.model = model  # which the body may have named
                        found.append((request, reply))
            gateway.deliver(found)
