"""Clipping folded into the kernel is clipping, and a bad gradient changes nothing."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from unmask.errors import UserError
from unmask.training.optimiser import AdamW, NanGuard, StableAdamW, build_optimiser, decay_groups, step
from unmask.training.settings import TrainSettings


def _model(device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11)).to(device)


def _backward(model: nn.Module, scale: float, seed: int) -> None:
    model.zero_grad()
    tokens = torch.randint(0, 11, (32,), generator=torch.Generator().manual_seed(seed))
    tokens = tokens.to(model[2].weight.device)
    (nn.functional.cross_entropy(model(tokens), tokens) * scale).backward()


@pytest.mark.parametrize("scale", [0.01, 100.0], ids=["below the clip", "above the clip"])
@pytest.mark.parametrize("kind", ["adamw", "stable_adamw"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_folded_clip_equals_clip_grad_norm(device, kind, scale):
    settings = TrainSettings(optimiser=kind, learning_rate=0.1)
    ours, reference = _model(device), _model(device)
    ours_opt, reference_opt = build_optimiser(ours, settings), build_optimiser(reference, settings)
    for i in range(5):
        _backward(ours, scale * (i + 1), i)
        _backward(reference, scale * (i + 1), i)
        norm = step(ours_opt, ours.parameters(), clip=0.5, rate=0.7)
        expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        for group in reference_opt.param_groups:
            group["lr"] = 0.07
        reference_opt.step()
        assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
        for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
    unclipped = _model()
    _backward(unclipped, 100.0, 0)
    before = copy.deepcopy(unclipped.state_dict())
    step(build_optimiser(unclipped, settings), unclipped.parameters(), clip=None)
    assert not torch.equal(before["2.weight"], unclipped.state_dict()["2.weight"])


@pytest.mark.parametrize("kind", ["adamw", "stable_adamw"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_leaves_everything_as_it_was(kind, bad):
    model = _model()
    optimiser = build_optimiser(model, TrainSettings(optimiser=kind))
    _backward(model, 1.0, 0)
    step(optimiser, model.parameters(), clip=1.0)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimiser.state_dict()["state"])
    _backward(model, 1.0, 1)
    model[2].weight.grad[0, 0] = bad
    norm = step(optimiser, model.parameters(), clip=1.0)
    assert not torch.isfinite(norm)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for index, entries in optimiser.state_dict()["state"].items():
        for name, value in entries.items():
            assert torch.equal(value, state[index][name]), (index, name)


def test_groups_follow_bert_and_count_tied_parameters_once():
    model = _model()
    model[2].weight = model[0].weight
    decayed, exempt = decay_groups(model, 0.01)
    assert [p.ndim for p in decayed["params"]] == [2]
    assert decayed["weight_decay"] == 0.01
    assert [p.ndim for p in exempt["params"]] == [1, 1, 1]
    assert exempt["weight_decay"] == 0.0
    for parameter in model.parameters():
        parameter.requires_grad = False
    with pytest.raises(UserError, match="frozen"):
        build_optimiser(model, TrainSettings())


def test_stable_adamw_is_adamw_until_the_gradient_jumps():
    def run(jump: float) -> tuple[float, float]:
        moved = []
        for make in (StableAdamW, torch.optim.AdamW):
            weight = nn.Parameter(torch.zeros(4))
            optimiser = make([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.0)
            for i in range(20):
                weight.grad = torch.full((4,), jump if i == 19 else 1.0)
                before = weight.detach().clone()
                optimiser.step()
            moved.append((weight - before).abs().max().item())
        return moved[0], moved[1]

    stable, plain = run(1.0)
    assert stable == pytest.approx(plain, rel=1e-5)
    stable, plain = run(1000.0)
    assert stable < plain / 3


def test_nan_guard_stops_after_the_limit_in_a_row():
    guard = NanGuard(limit=3)
    assert guard.check(1.0, torch.tensor(2.0))
    assert not guard.check(float("nan"))
    assert not guard.check(1.0, torch.tensor(float("inf")))
    assert guard.check(1.0)
    assert (guard.in_a_row, guard.total) == (0, 2)
    guard.check(float("nan"))
    guard.check(float("nan"))
    with pytest.raises(UserError, match="3 steps in a row") as stopped:
        guard.check(float("nan"))
    assert "learning_rate" in stopped.value.hint


@pytest.mark.parametrize("fused", [True, None])
def test_adamw_is_torchs_to_the_last_bit(fused):
    ends, states = [], []
    for make, heir in ((AdamW, torch.optim.AdamW), (torch.optim.AdamW, AdamW)):
        model = _model()
        groups = decay_groups(model, 0.1)
        optimiser = make(groups, lr=0.01, betas=(0.9, 0.98), fused=fused)
        for i in range(6):
            if i == 3:  # the state of one is the other's
                state = copy.deepcopy(optimiser.state_dict())
                optimiser = heir(decay_groups(model, 0.1), lr=0.5, fused=fused)
                optimiser.load_state_dict(state)
            _backward(model, 1.0, seed=i)
            optimiser.step()
            optimiser.zero_grad()
            assert all(p.grad is None for p in model.parameters())
        ends.append(list(model.parameters()))
        states.append(optimiser.state_dict())
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert states[0]["param_groups"] == states[1]["param_groups"]


def test_training_does_not_load_the_compiler():
    """It takes torch 2 s, at the first step of every command that trains."""
    code = (
        "import sys, numpy as np\n"
        "from unmask.modalities.table.fitting.cell_table import CellTable\n"
        "rng = np.random.default_rng(0)\n"
        "CellTable.fit(list(rng.normal(size=(3, 60))), [0, 0, 0], steps=3)\n"
        "import torch\n"
        "from unmask.training.optimiser import build_optimiser, step\n"
        "from unmask.training.settings import TrainSettings\n"
        "for kind in ('adamw', 'stable_adamw'):\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    optimiser = build_optimiser(model, TrainSettings(steps=1, optimiser=kind))\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    step(optimiser, model.parameters(), clip=1.0)\n"
        "    optimiser.zero_grad()\n"
        "    optimiser.load_state_dict(optimiser.state_dict())\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
