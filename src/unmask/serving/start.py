"""`serve`: binds the address, loads the models, and listens until a signal ends it.

What takes long to import comes last, or in other processes: those of `workers` load while this one imports its server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError, with_keys
from unmask.serving.gateway import Backend, Gateway
from unmask.serving.keys import LOOPBACK, Keys, check_origins
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics

BACKLOG = 2048
"""Connections that may wait to be let in."""
LAST = 5.0
"""Seconds that models get to end their work when the server has ended: nobody waits for it any more."""
Say = Callable[[str], None]


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; nobody is let in before the models are loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        found.close()
        other = "no such port" if isinstance(error, OverflowError) else "no name of a machine"
        reason = error.strerror if isinstance(error, OSError) else other
        raise UserError(
            f"{shown(host)}:{port}: {reason}", hint="Give another host or port (0: any free one)."
        ) from None
    found.setblocking(False)
    return found


def shown(host: str) -> str:
    """A host as addresses have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def warn(host: str, key_file: str | Path | None, say: Say) -> None:
    """Say who else may reach the server, and read its keys."""
    if host.lower() not in LOOPBACK and key_file is None:
        say(f"warning: {host} can be reached from elsewhere, and no key is asked for: give a file of keys")
    if key_file is not None and Path(key_file).stat().st_mode & stat.S_IROTH:
        say(f"warning: {key_file} can be read by everyone on this machine: chmod 600 {key_file}")


def serve(
    models: Mapping[str, str],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    key_file: str | Path | None = None,
    cors: Sequence[str] = (),
    workers: int | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    device: str = "auto",
    precision: str = "auto",
    say: Say = print,
) -> None:
    """Serve models until SIGTERM, SIGINT or SIGHUP; requests that were taken by then are answered.

    Args:
        models: name -> folder.
        cors: origins whose pages may ask.
        workers: processes with all models each; 0: this one. Default: one per model; a single model is in this one.
        threads: per model and process; default see `engine.threads_of`.
        say: called with where it listens.
    """
    limits, metrics = limits or Limits(), Metrics()
    check_origins(cors)
    keys = None if key_file is None else Keys(key_file)
    sock = listen(host, port)
    try:
        warn(host, key_file, say)
        gateway = Gateway(models={}, limits=limits, metrics=metrics, keys=keys, cors=cors, host=host)
        options = {"threads": threads, "device": device, "precision": precision}
        here = workers == 0 or (workers is None and len(models) == 1)
        made = _here(gateway, models, options) if here else _processes(gateway, models, workers, options)
        gateway.backend, gateway.models = made
        sock.listen(BACKLOG)  # who comes once the address is said is let in
        for name, about in gateway.models.items():
            say(f"{name} ({about['kind']}): {', '.join(about['verbs'])}")
        say(f"http://{shown(host)}:{sock.getsockname()[1]}/ (requests: /docs); Ctrl-C ends")
        try:
            from unmask.serving.server import Server

            tell_systemd("READY=1")
            with with_keys():  # who asks gives keys of a body
                Server(gateway, sock).run_until_stopped()
        finally:
            tell_systemd("STOPPING=1")
            gateway.backend.close(LAST)
    finally:
        sock.close()


def _processes(
    gateway: Gateway, models: Mapping[str, str], workers: int | None, options: Mapping[str, Any]
) -> tuple[Backend, Mapping[str, Any]]:
    from unmask.serving.processes import Fleet

    fleet = Fleet(models, gateway, workers=workers, **options)
    try:
        import unmask.serving.server  # noqa: F401 (while the models are loaded)
    except BaseException:
        fleet.close()
        raise
    return fleet, fleet.described()


def _here(gateway: Gateway, models: Mapping[str, str], options: Mapping[str, Any]) -> tuple[Backend, Mapping[str, Any]]:
    """The models in this process."""
    from unmask.serving.engine import ServingEngine
    from unmask.serving.models import load_served, without_collection

    with without_collection():
        import unmask.serving.server  # noqa: F401 (what is not installed is said before the models are loaded)

        served = load_served(models, gateway.limits, device=options["device"], precision=options["precision"])
    engine = ServingEngine(served, gateway.deliver, gateway.limits, gateway.metrics, threads=options["threads"])
    return engine, {name: one.described() for name, one in served.items()}


def tell_systemd(state: str) -> None:
    """Tell systemd where it has started a service of Type=notify, and waits to hear (sd_notify(3))."""
    if place := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
            sock.sendto(state.encode(), f"\0{place[1:]}" if place.startswith("@") else place)


def to_stdout(line: str) -> None:
    """Say a line at once, also into a pipe; warnings on stderr."""
    print(line, file=sys.stderr if line.startswith("warning:") else sys.stdout, flush=True)
