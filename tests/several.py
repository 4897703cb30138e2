"""Several processes of one group on this machine, started quickly: forked from a server that has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

WAIT = 240
_preloaded = ["torch", "unmask.training.run", "unmask.training.shards", "accelerate", "several"]


def _started(rank: int, port: int, count: int, results: Any, function: Callable[..., Any], given: Any) -> None:
    group = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    os.environ |= {"OMP_NUM_THREADS": "1"} | (group if count > 1 else {})
    import torch

    torch.set_num_threads(1)
    try:
        results.put((rank, function(*given), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))


def together(count: int, function: Callable[..., Any], *given: Any) -> list[Any]:
    """What a function returns in each of `count` processes of one group; one alone has no group."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(_preloaded)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = server.Queue()
    started = [server.Process(target=_started, args=(r, port, count, results, function, given)) for r in range(count)]
    for process in started:
        process.start()
    try:
        told = sorted((results.get(timeout=WAIT) for _ in started), key=lambda found: found[0])
    finally:
        for process in started:
            process.join(10)
            process.kill()
    assert not any(error for *_, error in told), "\n".join(error for *_, error in told if error)
    return [found for _, found, _ in told]
