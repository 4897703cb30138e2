"""The process that listens: starts, answers, and ends with what it took answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from unmask.errors import UserError
from unmask.serving.application import application
from unmask.serving.connections import protocol
from unmask.serving.engine import Engine
from unmask.serving.gateway import Backend, Gateway
from unmask.serving.keys import LOOPBACK, Keys
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics
from unmask.serving.models import load_served

LINGER = 1.0
"""Seconds that idle connections get, when the server ends, to send one more request: it is answered, and the connection
closed behind it."""
Say = Callable[[str], None]


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; nobody is let in before the models are loaded.

    Raises:
        UserError: the address is taken, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        said = error.strerror if isinstance(error, OSError) else "no such port"
        raise UserError(f"{host}:{port}: {said}", hint="Give another host or port (0: any free one).") from None
    found.setblocking(False)
    return found


def warn(host: str, keys: Keys | None, say: Say) -> bool:
    """Whether this machine alone is listened to; what else that means is said."""
    loopback = host.lower() in LOOPBACK
    if not loopback and keys is None:
        say(f"warning: {host} can be reached from elsewhere, and no key is asked for: give a file of keys")
    return loopback


def serve(
    models: Mapping[str, str],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    key_file: str | Path | None = None,
    cors: Sequence[str] = (),
    workers: int = 0,
    threads: int = 1,
    limits: Limits | None = None,
    device: str = "auto",
    precision: str = "auto",
    say: Say = print,
) -> None:
    """Serve models until SIGTERM or SIGINT; requests that were taken by then are answered.

    Args:
        models: name -> folder.
        cors: origins whose pages may ask.
        workers: processes with all models each; 0: in this one.
        threads: per model and process.
        say: told where it listens.

    Raises:
        UserError: what is wrong with a model, the address or the key file.
    """
    limits, metrics = limits or Limits(), Metrics()
    keys = None if key_file is None else Keys(key_file)
    sock = listen(host, port)
    try:
        loopback = warn(host, keys, say)
        gateway = Gateway(models={}, limits=limits, metrics=metrics, keys=keys, cors=cors, loopback=loopback)
        backend, described = _backend(gateway, models, workers, threads, device, precision)
        gateway.backend, gateway.models = backend, described
        for name, told in described.items():
            say(f"{name}: a model of {told['kind']}: {', '.join(told['verbs'])}")
        shown = f"[{host}]" if ":" in host else host
        say(f"http://{shown}:{sock.getsockname()[1]}/ (requests: /docs); Ctrl-C ends")
        try:
            Server(gateway, sock).run_until_stopped()
        finally:
            backend.close()
    finally:
        sock.close()


def _backend(
    gateway: Gateway, models: Mapping[str, str], workers: int, threads: int, device: str, precision: str
) -> tuple[Backend, Mapping[str, Any]]:
    if workers:
        from unmask.serving.processes import Fleet

        fleet = Fleet(models, gateway, workers=workers, threads=threads, device=device, precision=precision)
        return fleet, fleet.described
    served = load_served(models, gateway.limits, device=device, precision=precision)
    engine = Engine(served, gateway.deliver, gateway.limits, gateway.metrics, threads=threads)
    return engine, {name: one.described() for name, one in served.items()}


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
        self.gateway.begin(loop)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
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

    async def _linger(self) -> None:
        """Let in who has knocked, and nobody else; then wait a moment for idle connections to say their last."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            server.close()
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # between the last one let in and the door's closing no time should pass
        with contextlib.suppress(OSError):  # nobody else is there
            while True:
                came, _ = self._door.accept()
                came.setblocking(False)
                await loop.connect_accepted_socket(self._connection, came)
        self._door.close()
        sys.setswitchinterval(before)
        until = loop.time() + LINGER
        while loop.time() < until and self.server_state.connections:
            await asyncio.sleep(0.02)
        self.should_exit = True

    def _connection(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        found: asyncio.Protocol = made(config=self.config, server_state=self.server_state, app_state={})
        return found


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    found: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return found


def to_stdout(line: str) -> None:
    """Say a line at once, also into a pipe; warnings on stderr."""
    print(line, file=sys.stderr if line.startswith("warning:") else sys.stdout, flush=True)
