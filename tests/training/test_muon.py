"""Muon: torch's for the matrices of transformer layers, AdamW for all else, one state that resumes."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Gated, Learned
from unmask.errors import UserError
from unmask.kernels import fused_linear
from unmask.training import optimiser as module
from unmask.training.optimiser import Muon, build_optimiser, orthogonal, step
from unmask.training.settings import TrainSettings

MUON = TrainSettings(optimiser="muon", learning_rate=0.01, weight_decay=0.1)


class Network(nn.Module):
    """Embeddings, two layers, a head: what Muon takes and what it leaves."""

    def __init__(self, gated: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        inner = Gated(inner=64) if gated else MLP(inner=64)
        config = EncoderConfig(width=32, layers=2, heads=2, positions=Learned(slots=16), feedforward=inner)
        self.word, self.encoder, self.head = nn.Embedding(20, 32), make_encoder(config), nn.Linear(32, 7)

    def forward(self, ids: Tensor) -> Tensor:
        segment, position = torch.ones_like(ids), torch.arange(ids.shape[1]).expand_as(ids)
        return self.head(self.encoder(self.word(ids), segment=segment, position=position))


def backward(network: Network, seed: int, scale: float = 1.0) -> None:
    ids = torch.randint(20, (4, 16), generator=torch.Generator().manual_seed(seed))
    (nn.functional.cross_entropy(network(ids).flatten(0, 1), ids.flatten() % 7) * scale).backward()


@pytest.mark.parametrize("gated", [False, True])
def test_it_is_torchs_muon_beside_adamw(monkeypatch, gated):
    """Queries, keys and values are matrices apart, and so are a gate and its values. Torch's multiplies in bf16 on
    every processor: ours too, for the comparison. Gradients are random: of those of so small a network many directions
    are rounding alone, which orthogonal updates make as large as any."""
    monkeypatch.setattr(module, "bf16_pays", lambda device: True)
    ours, theirs = Network(gated), Network(gated)
    named = {name: p for name, p in theirs.encoder.layers.named_parameters() if p.ndim == 2}
    rest = [p for p in theirs.parameters() if not any(p is q for q in named.values())]
    stacked = {".qkv.weight": 3, ".up.weight": 2 if gated else 1}
    parts = {n: p.chunk(next((k for end, k in stacked.items() if n.endswith(end)), 1)) for n, p in named.items()}
    apart = {name: [nn.Parameter(part.detach().clone()) for part in of] for name, of in parts.items()}
    decayed = [{"params": [p for p in rest if p.ndim > 1]}]
    decayed += [{"params": [p for p in rest if p.ndim == 1], "weight_decay": 0.0}]
    matrices = [part for of in apart.values() for part in of]
    muon = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(decayed, lr=0.01, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    optimiser = build_optimiser(ours, MUON)
    assert isinstance(optimiser, Muon)
    for i in range(4):
        for network in (ours, theirs):
            generator = torch.Generator().manual_seed(i)
            for parameter in network.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        for name, of in apart.items():
            for part, gradient in zip(of, named[name].grad.chunk(len(of)), strict=True):
                part.grad = gradient.clone()
        step(optimiser, ours.parameters(), clip=None)
        muon.step()
        adamw.step()
    with torch.no_grad():
        for name, of in apart.items():
            named[name].copy_(torch.cat(of))
    start = dict(Network(gated).named_parameters())
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3)
        assert not torch.equal(a, start[name]), name


def test_matrices_take_a_multiple_of_the_rate():
    network = Network()
    optimiser = build_optimiser(network, dataclasses.replace(MUON, matrix_rate=4.0))
    rates = {bool(g.get("orthogonal")): g["initial_lr"] for g in optimiser.param_groups}
    assert rates == {False: 0.01, True: 0.04}
    backward(network, 0)
    step(optimiser, network.parameters(), clip=None, rate=0.5)
    assert {g["lr"] / g["initial_lr"] for g in optimiser.param_groups} == {0.5}


@pytest.mark.parametrize("half", [False, True])
def test_updates_are_orthogonal(monkeypatch, seed, half):
    monkeypatch.setattr(module, "bf16_pays", lambda device: half and fused_linear.multiplies_bf16())
    torch.manual_seed(seed)
    for shape in ((24, 24), (16, 64), (64, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)).float())
        assert 0.5 < values.min() <= values.max() < 1.4


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped():
    network = Network()
    optimiser = build_optimiser(network, MUON)
    for i in range(2):
        network.zero_grad()
        backward(network, i)
        step(optimiser, network.parameters(), clip=1.0)
    again = Network()
    again.load_state_dict(network.state_dict())
    resumed = build_optimiser(again, MUON)
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for which, of in ((network, optimiser), (again, resumed)):
        which.zero_grad()
        backward(which, 9)
        step(of, which.parameters(), clip=1.0)
    for a, b in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_leaves_everything_as_it_was(bad):
    network = Network()
    optimiser = build_optimiser(network, MUON)
    backward(network, 0)
    step(optimiser, network.parameters(), clip=1.0)
    before = copy.deepcopy((network.state_dict(), optimiser.state_dict()["state"]))
    network.zero_grad()
    backward(network, 1, bad)
    step(optimiser, network.parameters(), clip=1.0)
    torch.testing.assert_close((network.state_dict(), optimiser.state_dict()["state"]), before, rtol=0, atol=0)


def test_without_a_matrix_of_a_layer_it_is_refused():
    with pytest.raises(UserError, match="no matrix of a transformer layer"):
        build_optimiser(nn.Linear(3, 3), MUON)
    network = Network()
    network.encoder.requires_grad_(False)
    with pytest.raises(UserError, match="no matrix of a transformer layer"):
        build_optimiser(network, MUON)
