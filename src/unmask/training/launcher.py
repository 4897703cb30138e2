"""What a launcher (torchrun, accelerate launch, Slurm's srun through either) says of the processes it started."""

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
_questions = itertools.count()


def process_count() -> int:
    """How many processes the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_of_all() -> bool:
    """Whether this process is the one that tells people and writes results."""
    return os.environ.get("RANK", "0") == "0"


def check_launcher() -> None:
    """Refuse what `accelerate launch` would put under the run unasked."""
    for variable, name in _ENGINES.items():
        if os.environ.get(variable, "").lower() in ("true", "1", "yes"):
            raise UserError(
                f"the configuration of accelerate launch asks for {name}, which does not train here",
                hint=f"Leave it out there (distributed_type: MULTI_GPU); {setting('shard', 'full')} "
                "shares the model out over the processes (FSDP2).",
            )


def check_one_process(what: str) -> None:
    """Refuse to do in each of several processes what one does."""
    if process_count() > 1:
        raise UserError(
            f"{what} takes one process, the launcher started {process_count()}",
            hint="Start it without torchrun or accelerate launch.",
        )


@dataclass(frozen=True)
class Round:
    """One start of all processes by a torchrun that may start them again.

    Attributes:
        kept: the store of torchrun's own, which outlives the processes.
        own: the part of it that this round alone uses.
        name: no other round has it.
    """

    kept: Store
    own: Store
    name: str
    rank: int


@functools.cache
def join(cpu: bool) -> Round | None:
    """Make the process group of this start, where torchrun or accelerate launch started the processes; else None.

    torch 2.13 gives the processes of every start the same store, and those of the second read there the addresses of
    the first: they cannot connect, and of three restarts every second one is lost (pytorch #135712, which counts
    restarts, has come back; the counts of several machines differ). So the processes agree on a name that is new, and
    use the part of the store that is named so.

    Args:
        cpu: whether the run is on CPUs.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    rank, processes = int(os.environ["RANK"]), process_count()
    kept = next(rendezvous("env://", rank, processes))[0]
    name = agree(kept, rank, processes)
    own = PrefixStore(f"unmask/{name}", kept)
    if not distributed.is_initialized() and processes > 1:
        distributed.init_process_group("gloo" if cpu else "nccl", store=own, rank=rank, world_size=processes)
    return Round(kept, own, name, rank)


def agree(store: Store, rank: int, processes: int, *, every: float = 0.05) -> str:
    """A name that the processes of this start have in common, and those of earlier starts did not, whatever they left
    in the store: each says a new name of its own, and the first answers it with its own until all have heard it.

    Args:
        every: seconds between looks.
    """
    mine = uuid.uuid4().hex
    store.set(f"unmask/here/{rank}", mine)
    if rank:
        name = store.get(f"unmask/answer/{mine}").decode()
        store.set(f"unmask/heard/{name}/{rank}", "")
        return name
    answered = set[str]()
    others = range(1, processes)
    while not all(store.check([f"unmask/heard/{mine}/{other}"]) for other in others):
        for other in others:
            if store.check([f"unmask/here/{other}"]):
                theirs = store.get(f"unmask/here/{other}").decode()
                if theirs not in answered:
                    store.set(f"unmask/answer/{theirs}", mine)
                    answered.add(theirs)
        time.sleep(every)
    return mine


def goes_on(out: str | Path, *, cpu: bool) -> bool:
    """Whether an earlier start by the same torchrun began the run in `out`: then it is resumed unasked. The same in all
    processes, which all call it."""
    found = join(cpu)
    if found is None:
        return False
    question = f"goes on/{next(_questions)}"
    if found.rank == 0:
        key = _key(out)
        began = found.kept.check([key]) and found.kept.get(key).decode() != found.name
        found.own.set(question, "yes" if began else "no")
    return bool(found.own.get(question) == b"yes")


def note_start(out: str | Path, *, cpu: bool) -> None:
    """Let later starts by the same torchrun know that this one began the run in `out`; called by the first process."""
    if (found := join(cpu)) is not None and not found.kept.check([_key(out)]):
        found.kept.set(_key(out), found.name)


def _key(out: str | Path) -> str:
    return f"unmask/began/{Path(out).absolute()}"
