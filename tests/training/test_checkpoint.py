"""A checkpoint is whole or absent, resuming is exact, and no file runs code."""

import errno
import json
import os
import pickle
import random
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from unmask.errors import UserError
from unmask.training import checkpoint
from unmask.training.checkpoint import (
    load_checkpoint,
    read_weights,
    restore_random_state,
    save_checkpoint,
)
from unmask.training.optimiser import build_optimiser, step
from unmask.training.processes import load_latest
from unmask.training.settings import TrainSettings
from unmask.training.signals import SignalGuard


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight


def _train(model, optimiser, steps):
    for _ in range(steps):
        tokens = torch.randint(0, 7, (random.randint(4, 9),))
        noise = torch.from_numpy(np.random.rand(4).astype("float32"))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model.head(model.embedding(tokens) + noise), tokens).backward()
        step(optimiser, model.parameters(), clip=1.0, rate=0.5)


def _save(folder, number, model=None, optimiser=None, **options):
    model = model or Tied()
    optimiser = optimiser or build_optimiser(model, TrainSettings())
    return save_checkpoint(
        folder, step=number, model_state=model.state_dict(), optimiser_state=optimiser.state_dict(), **options
    )


@pytest.mark.parametrize("kind", ["adamw", "stable_adamw"])
def test_resume_is_bit_identical(tmp_path, kind):
    torch.manual_seed(3)
    model = Tied()
    optimiser = build_optimiser(model, TrainSettings(optimiser=kind))
    _train(model, optimiser, 3)
    path = _save(tmp_path, 3, model, optimiser, extra={"cursor": [1, 2]})
    _train(model, optimiser, 3)

    again = Tied()
    optimiser_again = build_optimiser(again, TrainSettings(optimiser=kind, learning_rate=9.0))
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert (loaded.path, loaded.step, loaded.extra) == (path, 3, {"cursor": [1, 2]})
    again.load_state_dict(loaded.model_state)
    optimiser_again.load_state_dict(loaded.optimiser_state)
    restore_random_state(loaded.random_state)
    _train(again, optimiser_again, 3)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    torch.testing.assert_close(optimiser.state_dict(), optimiser_again.state_dict(), rtol=0, atol=0)


def test_tied_tensors_are_stored_once_and_views_alone(tmp_path):
    path = _save(tmp_path, 1)
    assert (path / "model.safetensors").stat().st_size < 2 * 7 * 4 * 4 + 300
    weights = read_weights(path)
    assert torch.equal(weights["head.weight"], weights["embedding.weight"])
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"row": whole[1], "column": whole[:, 1], "empty": torch.zeros(0), "none": torch.zeros(0)}
    path = save_checkpoint(tmp_path, step=2, model_state=tensors, optimiser_state={})
    for name, value in read_weights(path).items():
        assert torch.equal(value, tensors[name])


