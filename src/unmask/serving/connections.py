"""Connections that do not hold the server up: headers that never end, or never come, answers that nobody takes, and
others that wait for the place of an idle one, close them."""

from __future__ import annotations

import asyncio
from typing import Any

from unmask.serving.engine import Reply
from unmask.serving.limits import Limits
from unmask.serving.refused import Refused

LOOK = 5.0
"""Seconds between looks at a connection."""


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol (httptools where it is installed, else h11) with limits on what comes before a body."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base

    pause = min(LOOK, limits.receive, limits.send)

    class Guarded(base):
        """A connection whose requests must begin in time, whose headers must end, and whose answers must be taken."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._bytes, self._last = 0, self.loop.time()
            self._unsent, self._taken = 0, self._last
            self._watch = self.loop.call_later(pause, self._look)
            same = [one for one in self.connections if one.client[0] == self.client[0]]
            if len(same) > limits.per_address:
                self._take_a_place(same, f"{limits.per_address:,} connections from this address are open")
            elif len(self.connections) > limits.connections:
                self._take_a_place(self.connections, f"{limits.connections:,} connections are open")

        def _take_a_place(self, others: Any, crowded: str) -> None:
            """Close the idle one that never asked anything, or asked longest ago."""
            idle = [one for one in others if one is not self and one._idle() and not one.transport.is_closing()]
            if idle:
                min(idle, key=lambda one: (one.cycle is not None, one._last)).transport.abort()
            else:
                self._refuse(Refused(503, crowded, hint="Ask again later.", wait=1))

        def connection_lost(self, error: Exception | None) -> None:
            self._watch.cancel()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            if self._idle():
                if not self._bytes:
                    self._last = self.loop.time()
                self._bytes += len(data)
            super().data_received(data)
            if not self._idle():
                self._bytes = 0
            elif self._bytes > limits.headers and not self.transport.is_closing():
                self._refuse(Refused(431, f"headers of more than {limits.headers:,} bytes", hint="Send fewer."))

        def _idle(self) -> bool:
            """Whether no request is being read or answered: what comes is a line of request, or headers."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def _look(self) -> None:
            if self.transport is None or self._stalled() or self.transport.is_closing():
                return
            began = self._bytes or self.cycle is None  # a request has begun, or the first one is awaited
            if self._idle() and began and self.loop.time() - self._last > limits.receive:
                self._refuse(Refused(408, f"no request within {limits.receive:g} s", hint="Send it faster."))
                return
            self._watch = self.loop.call_later(pause, self._look)

        def _stalled(self) -> bool:
            """Whether an answer waits to be taken; the connection is closed once nothing of it was, for too long."""
            unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
            if unsent != self._unsent:
                self._unsent, self._taken = unsent, now
            elif unsent and now - self._taken > limits.send:
                self.transport.abort()
            if unsent:
                self._watch = self.loop.call_later(pause, self._look)
            return bool(unsent)

        def send_400_response(self, message: str) -> None:
            """What the parser cannot read is said as everything else is."""
            self._refuse(Refused(400, "not a request of HTTP/1.1", hint="Send one."))

        def _refuse(self, error: Refused) -> None:
            body = Reply.of(error).body
            head = f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()

    return Guarded
