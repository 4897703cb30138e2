"""Work on the cores of this machine: a process per worker, led by a thread over a pipe.

    python -m unmask.engines.local

is such a process. They are no forks, and import nothing of the program that called: a script without a main guard is
safe. They end with their parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import IO, Any

from unmask.errors import UserError, flags_are_named, with_flags
from unmask.plugins import resolve

ATTEMPTS = 4
"""How often a task is begun whose worker dies."""


class Ended(UserError):
    """A worker has died at the same task again and again; what was done before is whole."""


class Engine(ABC):
    """Does tasks side by side. A context manager: without it nothing is left running.

    Attributes:
        workers: how many tasks are done at once.
        alone: tasks are done in this process, which may hold what no other sees.
    """

    workers: int
    alone: bool = False

    @abstractmethod
    def run(self, function: str, common: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(number of the task, what came of it), as they are ready.

        Args:
            function: "package.module:function", called with (common, task); it may be called again for the same task.
            common: what all calls share; pickled once.
        """

    def __enter__(self) -> Engine:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End what is still running."""


class LocalEngine(Engine):
    """Processes of this machine; one worker is this process itself."""

    def __init__(self, workers: int | None = None, *, fewer: str = "fewer workers") -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = cores if workers is None else workers
        self.alone, self._fewer = self.workers == 1, fewer
        self._aside = contextlib.ExitStack()

    def run(self, function: str, common: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        if self.alone:
            call = resolve(function)
            with _one_thread():
                yield from ((i, call(common, task)) for i, task in enumerate(tasks))
            return
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(Pool(function, common, self.workers, fewer=self._fewer))
            self._aside.callback(stack.close)
            rest = iter(enumerate(tasks))
            waiting: dict[Future[Any], int] = {}
            while True:
                for i, task in rest:
                    waiting[pool.submit(task)] = i
                    if len(waiting) >= 2 * self.workers:
                        break
                if not waiting:
                    return
                ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in sorted(ready, key=lambda f: waiting[f]):
                    yield waiting.pop(future), future.result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._aside.close()


class Pool:
    """Processes that do tasks, each led by a thread. A context manager: none is left running.

    Args:
        function, common: as of `Engine.run`.
        count: how many.
        fewer: what to say for fewer of them, where one dies again and again.
    """

    def __init__(self, function: str, common: Any, count: int, *, fewer: str = "fewer workers") -> None:
        self._shared = pickle.dumps((function, common, flags_are_named()))
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="worker")
        self._own = threading.local()
        self._all: list[subprocess.Popen[bytes]] = []
        self._fewer = fewer

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()  # first, so that threads that wait for an answer get none
        self._threads.shutdown(cancel_futures=True)
        self._end()  # also one that a thread began meanwhile

    def submit(self, task: Any) -> Future[Any]:
        """What a worker will make of the task."""
        return self._threads.submit(self._done, task)

    def _end(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        self._all.clear()

    def _done(self, task: Any) -> Any:
        """What a worker makes of the task; a worker that dies is replaced."""
        status = -1
        for _ in range(ATTEMPTS):
            process = getattr(self._own, "process", None)
            try:
                if process is None:
                    process = self._own.process = self._started()
                _send(process.stdin, pickle.dumps(task))
                kind, found = pickle.loads(_receive(process.stdout))
            except (EOFError, OSError, ValueError):  # a pipe that is closed is a ValueError
                status = -1 if process is None else process.wait()
                self._own.process = None
                continue
            if kind == "error":
                raise found
            return found
        raise Ended(
            f"a worker has ended {ATTEMPTS} times at the same work ({status})",
            hint="Is there too little memory? What was done is kept: run the same command again to go on, with "
            f"{self._fewer}.",
        )

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "TOKENIZERS_PARALLELISM": "false",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "unmask.engines.local"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._all.append(process)
        _send(process.stdin, self._shared)
        return process


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Within, tokenizers works in one thread, as in every worker."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def answer(function: Any, common: Any, flags: bool, task: Any) -> tuple[str, Any]:
    """What a worker gives back: ("done", result), or ("error", what was raised)."""
    try:
        with with_flags(flags):
            return "done", function(common, task)
    except Exception as error:
        return "error", error


def _send(pipe: IO[bytes] | None, data: bytes) -> None:
    assert pipe is not None
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    head = pipe.read(8)
    data = pipe.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < int.from_bytes(head, "little"):
        raise EOFError
    return data


def serve(work: IO[bytes], results: IO[bytes]) -> None:
    """Do what the parent sends, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    try:
        name, common, flags = pickle.loads(_receive(work))
        function = resolve(name)
        while True:
            task = pickle.loads(_receive(work))
            _send(results, pickle.dumps(answer(function, common, flags, task)))
    except (EOFError, OSError):
        return


if __name__ == "__main__":
    # What is pickled here must be of the module that the parent imports, not of __main__.
    from unmask.engines import local

    _answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints belongs on stderr, not among the answers
    local.serve(sys.stdin.buffer, _answers)
