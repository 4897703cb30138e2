"""Connections that do not hold the server up: headers that never end, or never come, close them."""

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

    class Guarded(base):
        """A connection whose requests must begin in time, and whose headers must end."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._bytes, self._last = 0, self.loop.time()
            self._watch = self.loop.call_later(min(LOOK, limits.receive), self._look)
            if len(self.connections) > limits.connections:
                self._refuse(Refused(503, f"{limits.connections:,} connections are open", hint="Ask again later."))

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
            if self.transport is None or self.transport.is_closing():
                return
            began = self._bytes or self.cycle is None  # a request has begun, or the first one is awaited
            if self._idle() and began and self.loop.time() - self._last > limits.receive:
                self._refuse(Refused(408, f"no request within {limits.receive:g} s", hint="Send it faster."))
                return
            self._watch = self.loop.call_later(min(LOOK, limits.receive), self._look)

        def send_400_response(self, message: str) -> None:
            """What the parser cannot read is said as everything else is."""
            self._refuse(Refused(400, "not a request of HTTP/1.1", hint="Send one."))

        def _refuse(self, error: Refused) -> None:
            body = Reply.of(error).body
            head = f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()

    return Guarded
