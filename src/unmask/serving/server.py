"""What listens: answers, and ends with what it took answered."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from unmask.serving.application import application
from unmask.serving.engine import Reply
from unmask.serving.gateway import Gateway
from unmask.serving.limits import Limits, Refusal

ROUND_TRIP = 0.2
"""Seconds that handshakes which have begun get to end."""
LINGER = 1.0
"""Seconds that idle connections get, when the server ends, to send one more request: it is answered, and the connection
closed behind it."""

SO_ATTACH_FILTER = getattr(socket, "SO_ATTACH_FILTER", 26)
DROP_SYN = [
    (0x30, 0, 0, 13),  # the byte of flags in the TCP header
    (0x54, 0, 0, 0x12),  # SYN and ACK of it
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep
]
"""Lines of a filter: code, jump if true, jump if false, operand."""


class Server(uvicorn.Server):
    """A server that ends in order: it takes no more connections, answers what it took, and closes each connection
    behind an answer."""

    def __init__(self, gateway: Gateway, sock: socket.socket) -> None:
        self.gateway, self.sock = gateway, sock
        self._door = sock.dup()  # stays open when the event loop has closed its own
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # its lines would quote requests
        config = uvicorn.Config(
            application(gateway),
            http=protocol(gateway.limits),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=75,
        )
        super().__init__(config)

    def run_until_stopped(self) -> None:
        """Listen, until a signal says to end."""
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        loop = asyncio.get_running_loop()
        self.gateway.loop = loop
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
                loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        self.gateway.ready = True
        await self.serve(sockets=[self.sock])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are this class's own: uvicorn would end by them, with another exit code."""
        yield

    def stop(self) -> None:
        """End in order; may be called from any thread."""
        self.gateway.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self.gateway.stopping:  # asked twice
            self.force_exit = self.should_exit = True
            return
        self.gateway.stopping = True
        self._lingering = asyncio.get_running_loop().create_task(self._linger())

    def _hang_up(self) -> None:
        """A terminal was closed: end, but never at once, for this comes beside SIGTERM or twice."""
        if not self.gateway.stopping:
            self._stop()

    async def _linger(self) -> None:
        """Let in who has knocked, and nobody else; then wait a moment for idle connections to say their last."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            server.close()
        stays = turn_away_newcomers(self._door)
        await self._let_in_who_waits()
        if not stays:
            self._door.close()
        now = loop.time()
        while loop.time() < now + (LINGER if self.server_state.connections else ROUND_TRIP if stays else 0.0):
            await asyncio.sleep(0.02)
            await self._let_in_who_waits()  # whose handshake has ended since
        self._door.close()
        self.should_exit = True

    async def _let_in_who_waits(self) -> None:
        with contextlib.suppress(OSError):  # nobody else is there
            while True:
                came, _ = self._door.accept()
                came.setblocking(False)
                await asyncio.get_running_loop().connect_accepted_socket(self._connection, came)

    def _connection(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        found: asyncio.Protocol = made(config=self.config, server_state=self.server_state, app_state={})
        return found


def turn_away_newcomers(listening: socket.socket) -> bool:
    """Begin no more handshakes on a listening socket; those that were begun go on, and who waits can be let in.

    A socket that is closed resets who came after the last look at it. On Linux the kernel can drop the packets that
    begin a connection (SYN without ACK; a filter of `bpf`, linux/filter.h) before that: who sent one tries again a
    second later, and is refused.

    Returns:
        Whether it was done; elsewhere the socket must be closed at once.
    """
    if sys.platform != "linux":
        return False
    program = b"".join(struct.pack("HBBI", *line) for line in DROP_SYN)
    instructions = ctypes.create_string_buffer(program)
    attached = struct.pack("HL", len(DROP_SYN), ctypes.addressof(instructions))
    try:
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attached)
    except OSError:  # some containers have a kernel of their own
        return False
    return True


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    found: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return found


CHECK_EVERY = 5.0
"""Seconds between looks at a connection."""


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol (httptools where it is installed, else h11) with limits on what comes before a body."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base

    pause = min(CHECK_EVERY, limits.receive, limits.send)

    class Guarded(base):
        """A connection whose requests must begin in time, whose headers must end, and whose answers must be taken."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._bytes, self._last = 0, self.loop.time()
            self._unsent, self._taken = 0, self._last
            self._watch = self.loop.call_later(pause, self._check_progress)
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
                self._refuse(Refusal(503, crowded, hint="Ask again later.", wait=1))

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
                self._refuse(Refusal(431, f"headers of more than {limits.headers:,} bytes", hint="Send fewer."))

        def _idle(self) -> bool:
            """Whether no request is being read or answered: what comes is a line of request, or headers."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def _check_progress(self) -> None:
            if self.transport is None or self._stalled() or self.transport.is_closing():
                return
            began = self._bytes or self.cycle is None  # a request has begun, or the first one is awaited
            if self._idle() and began and self.loop.time() - self._last > limits.receive:
                self._refuse(Refusal(408, f"no request within {limits.receive:g} s", hint="Send it faster."))
                return
            self._watch = self.loop.call_later(pause, self._check_progress)

        def _stalled(self) -> bool:
            """Whether an answer waits to be taken; the connection is closed once nothing of it was, for too long."""
            unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
            if unsent != self._unsent:
                self._unsent, self._taken = unsent, now
            elif unsent and now - self._taken > limits.send:
                self.transport.abort()
            if unsent:
                self._watch = self.loop.call_later(pause, self._check_progress)
            return bool(unsent)

        def send_400_response(self, message: str) -> None:
            """What the parser cannot read is said as everything else is."""
            self._refuse(Refusal(400, "not a request of HTTP/1.1", hint="Send one."))

        def _refuse(self, error: Refusal) -> None:
            body = Reply.of(error).body
            head = f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()

    return Guarded
