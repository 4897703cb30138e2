"""Work on a Ray cluster: a task is a Ray task of one core, begun again elsewhere where its worker dies."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from unmask.engines.local import ATTEMPTS, Ended, Engine, answer
from unmask.errors import UserError, flags_are_named
from unmask.plugins import resolve


class RayEngine(Engine):
    """The cluster that RAY_ADDRESS names ('auto': the one that `ray start` began on this machine); where it names none,
    one on this machine, ended with the work.

    Args:
        workers: tasks at once; default the cores of the cluster.
    """

    def __init__(self, workers: int | None, say: Callable[[str], None]) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("the engine ray needs the package ray", hint="Run: pip install 'unmask[ray]'") from None
        self._ray: Any = ray
        self._requested, self._say = workers, say
        self._began = False
        self._aside = contextlib.ExitStack()

    def __enter__(self) -> RayEngine:
        ray, address = self._ray, os.environ.get("RAY_ADDRESS")
        # Ray tells of workers that died on stdout, where results belong.
        self._aside.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not ray.is_initialized():
            self._began = True
            try:
                if address:
                    ray.init(address=address, log_to_driver=False, logging_level="error")
                else:
                    more = {} if self._requested is None else {"num_cpus": self._requested}
                    # Ray's own 15 lets workers on a busy machine stand back behind everybody else's processes.
                    os.environ.setdefault("RAY_worker_niceness", "0")
                    ray.init(
                        address="local", include_dashboard=False, log_to_driver=False, logging_level="error", **more
                    )
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                first = (str(error) or type(error).__name__).splitlines()[0]
                raise UserError(
                    f"no Ray cluster at {address or 'this machine'} ({first[:200]})",
                    hint="Start one with `ray start` on its first machine, or leave RAY_ADDRESS out for one here.",
                ) from None
        cores = int(ray.cluster_resources().get("CPU", 1))
        self.workers = cores if self._requested is None else self._requested
        nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        self._say(f"Ray: {self.workers} workers on {nodes} node{'s' * (nodes != 1)} with {cores} cores")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._began:
            self._ray.shutdown()
        self._aside.close()

    def run(self, function: str, common: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        ray = self._ray
        from ray.exceptions import RayError

        content = pickle.dumps((function, common, flags_are_named()))
        shared, name = ray.put(content), hashlib.blake2b(content, digest_size=16).hexdigest()
        remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_work)
        # A second one waits behind each that is done, unless more would be done at once than was asked for.
        most = self.workers * (1 if self._requested is not None and not self._own_cores() else 2)
        rest, waiting = iter(enumerate(tasks)), dict[Any, int]()
        try:
            while True:
                for i, task in rest:
                    waiting[remote.remote(name, shared, pickle.dumps(task))] = i
                    if len(waiting) >= most:
                        break
                if not waiting:
                    return
                ready, _ = ray.wait(list(waiting), num_returns=1)
                for reference in ready:
                    kind, found = pickle.loads(ray.get(reference))
                    if kind == "error":
                        raise found
                    yield waiting.pop(reference), found
        except RayError as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise Ended(
                f"a worker of the Ray cluster has ended {ATTEMPTS} times at the same work ({first[:200]})",
                hint="Is there too little memory? What was done is kept: run the same command again to go on.",
            ) from None
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)

    def _own_cores(self) -> bool:
        """Whether the cluster has as many cores as workers were asked for: it bounds them itself."""
        return int(self._ray.cluster_resources().get("CPU", 1)) <= self.workers


def _work(name: str, shared: bytes, task: bytes) -> bytes:
    """One task, in a worker of the cluster.

    Args:
        name: hash of `shared`, which is unpickled once in each worker.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    found = _common.get(name)
    if found is None:
        _common.clear()
        function, common, flags = pickle.loads(shared)
        found = _common[name] = functools.partial(answer, resolve(function), common, flags)
    return pickle.dumps(found(pickle.loads(task)))


_common: dict[str, Callable[[Any], tuple[str, Any]]] = {}
