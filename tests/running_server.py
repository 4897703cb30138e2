"""A server of unmask in a thread of the test, and requests to it by Python's own HTTP client."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from unmask.serving.engine import ServingEngine
from unmask.serving.gateway import Gateway
from unmask.serving.keys import Keys
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics
from unmask.serving.server import Server
from unmask.serving.shapes import Field, ListOf, Number, Record, Text
from unmask.serving.start import listen
from unmask.serving.verbs import Served, Verb, Work

Answer = tuple[int, Any]


class Asked:
    """A server's address, and requests to it."""

    def __init__(self, port: int, gateway: Gateway) -> None:
        self.port, self.gateway = port, gateway
        self.url = f"http://127.0.0.1:{port}"

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of one request; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            if body is not None and not isinstance(body, bytes):
                body, headers = json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})}
            connection.request(method, path, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        status, _, found = self.send("POST", path, body, headers)
        return status, json.loads(found)

    def get(self, path: str, **headers: str) -> Answer:
        status, _, found = self.send("GET", path, None, headers)
        return status, json.loads(found)


@contextlib.contextmanager
def running(
    served: Mapping[str, Served],
    *,
    limits: Limits | None = None,
    keys: Keys | None = None,
    cors: Sequence[str] = (),
    threads: int = 1,
) -> Iterator[Asked]:
    """A server on a free port of this machine, until the end of the block."""
    limits, metrics = limits or Limits(), Metrics()
    sock = listen("127.0.0.1", 0)
    gateway = Gateway(
        models={name: one.described() for name, one in served.items()},
        limits=limits,
        metrics=metrics,
        keys=keys,
        cors=cors,
    )
    engine = gateway.backend = ServingEngine(served, gateway.deliver, limits, metrics, threads=threads)
    server = Server(gateway, sock)
    thread = threading.Thread(target=server.run_until_stopped, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
        assert thread.is_alive()
    try:
        yield Asked(sock.getsockname()[1], gateway)
    finally:
        server.stop()
        thread.join(20)
        engine.close()
        sock.close()
        assert not thread.is_alive()


@contextlib.contextmanager
def prefixed(port: int, prefix: str) -> Iterator[str]:
    """The address of a proxy that hands PREFIX/... on to a server of this machine as /..., until the end of the
    block."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            kept = {k: v for k, v in self.headers.items() if k.lower() in ("host", "content-type", "origin")}
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request(self.command, self.path.removeprefix(prefix), body=body, headers=kept)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        proxy.server_close()


def counting(run: Callable[[Sequence[str]], Sequence[Any]] | None = None, **more: Any) -> Served:
    """A model of no kind of data: its verb `length` gives the lengths of texts, `sum` adds numbers.

    Args:
        run: what is done to a batch of texts.
        more: of `Served`.
    """

    def lengths(body: Any) -> Work:
        texts = body["texts"]
        return Work(
            items=texts,
            slots=[max(1, len(text)) for text in texts],
            run=run or (lambda some: [len(text) for text in some]),
            finish=lambda found: {"lengths": list(found)},
            together="length",
        )

    def add(body: Any) -> Work:
        return Work(
            items=[body["numbers"]],
            slots=[1],
            run=lambda some: [sum(one) for one in some],
            finish=lambda found: {"sum": found[0]},
        )

    verbs = {
        "length": Verb(
            about="How long texts are.",
            request=Record(texts=Field(ListOf(Text(), most=1000), "Texts.")),
            answer=Record(lengths=Field(ListOf(Number(whole=True)), "One per text.")),
            prepare=lengths,
            example={"texts": ["a", "bc"]},
        ),
        "sum": Verb(about="The sum.", request=Record(numbers=Field(ListOf(Number()), "Numbers.")), prepare=add),
    }
    return Served(kind="counting", about={"slots": 100}, verbs=verbs, **more)
