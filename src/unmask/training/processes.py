"""The processes of one launcher: who prepares files while the others wait, random numbers of each one's own, and that
all do the same run.

Each node's first process prepares files in that node's folder: the first of all before the others, so that on a shared
disk they find what it made, and on disks of their own each node makes it once.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import itertools
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.core.hashing import hash_keys
from unmask.errors import UserError, option
from unmask.training.checkpoint import (
    Checkpoint,
    capture_random_state,
    checkpoints,
    load_checkpoint,
    restore_random_state,
)
from unmask.training.launcher import check_launcher, process_count, record_run_start, restarted
from unmask.training.precision import resolve_device
from unmask.training.settings import TrainSettings
from unmask.writing import first_of_all

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.distributed.distributed_c10d import Store

BEAT = 5.0
"""Seconds between the signs of life of a process that prepares files."""
SILENCE = 300.0
"""Seconds without one after which those who wait give up. However long the work takes, it gives signs of life."""
LEAVING = 5.0
"""Seconds that a process which ends waits for the others to end too."""
LOST = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "remote process exited",
    "Read timeout",
    "Application timeout",
)
"""What gloo and NCCL say when a process is gone."""
_rounds = itertools.count()


class Alone:
    """What Accelerate says of one process, said without loading it."""

    num_processes, process_index, is_main_process = 1, 0, True

    def wait_for_everyone(self) -> None:
        """There is nobody to wait for."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes of a run; what needs all of them is called by all.

    Attributes:
        accelerator: Accelerate's, or its state, which know the other processes; or `Alone`.
    """

    accelerator: Any

    @classmethod
    def of_launcher(cls) -> Processes:
        """Those that a launcher started, if any; they have joined (`join_others`)."""
        if process_count() == 1:
            return cls(accelerator=Alone())
        from accelerate import PartialState

        return cls(accelerator=PartialState())

    @property
    def first_process(self) -> bool:
        """Whether this is the process that writes files and tells people."""
        return bool(self.accelerator.is_main_process)

    @property
    def processes(self) -> int:
        """How many processes share a step."""
        return int(self.accelerator.num_processes)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return int(self.accelerator.process_index)

    def total(self, x: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.processes == 1:
            return x
        from accelerate.utils import reduce

        return reduce(x, "sum")

    def any_process(self, holds: bool) -> bool:
        """Whether something holds in any of the processes."""
        return holds if self.processes == 1 else bool(self._sum(float(holds)) > 0)

    def from_first(self, value: float) -> float:
        """The first process's value, in all of them."""
        return value if self.processes == 1 else self._sum(value if self.first_process else 0.0)

    def _sum(self, value: float) -> float:
        return float(self.total(torch.tensor([value], dtype=torch.float64, device=self.accelerator.device)))

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Let every process have the sum of all gradients; what no process uses has none, as in one process."""
        if self.processes == 1:
            return
        used = self.total(torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device))
        shared = [p for p, count in zip(parameters, used.tolist(), strict=True) if count]
        if not shared:
            return
        parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in shared]
        for p, part in zip(shared, self.total(torch.cat(parts)).split([p.numel() for p in shared]), strict=True):
            p.grad = part.view_as(p)


def join_others(out: str | Path | None, device: str, *, resume: bool, minutes: float | None = None) -> bool:
    """Before the model is loaded and the data read: find the other processes of a launcher, each on a device of its
    own. Whether the run in `out` is resumed: unasked, where the same torchrun starts it again.

    Args:
        minutes: that the run takes; None where steps end it.
    """
    if resume and minutes is not None:
        raise UserError(
            f"{option('resume', True)} with {option('minutes')}",
            hint=f"A run that ends by the clock starts anew: give {option('epochs')} to resume.",
        )
    check_launcher()
    on_cpu = resolve_device(device).type == "cpu"
    if out is not None and minutes is None:
        resume = restarted(out, cpu=on_cpu) or resume
        if first_of_all():
            record_run_start(out, cpu=on_cpu)
    if process_count() > 1:
        from accelerate import PartialState

        PartialState(cpu=on_cpu)
        leave_at_exit()
    return resume


@contextlib.contextmanager
def first_process_first(settings: TrainSettings) -> Iterator[bool]:
    """Under a launcher, let the first process of each node prepare files while the others wait; yields whether this is
    the first process of all.

    Nobody waits with a deadline: tokenising a large corpus takes hours, and collective operations give up after
    minutes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    from accelerate import PartialState

    state = PartialState(cpu=resolve_device(settings.device).type == "cpu")
    leave_at_exit()
    store = _store()
    if store is None:
        with state.main_process_first():
            yield state.is_main_process
        return
    name, rank = f"unmask/prepared/{next(_rounds)}", state.process_index
    leader = rank - state.local_process_index
    if rank != 0:
        wait_for(store, name, 0)
    if rank != leader:
        wait_for(store, name, leader)
        yield False
        return
    with at_work(store, name, rank):
        yield rank == 0


