"""Documents into token arrays, group by group: in this process, or side by side in processes of their own.

    python -m unmask.modalities.text.tokenising

is such a process: it reads pickled work from its parent on stdin (first the `Recipe`, then groups of documents), and
writes what came of each to stdout. It ends with its parent. Results come in the order of the groups, so the number of
processes changes nothing but the time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.text.documents import Document, moved, pieces
from unmask.modalities.text.tokenizer import Tokenizer
from unmask.modalities.text.units import entity_units

GROUP_DOCUMENTS, GROUP_CHARACTERS = 1000, 1_000_000
PIECE_CHARACTERS = 500_000
"""Encodings take far more memory than text: documents go through the tokenizer in groups and pieces of bounded size."""
ALONE = 8
"""Groups that this process tokenises itself before it starts others: a small corpus is done by then."""
MOST_PROCESSES = 16
"""One reader keeps about twenty of them busy."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How documents become examples.

    Attributes:
        room: tokens of an example, those that stand around every text not counted.
        least: pieces of fewer tokens are left out.
        stops: ids after which a piece may well end.
        holdout, seed: see `is_held_out`.
    """

    tokenizer: Tokenizer
    room: int
    least: int
    stops: np.ndarray
    holdout: float
    seed: int

    @property
    def dtype(self) -> str:
        """The smallest type of whole numbers that holds every token."""
        return "uint16" if self.tokenizer.vocab_size <= 1 << 16 else "uint32"


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """The examples of a group of documents, one after another.

    Attributes:
        tokens, starts: ids, and 1 where a unit starts.
        lengths, held: tokens of each example, and whether it is held out.
        documents, entities: how many there were.
        read, unknown: tokens of all pieces, and those that the tokenizer does not know.
        short: pieces left out.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    held: np.ndarray
    documents: int
    entities: int
    read: int
    unknown: int
    short: int


def tokenise(group: list[Document], recipe: Recipe) -> Tokenised:
    """Tokenise documents and cut them into examples."""
    tokens: list[np.ndarray] = [np.zeros(0, recipe.dtype)]
    starts: list[np.ndarray] = [np.zeros(0, np.uint8)]
    lengths: list[int] = []
    held: list[bool] = []
    unknown = read = short = 0
    for d, (ids, first) in zip(group, _encoded(group, recipe.tokenizer), strict=True):
        out = is_held_out(d.text, recipe.holdout, recipe.seed)
        read += len(ids)
        if recipe.tokenizer.unk_id is not None:
            unknown += int(np.count_nonzero(ids == recipe.tokenizer.unk_id))
        for begin, end in cut(ids, first, recipe.room, recipe.stops):
            if end - begin < recipe.least:
                short += 1
                continue
            tokens.append(ids[begin:end].astype(recipe.dtype))
            starts.append(first[begin:end])
            lengths.append(end - begin)
            held.append(out)
    return Tokenised(
        tokens=np.concatenate(tokens),
        starts=np.concatenate(starts),
        lengths=np.array(lengths, np.int64),
        held=np.array(held, np.uint8),
        documents=len(group),
        entities=sum(len(d.entities) for d in group),
        read=read,
        unknown=unknown,
        short=short,
    )


