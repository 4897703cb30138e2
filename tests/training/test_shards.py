"""Models shared out over processes (FSDP2), and checkpoints that any number of processes resumes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from several import together
from sharded_stages import disk_full, stage, stages
from unmask.errors import UserError
from unmask.training.checkpoint import load_checkpoint

FULL, NONE, ON = {"shard": "full"}, {"shard": "none"}, {"resume": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of nine steps: `alone` in one process; the others change number and kind of processes twice."""
    out = tmp_path_factory.mktemp("runs")
    hidden = {"alone": stage(out / "alone", 9)[0], "shared": [], "mixed": []}

    def go_on(count: int, *parts: tuple[str, int, dict[str, Any]]) -> None:
        for found in together(count, stages, *((out / name, steps, more) for name, steps, more in parts)):
            for (name, *_), (seen, _) in zip(parts, found, strict=True):
                hidden[name] += seen

    go_on(2, ("shared", 3, FULL), ("mixed", 3, NONE))
    go_on(4, ("shared", 6, FULL | ON), ("mixed", 6, FULL | ON))
    hidden["shared"] += stage(out / "shared", 9, **FULL, **ON)[0]
    go_on(2, ("mixed", 9, NONE | ON))
    (out / "hidden.json").write_text(json.dumps({name: digest(seen) for name, seen in hidden.items()}))
    return out


def digest(seen: list[Any]) -> str:
    return hashlib.sha256(json.dumps(sorted(seen)).encode()).hexdigest()


def losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_the_same_is_hidden_on_any_number_of_processes(folder):
    found = json.loads((folder / "hidden.json").read_text())
    assert found["shared"] == found["mixed"] == found["alone"] != digest([])


@pytest.mark.parametrize("name", ["shared", "mixed"])
def test_losses_are_those_of_one_process(folder, name):
    """2, 4 and 1 processes that share the model out; 2 with all of it, 4 that share it out, 2 with all of it."""
    assert len(losses(folder / "alone")) == 9
    np.testing.assert_allclose(losses(folder / name), losses(folder / "alone"), atol=1e-5)


@pytest.mark.filterwarnings("ignore:skipped checkpoint")
def test_a_checkpoint_that_lacks_a_shard_is_not_read(folder, tmp_path):
    """A missing shard left zeros in its part of every tensor."""
    shared = tmp_path / "shared"
    shutil.copytree(folder / "mixed", shared)
    shutil.rmtree(shared / "checkpoints" / "step-00000009")
    gone = shared / "checkpoints" / "step-00000006" / "shard-00002-model-00001-of-00001.safetensors"
    assert load_checkpoint(gone.parent).step == 6
    gone.unlink()
    with pytest.raises(UserError, match=r"shard-00002\S* missing, one of 4 shards"):
        load_checkpoint(gone.parent)
    with pytest.raises(UserError, match=r"no checkpoint there is whole; the newest: .*shard-00002"):
        stage(shared, 9, resume=True)
    assert len(losses(shared)) == 9  # and nothing is written over


def test_a_checkpoint_is_whole_or_not_there(tmp_path):
    """The disk is full when the second one is to be made visible: every process says so, the first stays."""
    said = together(2, disk_full, tmp_path / "run")
    assert len(said) == 2
    assert all("could not write checkpoint" in s and "disk full" in s for s in said)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000002").step == 2


def test_weights_used_again_or_by_one_process_or_by_none(tmp_path):
    """Layers that share weights, the last layer asked twice, a tied head; parameters that not every process uses. What
    no process uses stays as it was."""
    kinds = ["albert", "deberta", "rarely", "bert", "bert-muon"]
    settings = {"bert": {"accumulate": 2, "optimiser": "stable_adamw"}, "bert-muon": {"optimiser": "muon"}}
    parts = [
        (tmp_path / f"{kind}-{shard}", 3, {"shard": shard, "kind": kind, **settings.get(kind, {})})
        for kind in kinds
        for shard in ("none", "full")
    ]
    trained = [weights for _, weights in together(2, stages, *parts)[0]]
    for kind, whole, shared in zip(kinds, trained[::2], trained[1::2], strict=True):
        _, alone = stage(tmp_path / kind, 3, kind=kind, **settings.get(kind, {}))
        assert alone.keys() == whole.keys() == shared.keys()
        for name, expected in alone.items():
            # Muon multiplies in bf16: what is rounded otherwise in the gradients of two processes shows there.
            rounding = 1e-3 if "muon" in kind else 2e-4
            np.testing.assert_allclose(whole[name], expected, atol=rounding, err_msg=f"{kind} {name}")
            np.testing.assert_allclose(shared[name], whole[name], atol=2e-4, err_msg=f"{kind} {name}")
    assert (trained[5]["codec.never"] == 1).all()
    assert trained[5]["codec.rare"] != 1


def test_one_process_alone_holds_the_whole_model(tmp_path, capsys):
    stage(tmp_path / "run", 2, **FULL)
    assert (tmp_path / "run" / "checkpoints" / "step-00000002" / "model.safetensors").exists()