def _store() -> Store | None:
    """The key-value store that the process group was set up with; None where there is none."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    # Private in torch 2.8 to 2.13, and the only way to it.
    found = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if found is None else found()


@contextlib.contextmanager
def at_work(store: Store, name: str, rank: int) -> Iterator[None]:
    """Within, process `rank` gives signs of life; at the end it tells those who wait how it ended."""
    ended = threading.Event()

    def beat() -> None:
        for count in itertools.count():
            with contextlib.suppress(RuntimeError):
                store.set(f"{name}/{rank}/alive", str(count))
            if ended.wait(BEAT):
                return

    thread = threading.Thread(target=beat, name="alive", daemon=True)
    thread.start()
    outcome = "ended"
    try:
        yield
        outcome = "done"
    except UserError as error:
        outcome = f"failed: {error.what}"
        raise
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(RuntimeError):
            store.set(f"{name}/{rank}", outcome)


def wait_for(store: Store, name: str, rank: int, *, every: float = 0.5, silence: float = SILENCE) -> None:
    """Wait until process `rank` has done its work.

    Args:
        every: seconds between looks.
        silence: seconds without a sign of life after which the process counts as ended.
    """
    heard, last = time.monotonic(), b""
    hint = f"See what process {rank} says, then start all of them again."
    while True:
        try:
            if store.check([f"{name}/{rank}"]):
                message = store.get(f"{name}/{rank}").decode()
                if message == "done":
                    return
                raise UserError(f"process {rank} could not prepare the data ({message})", hint=hint)
            beat = store.get(f"{name}/{rank}/alive") if store.check([f"{name}/{rank}/alive"]) else b""
        except RuntimeError as error:  # the store went with the process that held it
            raise UserError(f"process {rank}, which prepares the data, has ended ({error})", hint=hint) from None
        if beat != last:
            heard, last = time.monotonic(), beat
        if time.monotonic() - heard > silence:
            raise UserError(
                f"process {rank}, which prepares the data, gave no sign of life for {silence:.0f} s", hint=hint
            )
        time.sleep(every)


@functools.cache
def leave_at_exit() -> None:
    """Let this process leave its group before Python ends, with the others or `LEAVING` seconds later: gloo's threads,
    still running then or losing a process that left before, end it with an abort at times."""

    def leave() -> None:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized() and distributed.get_backend() == "gloo":
            with contextlib.suppress(RuntimeError):  # the others may have gone already
                distributed.monitored_barrier(timeout=datetime.timedelta(seconds=LEAVING))
            with contextlib.suppress(RuntimeError):
                distributed.destroy_process_group()

    atexit.register(leave)


@contextlib.contextmanager
def others_alive(accelerator: Accelerator) -> Iterator[None]:
    """Within, the loss of another process is said as such."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error)
        if accelerator.num_processes == 1 or not any(sign in reason for sign in LOST):
            raise
        raise UserError(
            f"another process of the run has ended ({reason.splitlines()[0][:200]})",
            hint="See what it said. Resume; torchrun does by itself, where it may restart (max-restarts).",
        ) from error


def check_same_everywhere(accelerator: Accelerator, run: Mapping[str, Any]) -> None:
    """Refuse to train where the processes were given different things: files of nodes without a shared disk may differ.

    Args:
        run: what must be the same in all of them, by name, as JSON.
    """
    if accelerator.num_processes == 1:
        return
    leave_at_exit()
    from accelerate.utils import gather_object

    for rank, other in enumerate(everyone := gather_object([dict(run)])):
        for name, value in other.items():
            if value != everyone[0].get(name):
                raise UserError(
                    f"{name} of process {rank} is not that of process 0",
                    hint="Give every node the same data, tokenizer and run folder (its checkpoints, where the run is "
                    "resumed).",
                )


def load_latest(folder: str | Path, accelerator: Any = None) -> Checkpoint | None:
    """The newest checkpoint that is whole in the eyes of every process, or None where there is none; called by all.

    Others are skipped with a warning.

    Args:
        accelerator: of `Processes`; default those of the launcher.
    """
    accelerator = accelerator or Processes.of_launcher().accelerator
    names, share, failed = [[path.name for path in checkpoints(folder)]], (0, 1), None
    several = accelerator.num_processes > 1
    if several:
        from accelerate.utils import broadcast_object_list, gather_object

        names, share = broadcast_object_list(names), (accelerator.process_index, accelerator.num_processes)
    for name in names[0]:
        found, error = None, None
        try:
            found = load_checkpoint(Path(folder) / "checkpoints" / name, share)
        except UserError as raised:
            error = raised.what
        errors = [e for e in (gather_object([error]) if several else [error]) if e is not None]
        if not errors:
            return found
        warnings.warn(f"skipped checkpoint: {errors[0]}", stacklevel=2)
        failed = failed or errors[0]
    if failed is not None:
        hint = "Bring its files back, or start anew in another folder."
        raise UserError(f"{folder}: no checkpoint there is whole; the newest: {failed}", hint=hint)
    return None


def own_random_numbers(seed: int, rank: int, found: Checkpoint | None) -> None:
    """Let each process drop out and sample by numbers of its own; the first keeps those of a run in one process.

    Args:
        found: the checkpoint that is resumed: its state of this process, or, with more processes than it knew, a new
            one.
    """
    if found is not None:
        states = [found.random_state, *found.extra.get("random_states", [])]
        if rank < len(states):
            return restore_random_state(states[rank])
    if rank:
        torch.manual_seed(int(hash_keys(seed, rank, found.step if found else 0)) >> 1)
    return None


def random_states(accelerator: Accelerator) -> list[dict[str, Any]]:
    """Random states of all processes but the first, as JSON, for the checkpoint; called by all."""
    if accelerator.num_processes == 1:
        return []
    from accelerate.utils import gather_object

    return gather_object([capture_random_state()])[1:]
