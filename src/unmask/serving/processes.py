"""Several processes with all models each, behind one server: nobody's request is lost in silence when one dies.

Each is started afresh (`worker.py`), not forked: torch's threads do not survive a fork. The server sends requests as
they came, and gets answers; a process that dies is replaced, and what it was working on is answered with an error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from unmask.errors import UserError
from unmask.serving.engine import Ask, Reply
from unmask.serving.gateway import Gateway
from unmask.serving.refused import Refused

LONGEST_PAUSE = 30.0
"""Seconds before a process is started again that died before it was ready, at most."""


class Fleet:
    """Processes that answer; as an `Engine` to the server.

    Attributes:
        described: what the models are, by name; see `Served.described`.

    Raises:
        UserError: what is wrong with a model.
    """

    def __init__(
        self, models: Mapping[str, str], gateway: Gateway, *, workers: int, threads: int, device: str, precision: str
    ) -> None:
        self.gateway = gateway
        self.settings = {
            "models": dict(models),
            "limits": gateway.limits,
            "threads": threads,
            "device": device,
            "precision": precision,
        }
        cores = str(max(1, (os.cpu_count() or 1) // workers))
        self.environment = {"OMP_NUM_THREADS": cores, **os.environ}
        self._workers = [Worker(self) for _ in range(workers)]
        try:
            found = [worker.hello() for worker in self._workers]
            self.described: Mapping[str, Any] = found[0]
        except BaseException:
            self.close()
            raise
        for worker in self._workers:
            worker.begin()

    def ask(self, ask: Ask) -> None:
        """Hand a request to the process with the fewest."""
        alive = [worker for worker in self._workers if worker.alive]
        for worker in sorted(alive, key=lambda one: len(one.pending)):
            if worker.send(ask):
                return
        self.gateway.deliver([(ask, Reply.of(_dead("no process is ready to answer")))])

    def forget(self, ask: Ask) -> None:
        """Nobody waits for an answer any more."""
        ask.gone = True
        for worker in self._workers:
            worker.forget(ask)

    def close(self) -> None:
        """Have everything answered that was taken, and end the processes."""
        for worker in self._workers:
            worker.close()


def _dead(what: str) -> Refused:
    return Refused(503, what, hint="Ask again.", wait=1)


class Worker:
    """One process, and what it was asked."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.pending: dict[int, Ask] = {}
        self.alive, self._closing, self._number = False, False, 0
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "unmask.serving.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=self.fleet.environment,
            )
        self._pipe = Connection(ours.detach())
        self._pipe.send(self.fleet.settings)

    def hello(self) -> Mapping[str, Any]:
        """Wait until the models are loaded; what they are.

        Raises:
            UserError: what is wrong with a model.
        """
        try:
            kind, *said = self._pipe.recv()
        except (EOFError, OSError):
            raise UserError(
                f"a worker process ended before it was ready (exit code {self.process.wait()})",
                hint="Its own message stands above; is there memory for all of them?",
            ) from None
        if kind == "failed":
            raise UserError(said[0], hint=said[1])
        self.alive = True
        found: Mapping[str, Any] = said[0]
        return found

    def begin(self) -> None:
        """Read answers from now on."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, ask: Ask) -> bool:
        """Hand over a request; False where the process is dead."""
        with self._lock:
            if not self.alive:
                return False
            self._number += 1
            number = self._number
            self.pending[number] = ask
            left = ask.until - time.monotonic()
            try:
                self._pipe.send(("ask", number, ask.model, ask.action, ask.body, ask.content, left))
            except OSError:
                del self.pending[number]
                return False
        return True

    def forget(self, ask: Ask) -> None:
        with self._lock:
            number = next((n for n, one in self.pending.items() if one is ask), None)
            if number is not None and self.alive:
                del self.pending[number]
                with contextlib.suppress(OSError):
                    self._pipe.send(("forget", number))

    def close(self) -> None:
        self._closing = True
        with self._lock, contextlib.suppress(OSError):
            self._pipe.send(None)
        if hasattr(self, "_reader"):
            self._reader.join()
        self.process.wait()
        self._pipe.close()

    def _read(self) -> None:
        pause = 1.0
        while True:
            with contextlib.suppress(EOFError, OSError):
                self._answers()
            with self._lock:
                self.alive = False
                lost, self.pending = list(self.pending.values()), {}
            self.fleet.gateway.deliver([(ask, Reply.of(_dead("the process with this request died"))) for ask in lost])
            if self._closing:
                return
            self.process.wait()
            self.fleet.gateway.metrics.restarts += 1
            while not self.alive and not self._closing:
                try:
                    with self._lock:
                        self._pipe.close()
                        self._start()
                    self.hello()
                    pause = 1.0
                except (UserError, OSError):
                    time.sleep(pause)
                    pause = min(LONGEST_PAUSE, 2 * pause)

    def _answers(self) -> None:
        gateway = self.fleet.gateway
        while True:
            kind, said = self._pipe.recv()
            if kind == "batch":
                gateway.metrics.batch(*said)
                continue
            with self._lock:
                found = [(self.pending.pop(number, None), reply) for number, reply in said]
            gateway.deliver([(ask, reply) for ask, reply in found if ask is not None])
