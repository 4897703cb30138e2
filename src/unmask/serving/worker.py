"""A process that answers: python -m unmask.serving.worker FD, started by `processes.Fleet`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from unmask.errors import UserError
from unmask.serving.engine import Ask, Engine, Reply
from unmask.serving.metrics import Metrics
from unmask.serving.models import load_served


class Sent(Metrics):
    """Counts that are sent to the server."""

    def __init__(self, send: Any) -> None:
        super().__init__()
        self._send = send

    def batch(self, model: str, items: int, slots: int, seconds: float) -> None:
        self._send(("batch", (model, items, slots, seconds)))


def main(number: int) -> None:
    """Answer until the server says, or is gone."""
    for one in (signal.SIGTERM, signal.SIGINT):  # the server says when to end, after the last answer
        signal.signal(one, signal.SIG_IGN)
    pipe, lock = Connection(number), threading.Lock()

    def send(message: Any) -> None:
        with lock, contextlib.suppress(OSError):  # the server is gone: `recv` says so too
            pipe.send(message)

    settings = pipe.recv()
    limits = settings["limits"]
    try:
        served = load_served(settings["models"], limits, device=settings["device"], precision=settings["precision"])
    except UserError as error:
        send(("failed", error.what, error.hint))
        return
    asked: dict[int, Ask] = {}

    def deliver(done: list[tuple[Ask, Reply]]) -> None:
        for ask, _ in done:
            asked.pop(ask.tag, None)
        send(("done", [(ask.tag, reply) for ask, reply in done]))

    engine = Engine(served, deliver, limits, Sent(send), threads=settings["threads"])
    send(("ready", {name: one.described() for name, one in served.items()}))
    try:
        while (message := pipe.recv()) is not None:
            if message[0] == "forget":
                if (ask := asked.pop(message[1], None)) is not None:
                    engine.forget(ask)
                continue
            _, tag, model, action, body, content, left = message
            asked[tag] = Ask(model, action, body, content, time.monotonic() + left, tag=tag)
            engine.ask(asked[tag])
    except (EOFError, OSError):
        os._exit(1)  # the server is gone: nobody waits for what is being worked on
    engine.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
