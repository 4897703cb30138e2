"""Memory is known before the start, and micro-batches fit what there is."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tiny import make_model, ratio_corruption
from tiny_run import EXAMPLES, TEXT, job, lines, trained
from unmask.core.batch import pack
from unmask.errors import UserError
from unmask.memory import Free, _group_memory, free_memory, held_memory
from unmask.training import budget, compute, validation
from unmask.training import run as room
from unmask.training.ahead import MadeWhenNeeded, ahead
from unmask.training.budget import Need, fit, gigabytes, measure
from unmask.training.validation import sample

CPU = torch.device("cpu")


def batch(rows: int):
    return pack(EXAMPLES[:rows], slots=12, rows=rows)


def need(**more: float) -> Need:
    return Need(**({"lasting": 100e6, "saving": 0.0, "any_batch": 50e6, "row": 10e6} | more))


def test_measuring_changes_neither_weights_nor_gradients_nor_random_numbers():
    model = make_model(TEXT, "in_place", "bert")
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = measure(model, batch, ratio_corruption(), device=CPU, autocast=torch.enable_grad)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    trained_bytes = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
    assert found.lasting == 2 * trained_bytes
    assert found.any_batch >= trained_bytes
    # At least what autograd keeps: embeddings, queries, keys and values of every layer.
    assert found.row > 12 * 4 * model.encoder.config.width * 4 * model.encoder.config.layers


def test_a_larger_batch_takes_what_was_foretold():
    """The line through one and two rows meets the count at sixteen."""
    from unmask.training.budget import _counted

    model = make_model(TEXT, "in_place", "bert")
    found = measure(model, batch, ratio_corruption(), device=CPU, autocast=torch.enable_grad)
    most = _counted(model, batch, 16, ratio_corruption(), CPU, torch.enable_grad)
    assert 0.8 * most.whole < found.any_batch + 16 * found.row < 1.6 * most.whole


def test_batches_made_meanwhile_are_counted():
    model = make_model(TEXT, "in_place", "bert")

    def large(rows: int):
        torch.ones(rows, 10_000_000)  # what making a batch takes and gives back
        return batch(rows)

    given = {"device": CPU, "autocast": torch.enable_grad}
    now, ahead_of = (measure(model, large, ratio_corruption(), waiting=n, **given) for n in (0, 2))
    assert ahead_of.row - now.row >= 40e6


def test_looking_takes_no_more_than_a_step_however_many_batches_there_are():
    from unmask.core.pretrain import validate
    from unmask.training.budget import _counted, _Live

    for architecture in ("in_place", "visible_only"):
        model = make_model(TEXT, architecture, "bert")

        def most(count: int, model: torch.nn.Module = model) -> float:
            held = MadeWhenNeeded([lambda: batch(8)] * count, 8 * 12)
            with _Live(model) as live:
                validate(model, held, ratio_corruption())
            return live.most

        step = _counted(model, batch, 8, ratio_corruption(), CPU, torch.enable_grad)
        assert most(2) == most(8) <= step.whole


def test_the_micro_batch_fits_and_no_more_is_split_than_needed():
    free = Free(1e9, "a test")
    whole = fit(need(), rows=32, requested=1, free=free, held=0.0)
    assert (whole.parts, whole.rows) == (1, 32)
    split = fit(need(), rows=4096, requested=1, free=free, held=0.0)
    assert split.need.of(split.rows) <= 0.9 * free.bytes < split.need.of(split.rows + 3)
    assert split.parts * split.rows >= 4096
    assert "micro-batches" in split.lines()[1]
    assert fit(need(), rows=32, requested=4, free=free, held=0.0).parts == 4
    # The split of a run that is resumed stays as it was, unless it no longer fits.
    assert fit(need(), rows=4096, requested=1, free=Free(9e9, "more"), held=0.0, fixed=split.parts).parts == split.parts
    assert (
        fit(need(), rows=4096, requested=1, free=Free(0.6e9, "less"), held=0.0, fixed=split.parts).parts > split.parts
    )


def test_not_even_one_row_is_refused_with_the_numbers():
    with pytest.raises(
        UserError, match=r"one picture at a time takes about 1\.8 GB.* 0\.50 GB more are free \(a test\)"
    ):
        fit(need(row=1e9), rows=32, requested=1, free=Free(0.5e9, "a test"), held=0.2e9, unit="pictures")


def test_a_split_step_learns_what_a_whole_one_does(tmp_path, monkeypatch):
    most_rows: list[int] = []
    validate = validation.validate

    def evaluated(model, parts, *given, **more):
        parts = list(parts)
        most_rows.append(max(part.shape[0] for part in parts))
        return validate(model, parts, *given, **more)

    monkeypatch.setattr(validation, "validate", evaluated)
    whole = trained(tmp_path / "whole")
    monkeypatch.setattr(budget, "free_memory", lambda *_, **__: Free(1e9, "a test"))
    monkeypatch.setattr(compute, "measure", lambda *_, **__: need(row=400e6))
    split = trained(tmp_path / "split")
    assert (whole.micro_batches, split.micro_batches) == (1, 4)
    a, b = ([line["loss"] for line in lines(tmp_path / n, "train")] for n in ("whole", "split"))
    assert a == pytest.approx(b, rel=1e-5)
    looks = [line["validation_loss"] for n in ("whole", "split") for line in lines(tmp_path / n, "validation")]
    assert looks[: len(looks) // 2] == pytest.approx(looks[len(looks) // 2 :], rel=1e-5)
    assert most_rows == sorted(most_rows, reverse=True)
    assert set(most_rows) == {4, 1}
    # Resumed with plenty of memory, it goes on in the same micro-batches: bit for bit.
    monkeypatch.undo()
    assert trained(tmp_path / "split", True, steps=6).micro_batches == 4
    assert lines(tmp_path / "split", "start")[0]["micro_batches"] == 4


def test_the_setting_limits_what_the_process_holds(tmp_path):
    held = held_memory() / 1e9
    free = free_memory(held + 1)
    assert free.by.startswith("memory=")
    assert 0.5e9 < free.bytes < 1.5e9
    with pytest.raises(UserError, match="too little memory"):
        trained(tmp_path, memory=0.001)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_is_read(tmp_path, version):
    group, (name, most, used, cache) = (
        ("0::/a/b\n", ("", "memory.max", "memory.current", "inactive_file"))
        if version == 2
        else (
            "4:memory:/a/b\n3:cpu:/x\n",
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        )
    )
    (tmp_path / "cgroup").write_text(group)
    for path, limit in (("a", "8000000000"), ("a/b", "max" if version == 2 else str(2**63 - 4096))):
        here = tmp_path / "fs" / name / path
        here.mkdir(parents=True)
        (here / most).write_text(limit)
        (here / used).write_text("3000000000")
        (here / "memory.stat").write_text(f"anon 5\n{cache} 500000000\n")
    assert _group_memory(str(tmp_path / "fs"), str(tmp_path / "cgroup")) == 5.5e9
    assert _group_memory(str(tmp_path / "none"), str(tmp_path / "cgroup")) is None
    assert math.isfinite(free_memory().bytes)


def test_batches_made_ahead_keep_their_order_and_their_errors():
    def numbers():
        yield from range(5)
        raise ValueError("broken")

    for count in (0, 1, 3):
        found: list[int] = []

        def collect(count: int = count, found: list[int] = found) -> None:
            for n in ahead(numbers(), count):
                found.append(n)

        with pytest.raises(ValueError, match="broken"):
            collect()
        assert found == list(range(5))
    made = ahead(iter(range(10**9)), 2)
    assert next(made) == 0
    made.close()
    assert not [t for t in threading.enumerate() if t.name == "ahead"]


def test_looking_ahead_changes_nothing(tmp_path):
    import dataclasses

    def losses(name: str, **more) -> list[float]:
        from unmask.training.settings import TrainSettings

        settings = TrainSettings(steps=4, precision="fp32", device="cpu", accumulate=2)
        room.run(dataclasses.replace(job(), **more), tmp_path / name, settings, console=False)
        return [line["loss"] for line in lines(tmp_path / name, "train")]

    assert losses("now") == losses("ahead", prefetch=2)


def test_lazy_batches_are_sampled_as_those_in_memory_are():
    batches = [pack(EXAMPLES[i : i + 2], slots=12, rows=2) for i in range(0, 16, 2)]
    made = MadeWhenNeeded([lambda b=b: b for b in batches], 24)
    for slots in (1, 50, 1000):
        assert list(sample(made, slots)) == list(sample(batches, slots))
    assert list(made[1::2]) == batches[1::2]


def test_sizes_are_told_in_words_people_read():
    assert [gigabytes(x) for x in (21.34e9, 2.5e8, 3e6, -1)] == ["21.3 GB", "0.25 GB", "3 MB", "0 MB"]


def test_measuring_does_not_load_the_compiler():
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import torch\nfrom tiny_run import *\nfrom unmask.training.budget import measure\n"
        "def make(n): return pack(EXAMPLES[:n], slots=12, rows=n)\n"
        "model, cpu = make_model(TEXT, 'in_place', 'bert'), torch.device('cpu')\n"
        "measure(model, make, ratio_corruption(), device=cpu, autocast=torch.enable_grad)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
