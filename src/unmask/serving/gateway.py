"""Between HTTP and the models: keys and origins, limits of requests, and waiting for their answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from unmask.serving.engine import PROBE, ModelRequest, Reply
from unmask.serving.keys import Keys, check_origin
from unmask.serving.limits import Limits, Refusal
from unmask.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Backend(Protocol):
    """What answers: a `ServingEngine` in this process, or a `Fleet` of others; `submitters` are one per process."""

    def submit(self, request: ModelRequest) -> None: ...
    def submitters(self, model: str) -> Sequence[Callable[[ModelRequest], object]]: ...
    def cancel(self, request: ModelRequest) -> None: ...
    def close(self, seconds: float | None = None) -> None: ...


@dataclass
class Gateway:
    """Checks, admits and waits for requests, and holds the state of a server.

    Attributes:
        models: name -> its `Served.described`.
        cors: origins whose pages may ask.
        host: the address that it listens on.
        ready: the models are loaded.
        stopping: it takes no more connections, and closes each after its answer.
        loop: the event loop that answers are handed over to.
        held_bytes: bytes of the bodies of all requests that wait.
    """

    models: Mapping[str, Mapping[str, Any]]
    limits: Limits
    metrics: Metrics
    keys: Keys | None = None
    cors: Sequence[str] = ()
    host: str = "127.0.0.1"
    ready: bool = False
    stopping: bool = False
    backend: Backend = field(init=False)
    loop: asyncio.AbstractEventLoop = field(init=False)
    held_bytes: int = 0
    _probes: asyncio.Task[None] | None = None
    _probed: float = 0.0

    def deliver(self, done: list[tuple[ModelRequest, Reply]]) -> None:
        """Hand answers from a thread of the backend over to the event loop, for those who wait for them."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(_resolve, done)

    def check(self, headers: Mapping[bytes, bytes], *, key: bool = True) -> None:
        """Refuse a page of another origin, and a caller without a key."""
        check_origin(headers, own=self.host, allowed=self.cors)
        if key and self.keys is not None:
            self.keys.check(headers.get(b"authorization", b""))

    async def probe(self) -> None:
        """Have each model answer a request in every process; a Refusal names one that did not. The result is used for a
        second."""
        now = self.loop.time()
        if self._probes is None or (self._probes.done() and now > self._probed + 1.0):
            self._probes, self._probed = self.loop.create_task(self._probe()), now
        await asyncio.shield(self._probes)

    async def _probe(self) -> None:
        await asyncio.gather(*(self._probe_of(model) for model in self.models))

    async def _probe_of(self, model: str) -> None:
        until, sent = time.monotonic() + self.limits.ready, []
        for send in self.backend.submitters(model):
            sent.append(ModelRequest(model, PROBE, b"", "", until, tag=self.loop.create_future()))
            send(sent[-1])
        await asyncio.wait([request.tag for request in sent], timeout=self.limits.ready)
        late = Reply.of(Refusal(504, f"no answer within {self.limits.ready:g} s"))
        replies = (request.tag.result() if request.tag.done() else late for request in sent)
        found = {reply.status: reply for reply in replies}
        for request in sent:
            if not request.tag.done():
                self.backend.cancel(request)
        if found.keys() & {500, 504} or found.keys() <= {503}:  # 503: a process died; others may be there
            what = orjson.loads(found[max(found)].body)["error"]["what"]
            raise Refusal(503, f"{model}: {what}", hint="Ask again later, or another server.", wait=1)

    async def answer(self, model: str, action: str, receive: Receive, headers: Mapping[bytes, bytes]) -> Reply:
        """Read a request, have it answered, and count it.

        Args:
            model: its name, or `NAMED_IN_BODY`.
            action: a verb, or 'DIALECT/TASK'.

        Raises:
            Refusal: it is too large (413), too slow (408), one too many (429), or not answered in time (504).
            ClientDisconnect: nobody waits for the answer.
        """
        began = time.perf_counter()
        content = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        request = ModelRequest(model, action, b"", content, 0.0)
        status = 499
        try:
            if self.metrics.waiting >= self.limits.waiting:
                raise self._too_many()
            self.metrics.waiting += 1
            try:
                request.body = await self._body(headers, receive, request)
                reply = await self._reply(request, receive)
            finally:
                self.metrics.waiting -= 1
                self.held_bytes -= request.held
            status = reply.status
            return reply
        except Refusal as refused:
            status = refused.status
            raise
        finally:
            self.metrics.request(request.model, action, status, time.perf_counter() - began)

    def _too_many(self) -> Refusal:
        """A refusal that names the seconds until those that wait are answered, at the rate so far."""
        wait = min(60.0, 1.0 + self.metrics.waiting * self.metrics.mean_seconds())
        return Refusal(429, f"{self.metrics.waiting} requests are waiting", hint="Ask again later.", wait=wait)

    def _hold(self, request: ModelRequest, size: int) -> None:
        """Count the bytes of a body, sent or announced; refused where all bodies together have too many."""
        more = max(0, size - request.held)
        if self.held_bytes + more > self.limits.waiting_bytes:
            raise self._too_many()
        self.held_bytes += more
        request.held += more

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive, request: ModelRequest) -> bytes:
        length = headers.get(b"content-length", b"0")
        if length.isdigit():
            if int(length) > self.limits.body:
                raise self._too_large()
            self._hold(request, int(length))
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.receive):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self.limits.body:
                        raise self._too_large()
                    self._hold(request, size)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise Refusal(
                408, f"the request had not arrived whole after {self.limits.receive:g} s", hint="Send it faster."
            ) from None

    def _too_large(self) -> Refusal:
        return Refusal(413, f"a body of more than {self.limits.body:,} bytes", hint="Send it in parts.")

    async def _reply(self, request: ModelRequest, receive: Receive) -> Reply:
        loop = self.loop
        future: asyncio.Future[Reply] = loop.create_future()
        request.until, request.tag = time.monotonic() + self.limits.seconds, future
        listening = loop.create_task(_until_disconnected(receive, future))
        timer = loop.call_later(self.limits.seconds, _late, future, self.limits.seconds)
        answered = False
        try:
            self.backend.submit(request)
            reply = await future
            answered = True
            return reply
        except asyncio.CancelledError:
            if future.cancelled():
                raise ClientDisconnect from None
            raise
        finally:
            if not answered:
                self.backend.cancel(request)
            timer.cancel()
            listening.cancel()


class ClientDisconnect(Exception):
    """The client has closed the connection."""


def _resolve(done: list[tuple[ModelRequest, Reply]]) -> None:
    for request, reply in done:
        if not request.tag.done():
            request.tag.set_result(reply)


def _late(future: asyncio.Future[Reply], seconds: float) -> None:
    if not future.done():
        future.set_exception(Refusal(504, f"no answer within {seconds:g} s", hint="Ask for less, or later."))


async def _until_disconnected(receive: Receive, future: asyncio.Future[Reply]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    future.cancel()


def json_body(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
