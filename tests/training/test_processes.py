"""Several processes of one launcher: who waits for whom, random numbers of each one's own, and the same run in all of
them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore

from unmask.errors import UserError
from unmask.training import processes as room
from unmask.training.processes import at_work, check_same_everywhere, wait_for

WORKER = """
import dataclasses, datetime, json, sys, time
from pathlib import Path
import torch
import tiny_run
from unmask.errors import UserError
from unmask.training import processes
from unmask.training.run import run
from unmask.training.settings import TrainSettings

torch.set_num_threads(1)
rank, out = int(__import__("os").environ["RANK"]), Path(sys.argv[1])
# The first process takes longer than any collective operation may.
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
found = {}
with processes.first_process_first(TrainSettings(device="cpu")) as first:
    if first:
        time.sleep(4)
        (out / "prepared").write_text("")
    found["prepared"] = (out / "prepared").exists()
# What follows is no matter of time.
torch.distributed.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=200))


def trained(name, resume=False, steps=4, **more):
    work = tiny_run.job()
    object.__setattr__(work.model.encoder.config, "dropout", 0.5)
    for module in work.model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.5
    work = dataclasses.replace(work, **more)
    torch.manual_seed(7)  # as where a model is made: the same everywhere
    settings = TrainSettings(steps=4, checkpoint_every=2, seed=7, precision="fp32", device="cpu", learning_rate=0.01)
    run(work, out / name, settings, resume=resume, console=False)
    return work.model


whole = trained("whole")
found["state"] = torch.get_rng_state().tolist()[:80]
found["dropout"] = float(torch.rand(()))
if rank == 0:
    import shutil
    shutil.copytree(out / "whole", out / "parts")
    shutil.rmtree(out / "parts" / "checkpoints" / "step-00000004")
torch.distributed.barrier()
parts = trained("parts", resume=True)
found["resumed"] = all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters()))
try:
    trained("other", fingerprint={"the corpus": rank})
except UserError as error:
    found["refused"] = error.what
(out / f"{rank}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict]:
    """What each of two processes found; see `WORKER`."""
    out = tmp_path_factory.mktemp("two")
    (out / "worker.py").write_text(WORKER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    shared = {
        **os.environ,
        "PYTHONPATH": path,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    both = [
        subprocess.Popen(
            [sys.executable, str(out / "worker.py"), str(out)],
            env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    told = [p.communicate(timeout=240)[1] for p in both]
    assert [p.returncode for p in both] == [0, 0], "\n".join(told)[-4000:]
    return [json.loads((out / f"{r}.json").read_text()) for r in range(2)]


def test_the_others_wait_however_long_the_first_takes(two):
    """A barrier gave up after the time that collective operations have: 3 s here, 10 or 30 minutes usually."""
    assert [found["prepared"] for found in two] == [True, True]


def test_each_process_drops_out_by_numbers_of_its_own(two):
    assert two[0]["dropout"] != two[1]["dropout"]


def test_a_resumed_run_gives_each_process_its_own_state_back(two):
    assert [found["resumed"] for found in two] == [True, True]


def test_processes_with_different_data_do_not_train_together(two):
    assert {found["refused"] for found in two} == {"the corpus of process 1 is not that of process 0"}


def test_a_process_that_failed_is_named_by_those_that_wait():
    store = HashStore()
    with pytest.raises(UserError, match="no text"), at_work(store, "round", 0):
        raise UserError("no text")
    with pytest.raises(UserError, match=r"process 0 could not prepare the data \(failed: no text\)"):
        wait_for(store, "round", 0)
    with pytest.raises(ZeroDivisionError), at_work(store, "again", 0):
        _ = 1 / 0
    with pytest.raises(UserError, match=r"process 0 could not prepare the data \(ended\)"):
        wait_for(store, "again", 0)


def test_signs_of_life_keep_those_who_wait_and_silence_ends_it(monkeypatch):
    monkeypatch.setattr(room, "BEAT", 0.02)
    store, ended = HashStore(), []

    def waits() -> None:
        wait_for(store, "round", 0, every=0.01, silence=0.3)
        ended.append(time.monotonic())

    other = threading.Thread(target=waits)
    with at_work(store, "round", 0):
        other.start()
        time.sleep(1.0)
        assert not ended
    other.join()
    assert ended
    with pytest.raises(UserError, match="no sign of life for 0 s"):
        wait_for(store, "silent", 0, every=0.01, silence=0.1)


def test_one_process_checks_nothing():
    class Alone:
        num_processes = 1

    check_same_everywhere(Alone(), {"a": 1})
