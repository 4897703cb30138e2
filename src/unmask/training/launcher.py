"""The launcher's processes (torchrun, accelerate launch, Slurm's srun through either): their number, and restarts."""

from __future__ import annotations

import functools
import itertools
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.errors import UserError, setting

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_ENGINES = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}
_calls = itertools.count()
"""Numbers the calls of `restarted`, alike in all processes."""


def process_count() -> int:
    """How many processes the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank_range(count: int) -> range:
    """Which of the items of a step, numbered from 0, are this process's."""
    most = -(-count // process_count())
    begin = int(os.environ.get("RANK", "0")) * most
    return range(begin, min(begin + most, count))


def check_launcher() -> None:
    """Refuse an engine that the configuration of `accelerate launch` would wrap around the model."""
    for variable, name in _ENGINES.items():
        if os.environ.get(variable, "").lower() in ("true", "1", "yes"):
            raise UserError(
                f"the configuration of accelerate launch asks for {name}, which does not train here",
                hint=f"Leave it out there (distributed_type: MULTI_GPU); {setting('shard', 'full')} "
                "shares the model out over the processes (FSDP2).",
            )


def check_one_process(what: str) -> None:
    """Refuse work for a single process when the launcher started several."""
    if process_count() > 1:
        raise UserError(
            f"{what} takes one process, the launcher started {process_count()}",
            hint="Start it without torchrun or accelerate launch.",
        )


@dataclass(frozen=True)
class LauncherStart:
    """One start of all processes by torchrun, which may restart them after a failure.

    Attributes:
        store: torchrun's key-value store, which survives restarts.
        own_store: the part of that store (a key prefix) that only this start uses.
        name: the prefix; unique to this start.
    """

    store: Store
    own_store: Store
    name: str
    rank: int


@functools.cache
def join_process_group(cpu: bool) -> LauncherStart | None:
    """Create the process group of this start; None where neither torchrun nor accelerate launch started the processes.

    torch 2.13 gives the processes of every start the same store. After a restart they find the addresses of the
    previous start in it and cannot connect, so every second restart fails (pytorch #135712; its fix, which put the
    count of restarts into the keys, is no longer there, and machines disagree about that count). So the processes
    agree on a new name and use only the keys of the store with that prefix.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    rank, processes = int(os.environ["RANK"]), process_count()
    store = next(rendezvous("env://", rank, processes))[0]
    name = agree_on_name(store, rank, processes)
    own_store = PrefixStore(f"unmask/{name}", store)
    if not distributed.is_initialized() and processes > 1:
        distributed.init_process_group("gloo" if cpu else "nccl", store=own_store, rank=rank, world_size=processes)
    return LauncherStart(store, own_store, name, rank)


def agree_on_name(store: Store, rank: int, processes: int, *, every: float = 0.05) -> str:
    """Agree on a name that all processes of this start share and no earlier start had, whatever is left in the store.

    Each process writes a new random name under its rank. The first process answers every such name with its own, until
    all others have confirmed that they read the answer. Its name is the one agreed on.

    Args:
        every: seconds between polls of the store.
    """
    own_name = uuid.uuid4().hex
    store.set(f"unmask/name/{rank}", own_name)
    if rank:
        name = store.get(f"unmask/answer/{own_name}").decode()
        store.set(f"unmask/confirmed/{name}/{rank}", "")
        return name
    answered = set[str]()
    others = range(1, processes)
    while not all(store.check([f"unmask/confirmed/{own_name}/{other}"]) for other in others):
        for other in others:
            if store.check([f"unmask/name/{other}"]):
                their_name = store.get(f"unmask/name/{other}").decode()
                if their_name not in answered:
                    store.set(f"unmask/answer/{their_name}", own_name)
                    answered.add(their_name)
        time.sleep(every)
    return own_name


def restarted(out: str | Path, *, cpu: bool) -> bool:
    """Whether an earlier start by the same torchrun began the run in `out`, which is then resumed without `--resume`.
    All processes must call it, and all get the same answer."""
    start = join_process_group(cpu)
    if start is None:
        return False
    answer, began_by = f"restarted/{next(_calls)}", _began_by(out)
    if start.rank == 0:
        earlier = start.store.check([began_by]) and start.store.get(began_by).decode() != start.name
        start.own_store.set(answer, "yes" if earlier else "no")
    return bool(start.own_store.get(answer) == b"yes")


def record_run_start(out: str | Path, *, cpu: bool) -> None:
    """Record for later starts by the same torchrun that this one began the run in `out`. Only for the first process."""
    if (start := join_process_group(cpu)) is not None and not start.store.check([_began_by(out)]):
        start.store.set(_began_by(out), start.name)


def _began_by(out: str | Path) -> str:
    """Under which key the store holds the name of the start that began the run in `out`."""
    return f"unmask/began/{Path(out).absolute()}"
