"""Picture files that are decoded when they are asked for, for one pass over a set that does not fit in memory."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np

from unmask.modalities.images.formats.picture import PLAIN, Broken, Choice, Picture, Source
from unmask.modalities.images.reading.decode import Form, decode
from unmask.modalities.images.reading.lazy import LazyArray
from unmask.modalities.images.reading.shards import die_with_parent


class Stream:
    """The examples of files, decoded at every look; workers decode what follows the last look meanwhile.

    `pixels` and `missing` are indexed along the first axis like arrays. A file that turns out broken gives zeros, and
    its reason stands in `broken` by the number of its first example: whoever looked leaves these examples out.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        counts: Sequence[int],
        form: Form,
        *,
        choice: Choice = PLAIN,
        workers: int | None = None,
    ) -> None:
        self.sources, self.form, self.choice = sources, form, choice
        self.file = np.repeat(np.arange(len(sources)), counts)
        self.first = np.concatenate([[0], np.cumsum(counts)])
        self.workers = min(os.cpu_count() or 1, 8) if workers is None else workers
        self.broken: dict[int, str] = {}
        self._decoded: dict[int, list[Picture] | None] = {}
        self._coming: dict[int, Future[list[Picture] | Broken]] = {}
        self._pool: ProcessPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.file)

    @property
    def pixels(self) -> StreamedArray:
        shape = (self.form.height, self.form.width, self.form.channels)
        return StreamedArray(self, np.arange(len(self)), np.dtype(self.form.depth), shape, masks=False)

    @property
    def missing(self) -> StreamedArray:
        shape = (self.form.height, self.form.width)
        return StreamedArray(self, np.arange(len(self)), np.dtype(bool), shape, masks=True)

    def read(self, numbers: np.ndarray, following: np.ndarray) -> list[Picture | None]:
        """Some examples (None of broken files), while those `following` are sent to workers."""
        needed = list(dict.fromkeys(self.file[numbers].tolist()))
        self._send(needed + list(dict.fromkeys(self.file[following].tolist())))
        decoded = {n: self._decoded[n] if n in self._decoded else self._take(n) for n in needed}
        # A look at the masks follows one at the pixels: these files need not be decoded again.
        self._decoded = decoded
        found: list[Picture | None] = []
        for number in numbers.tolist():
            file = int(self.file[number])
            pictures = decoded[file]
            found.append(None if pictures is None else pictures[number - int(self.first[file])])
        return found

    def _send(self, files: list[int]) -> None:
        if self.workers <= 1:
            return
        if self._pool is None:
            kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            context = multiprocessing.get_context(kind)
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=die_with_parent)
        for n in files:
            if n not in self._coming and n not in self._decoded:
                self._coming[n] = self._pool.submit(decode, self.sources[n], self.form, self.choice)

    def _take(self, number: int) -> list[Picture] | None:
        coming = self._coming.pop(number, None)
        found = decode(self.sources[number], self.form, self.choice) if coming is None else coming.result()
        count = int(self.first[number + 1] - self.first[number])
        if isinstance(found, Broken):
            self.broken[int(self.first[number])] = found.reason
        elif len(found) != count:
            self.broken[int(self.first[number])] = (
                f"gave {len(found)} pictures, {count} were announced: the file changed"
            )
        else:
            return found
        return None

    def whole(self, numbers: np.ndarray) -> np.ndarray:
        """Booleans: which of these examples could be read, as far as they were looked at."""
        bad = np.isin(self.first[self.file[numbers]], list(self.broken))
        return ~bad

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def __del__(self) -> None:
        self.close()


class StreamedArray(LazyArray):
    """Pixels or masks of a stream, or of some of its examples; indexing decodes what is asked for, zeros of broken
    files."""

    def __init__(
        self, stream: Stream, which: np.ndarray, kind: np.dtype, shape: tuple[int, ...], *, masks: bool
    ) -> None:
        super().__init__(which, kind, shape)
        self.stream, self._masks = stream, masks

    def fetch(self, numbers: np.ndarray, following: np.ndarray, out: np.ndarray) -> None:
        for row, picture in zip(out, self.stream.read(numbers, following), strict=True):
            if picture is not None and self._masks:
                row[:] = False if picture.missing is None else picture.missing
            elif picture is not None:
                row[:] = picture.pixels

    def part(self, which: np.ndarray) -> StreamedArray:
        return StreamedArray(self.stream, self.which[which], self.dtype, self.each, masks=self._masks)

    def whole(self) -> np.ndarray:
        """Booleans: which of the examples could be read, as far as they were looked at."""
        return self.stream.whole(self.which)