def test_keeps_the_newest_and_drops_a_given_up_future(tmp_path):
    for number in (1, 2, 3, 9):
        _save(tmp_path, number, keep=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-00000003", "step-00000009"]
    _save(tmp_path, 4, keep=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-00000003", "step-00000004"]
    _save(tmp_path, 4, keep=1, extra={"second": True})
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000004"]
    assert load_latest(tmp_path).extra == {"second": True}
    assert load_latest(tmp_path / "nowhere") is None


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _edit(path, **changed):
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(
    "harm",
    [
        lambda p: (p / "state.json").unlink(),
        lambda p: (p / "state.json").write_text('{"step": 2'),
        lambda p: _edit(p / "state.json", step=9),
        lambda p: _edit(p / "state.json", extra={"cursor": [0, 0]}),
        lambda p: (p / "state.json").write_text("[]"),
        lambda p: (p / "optimiser.safetensors").unlink(),
        lambda p: os.truncate(p / "model.safetensors", 100),
        lambda p: _flip(p / "model.safetensors"),
    ],
    ids=["no state", "half a state", "a step", "an extra", "a list", "no optimiser", "short weights", "one bit"],
)
def test_a_half_checkpoint_is_skipped_and_named(tmp_path, harm):
    _save(tmp_path, 1)
    path = _save(tmp_path, 2)
    harm(path)
    with pytest.warns(UserWarning, match="step-00000002"):
        assert load_latest(tmp_path).step == 1
    with pytest.raises(UserError, match="step-00000002"):
        load_checkpoint(path)


def test_no_checkpoint_is_whole(tmp_path):
    for number in (1, 2):
        _flip(_save(tmp_path, number) / "state.json")
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(UserError, match="no checkpoint there is whole"):
        load_latest(tmp_path)


def test_killed_while_writing_or_replacing(tmp_path):
    path = _save(tmp_path, 1)
    shutil.copytree(path, path.parent / ".writing-00000002")
    assert load_latest(tmp_path).step == 1
    path.rename(path.with_name(path.name + ".replaced"))  # the moment between the two renames
    assert load_latest(tmp_path).step == 1
    _save(tmp_path, 2)
    assert os.listdir(path.parent) == ["step-00000002"]


@pytest.mark.parametrize("place", ["fsync", "save_file", "rename"])
def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch, place):
    _save(tmp_path, 1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = {
        "fsync": (os, "fsync"),
        "save_file": (checkpoint, "save_file"),
        "rename": (checkpoint.Path, "rename"),
    }
    monkeypatch.setattr(*target[place], full)
    with pytest.raises(UserError, match=r"could not write checkpoint .*step-00000002: disk full"):
        _save(tmp_path, 2)
    monkeypatch.undo()
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]
    assert load_latest(tmp_path).step == 1


def test_a_real_write_failure(tmp_path):
    resource = pytest.importorskip("resource")
    _save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(UserError, match="could not write checkpoint"):
            save_checkpoint(tmp_path, step=2, model_state={"a": torch.zeros(500_000)}, optimiser_state={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]


def test_read_weights_finds_files_and_shards(tmp_path):
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2)}
    torch.save({"model": tensors}, tmp_path / "pytorch_model.bin")
    assert torch.equal(read_weights(tmp_path)["a"], tensors["a"])
    save_file({"a": tensors["a"]}, tmp_path / "one.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    with pytest.raises(UserError, match=r"1 of 2 shards are missing: two\.safetensors"):
        read_weights(tmp_path)
    save_file({"b": tensors["b"]}, tmp_path / "two.safetensors")
    assert set(read_weights(tmp_path)) == {"a", "b"}
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(UserError, match="not a plain file name"):
        read_weights(index)


def test_read_weights_names_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match="no weights here"):
        read_weights(tmp_path)
    for name in ("model.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"not a model at all")
        with pytest.raises(UserError, match=name):
            read_weights(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.bin")
    with pytest.raises(UserError, match="more than named tensors"):
        read_weights(tmp_path / "list.bin")


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize(
    "write", [torch.save, lambda o, p: p.write_bytes(pickle.dumps(o, protocol=2))], ids=["zip", "bare"]
)
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, write):
    proof = tmp_path / "ran"
    path = tmp_path / "pytorch_model.bin"
    write({"a": torch.ones(1), "b": Payload(proof)}, path)
    with pytest.raises(UserError, match=r"pytorch_model\.bin: refused"):
        read_weights(tmp_path)
    assert not proof.exists()
    torch.load(path, weights_only=False) if write is torch.save else pickle.loads(path.read_bytes())
    assert proof.exists(), "the payload is a real one"


@pytest.fixture
def usual_interrupt():
    """Python's own handler: a runner started in the background inherits an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_interrupt")
def test_signals_set_a_flag_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with SignalGuard() as guard:
        assert not guard.requested
        signal.raise_signal(signal.SIGTERM)
        assert guard.requested
        with pytest.raises(KeyboardInterrupt):  # the second one acts as usual
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