def groups(stream: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups bounded by number and by characters: memory stays the same for many short and few long."""
    group: list[Document] = []
    size = 0
    for d in stream:
        group.append(d)
        size += len(d.text)
        if len(group) == GROUP_DOCUMENTS or size >= GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _encoded(group: list[Document], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(ids, unit starts) of each document; a long one is tokenised in pieces, cut at white space."""
    parts = [list(pieces(d.text, PIECE_CHARACTERS)) for d in group]
    encoded = iter(tokenizer.encode([text for part in parts for text in part], specials=False))
    for d, part in zip(group, parts, strict=True):
        ids, starts, begin = [], [], 0
        for text in part:
            e, here = next(encoded), moved(d.entities, begin)
            units = entity_units(e.units, here, e.offsets) if here else e.units
            ids.append(e.ids)
            starts.append(np.append(1, np.diff(units) != 0).astype(np.uint8)[: len(e)])
            begin += len(text)
        yield np.concatenate(ids), np.concatenate(starts)


def cut(ids: np.ndarray, starts: np.ndarray, room: int, stops: np.ndarray) -> list[tuple[int, int]]:
    """Cut a document into pieces of at most `room` tokens, between units, after a stop in the last fifth if there is
    one.

    The pieces, one after another, are the document.

    >>> cut(np.arange(5), np.array([1, 1, 1, 0, 1]), 3, np.array([]))
    [(0, 2), (2, 5)]
    """
    pieces, begin, size = [], 0, len(ids)
    while size - begin > room:
        end = begin + room
        late = begin + max(1, int(room * 0.8))
        # A stop inside a unit ("...", 3.14 in one piece) is not an end.
        ends = np.flatnonzero(np.isin(ids[late - 1 : end], stops) & (starts[late : end + 1] == 1))
        if len(ends):
            end = late + int(ends[-1])
        else:
            edges = np.flatnonzero(starts[begin + 1 : end + 1])
            # A single unit longer than a row can only be cut inside.
            end = begin + 1 + int(edges[-1]) if len(edges) else end
        pieces.append((begin, end))
        begin = end
    if begin < size:
        pieces.append((begin, size))
    return pieces


def is_held_out(text: str, holdout: float, seed: int) -> bool:
    """Whether a document is held out: by a hash of its text, so that it is stable."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little") < holdout * 2**64


class Ended(UserError):
    """A process that tokenised has ended; what was done before is whole."""


def processes() -> int:
    """How many processes tokenise: the cores this one may use, or RAYON_NUM_THREADS; one where TOKENIZERS_PARALLELISM
    is false."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("0", "off", "false", "f", "no", "n"):
        return 1
    asked = os.environ.get("RAYON_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return min(int(asked), MOST_PROCESSES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def tokenised(stream: Iterable[Document], recipe: Recipe, workers: int) -> Iterator[Tokenised]:
    """What comes of the stream's documents, in their order.

    Raises:
        Ended: a process was killed, for want of memory most likely.
    """
    source = groups(stream)
    for number, group in enumerate(source):
        yield tokenise(group, recipe)
        if workers > 1 and number + 1 >= ALONE:
            break
    with _Workers(recipe, workers) as pool:
        waiting: deque[Future[Tokenised]] = deque()
        for group in source:
            waiting.append(pool.submit(group))
            # What is read ahead of the slowest is bounded.
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Workers:
    """Processes that tokenise, each led by a thread. They are no forks, and they import nothing of the program that
    called: a script without a main guard is safe."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self._recipe = pickle.dumps(recipe)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="tokenise")
        self._own = threading.local()
        self._all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:  # first, so that threads that wait for an answer get none
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            process.kill()  # also one that a thread began meanwhile
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()

    def submit(self, group: list[Document]) -> Future[Tokenised]:
        return self._threads.submit(self._work, group)

    def _work(self, group: list[Document]) -> Tokenised:
        process = getattr(self._own, "process", None)
        if process is None:
            process = self._own.process = self._begun()
        try:
            _send(process.stdin, pickle.dumps(group))
            kind, found = pickle.loads(_receive(process.stdout))
        except (EOFError, OSError):
            raise Ended(
                f"a process that tokenised has ended ({process.wait()})",
                hint="Is there too little memory? What was done is kept: run the same command again to go on, with "
                "RAYON_NUM_THREADS=1 for one process.",
            ) from None
        if kind == "error":
            raise found
        return found

    def _begun(self) -> subprocess.Popen[bytes]:
        shared = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "TOKENIZERS_PARALLELISM": "false",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "unmask.modalities.text.tokenising"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=shared,
        )
        self._all.append(process)
        _send(process.stdin, self._recipe)
        return process


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
    """Tokenise what the parent sends, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    try:
        recipe: Recipe = pickle.loads(_receive(work))
        while True:
            group = pickle.loads(_receive(work))
            answer: tuple[str, Any]
            try:
                answer = ("done", tokenise(group, recipe))
            except Exception as error:
                answer = ("error", error)
            _send(results, pickle.dumps(answer))
    except (EOFError, OSError):
        return


if __name__ == "__main__":
    # What is pickled here must be of the module that the parent imports, not of __main__.
    from unmask.modalities.text import tokenising

    tokenising.serve(sys.stdin.buffer, sys.stdout.buffer)
