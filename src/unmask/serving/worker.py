"""A process that answers, or is copied into ones that do: python -m unmask.serving.worker FD, started by
`processes.Process`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from unmask.errors import UserError, with_keys
from unmask.serving.engine import ModelRequest, Reply, ServingEngine
from unmask.serving.metrics import Metrics
from unmask.serving.models import check_contents, contents, load_served, without_collection
from unmask.serving.verbs import Served


class Sent(Metrics):
    """Counts that are sent to the server."""

    def __init__(self, send: Any) -> None:
        super().__init__()
        self._send = send

    def batch(self, model: str, items: int, slots: int, seconds: float) -> None:
        self._send(("batch", (model, items, slots, seconds)))


def main(number: int) -> None:
    """Load the models; then answer, or be copied, until the server says, or is gone."""
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the server says when to end, after the last answer
        signal.signal(one, signal.SIG_IGN)
    pipe = Connection(number)
    settings = pipe.recv()
    try:
        began = settings.get("contents") or contents(settings["models"])
        check_contents(settings["models"], began)
        with without_collection():
            served = load_served(
                settings["models"], settings["limits"], device=settings["device"], precision=settings["precision"]
            )
            if settings.get("copied"):
                for model in served.values():
                    model.warm()
        check_contents(settings["models"], began)
    except UserError as error:
        pipe.send(("failed", error.what, error.hint))
        return
    copied = bool(settings.get("copied")) and _one_thread()
    with contextlib.suppress(OSError):  # the server is gone: `recv` says so too
        described = {name: one.described() for name, one in served.items()}
        pipe.send(("ready", {"models": described, "contents": began, "pid": os.getpid(), "alone": copied}))
    with with_keys():
        if not settings.get("copied"):
            answer(pipe, served, settings)
        elif copied:
            be_copied(pipe, served, settings)


def _one_thread() -> bool:
    """Whether this process has a single thread, those of libraries counted. The one that has loaded has ended, and is
    counted for a moment more."""
    until = time.monotonic() + 1
    try:
        while not (alone := len(os.listdir("/proc/self/task")) == 1) and time.monotonic() < until:
            time.sleep(0.005)
    except OSError:
        return False  # not to be known here
    return alone


def be_copied(pipe: Connection, served: Mapping[str, Served], settings: Mapping[str, Any]) -> None:
    """Make a copy, which answers, for every end of a pipe that the server sends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that have ended leave nothing behind
    with socket.socket(fileno=os.dup(pipe.fileno())) as door:
        while True:
            message, handles, _, _ = socket.recv_fds(door, 1, 1)
            if not message:
                return
            if os.fork():
                for handle in handles:
                    os.close(handle)
                continue
            code = 1
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                door.close()
                pipe.close()
                os.environ["TOKENIZERS_PARALLELISM"] = settings["parallel"]
                if "torch" in sys.modules:
                    sys.modules["torch"].set_num_threads(settings["cores"])
                own = Connection(handles[0])
                own.send(("ready", {"pid": os.getpid()}))
                answer(own, served, settings)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)


def answer(pipe: Connection, served: Mapping[str, Served], settings: Mapping[str, Any]) -> None:
    """Answer until the server says, or is gone."""
    lock = threading.Lock()
    pending: dict[int, ModelRequest] = {}

    def send(message: Any) -> None:
        with lock, contextlib.suppress(OSError):  # the server is gone: `recv` says so too
            pipe.send(message)

    def deliver(done: list[tuple[ModelRequest, Reply]]) -> None:
        for request, _ in done:
            pending.pop(request.tag, None)
        send(("done", [(request.tag, request.model, reply) for request, reply in done]))

    engine = ServingEngine(served, deliver, settings["limits"], Sent(send), threads=settings["threads"])
    try:
        while (message := pipe.recv()) is not None:
            if message[0] == "cancel":
                if (request := pending.pop(message[1], None)) is not None:
                    engine.cancel(request)
                continue
            _, tag, model, action, body, content, left = message
            pending[tag] = ModelRequest(model, action, body, content, time.monotonic() + left, tag=tag)
            engine.submit(pending[tag])
    except (EOFError, OSError):
        os._exit(1)  # the server is gone: nobody waits for what is being worked on
    engine.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
