"""What a launcher says of its processes; processes that were started again agree on a name and resume their own run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.distributed import HashStore, PrefixStore

from unmask.errors import UserError
from unmask.training import launcher
from unmask.training.launcher import (
    LauncherStart,
    agree_on_name,
    check_launcher,
    check_one_process,
    join_process_group,
    record_run_start,
    restarted,
)


def started(store: HashStore, processes: int) -> list[str]:
    """The names that the processes of one start agree on."""
    names = [""] * processes

    def one(rank: int) -> None:
        names[rank] = agree_on_name(store, rank, processes, every=0.001)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return names


def test_every_start_has_a_name_of_its_own_whatever_earlier_ones_left():
    store = HashStore()
    names = [started(store, 3) for _ in range(3)]
    assert all(len(set(of)) == 1 for of in names)
    assert len({of[0] for of in names} - {""}) == 3


def test_only_a_run_that_an_earlier_start_began_is_resumed_unasked(monkeypatch, tmp_path):
    store = HashStore()

    def start(name: str) -> None:
        monkeypatch.setattr(
            launcher, "join_process_group", lambda cpu: LauncherStart(store, PrefixStore(name, store), name, 0)
        )

    start("first")
    assert not restarted(tmp_path / "own", cpu=True)
    record_run_start(tmp_path / "own", cpu=True)
    assert not restarted(tmp_path / "own", cpu=True)
    start("second")
    assert restarted(tmp_path / "own", cpu=True)
    assert not restarted(tmp_path / "refused", cpu=True)  # it held another run, and the first start ended there
    record_run_start(tmp_path / "own", cpu=True)
    start("third")
    assert restarted(tmp_path / "own", cpu=True)


def test_without_a_launcher_nothing_is_resumed_unasked(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    join_process_group.cache_clear()
    assert not restarted(tmp_path, cpu=True)


@pytest.mark.parametrize(
    ("variable", "name"), [("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")]
)
def test_engines_of_accelerate_are_refused(monkeypatch, variable, name):
    check_launcher()
    monkeypatch.setenv(variable, "true")
    with pytest.raises(UserError, match=f"accelerate launch asks for {name}"):
        check_launcher()


def test_tables_take_one_process(monkeypatch):
    check_one_process("a table's fit")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a table's fit takes one process, the launcher started 2"):
        check_one_process("a table's fit")


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_run_whose_processes_are_killed_twice_ends_with_the_same_weights(tmp_path, shard):
    """Bit for bit, on CPUs; dropout included."""
    words = [f"w{i * i % 97}" for i in range(40_000)]
    lines = (" ".join(words[i : i + 20]) for i in range(0, len(words), 20))
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    torchrun(tmp_path, tmp_path / "whole", shard, kills=0)
    torchrun(tmp_path, tmp_path / "killed", shard, kills=2)
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all((killed[name] == tensor).all() for name, tensor in whole.items())


def torchrun(folder: Path, out: Path, shard: str, *, kills: int) -> None:
    """A run of two processes; at steps 35, 65, ... one of them is killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    small = (
        "width=32 layers=2 heads=2 slots=32 batch_slots=1024 vocabulary=150 dropout=0.1 checkpoint_every=10 log_every=1"
    )
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=3", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "-m", "unmask", "pretrain", "text"]
    command += [str(folder / "corpus.txt"), "--out", str(out), "--steps=100", "--precision=fp32", "--device=cpu"]
    command += [part for pair in [*small.split(), f"shard={shard}"] for part in ("--set", pair)]
    with (out.with_suffix(".log")).open("w") as log:
        agent = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, env={**os.environ})
    try:
        for kill in range(kills):
            while step_of(out) < 35 + 30 * kill and agent.poll() is None:
                time.sleep(0.02)
            children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
            os.kill(int(children[kill]), signal.SIGKILL)
        assert agent.wait(300) == 0, out.with_suffix(".log").read_text()[-3000:]
    finally:
        agent.kill()


def step_of(out: Path) -> int:
    """The last step of a run so far."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    steps = [int(line.split('"step": ')[1].split(",")[0]) for line in lines if '"kind": "train"' in line]
    return max(steps, default=0)
