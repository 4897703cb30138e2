"""Law 7. The loss is a mean over hidden slots: k micro-batches or processes equal one big batch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny import WIDTH, Setup, Text, ratio_corruption
from unmask.core import prediction
from unmask.core.batch import Example, PackedBatch, pack
from unmask.core.corruption import ALL_MASK, Corruption, Uniform, hide
from unmask.core.density import ByBound, LogitNormalDensity, UniformDensity, by_ratio
from unmask.core.detection import ReplacedSlotDetection
from unmask.core.model import codec_of
from unmask.core.prediction import Categorical
from unmask.core.pretrain import StepContext, StepReport, pretrain
from unmask.encoder.config import MLP, EncoderConfig
from unmask.encoder.transformer import Encoder
from unmask.kernels import linear_cross_entropy

CORRUPTION = ratio_corruption(0.35)
WEIGHTED = Corruption(select=Uniform(ratio=UniformDensity()), replace=ALL_MASK, weigh=by_ratio)
BELL = LogitNormalDensity()
ROUNDING = 1e-6 / BELL.even
"""Of gradients whose weights go up to that."""
BOUND = Corruption(select=Uniform(ratio=BELL), replace=ALL_MASK, weigh=ByBound(density=BELL))


def one_step(
    setup: Setup, batches: list[PackedBatch], corruption: Corruption = CORRUPTION, **machine
) -> tuple[list[Tensor], StepReport]:
    """Gradients and report of one step over `batches`."""
    model = copy.deepcopy(setup.model)
    steps = iter([(0, batches)])
    (report,) = pretrain(
        model,
        steps,
        corruption,
        StepContext(update=lambda progress: (0.0, True), **machine),
        seed=setup.seed,
        progress=lambda step: 0.0,
    )
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()], report


def packs(setup: Setup) -> tuple[PackedBatch, list[PackedBatch]]:
    """The same examples as one batch, and as three with very different numbers of hidden slots."""
    examples = setup.examples(40, 8, 31, 20, 9, 5, 38)
    parts = [examples[:1], examples[1:3], examples[3:]]
    small = [pack(part, slots=n) for part, n in zip(parts, (48, 40, 64), strict=True)]
    return pack(examples, slots=64), small


def close(a: list[Tensor], b: list[Tensor], atol: float = 1e-6) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("corruption", [CORRUPTION, WEIGHTED, BOUND], ids=["equal", "weighted", "bound"])
def test_micro_batches_equal_one_big_batch(setup: Setup, corruption: Corruption):
    big, small = packs(setup)
    counts = [len(corruption.draw(b, seed=setup.seed)) for b in small]
    assert max(counts) > 1.5 * min(counts)
    expected, whole = one_step(setup, [big], corruption)
    found, split = one_step(setup, small, corruption)
    assert any(g.abs().max() > 1e-3 for g in expected)
    close(found, expected, ROUNDING if corruption is BOUND else 1e-6)
    assert split.hidden == whole.hidden == sum(counts)
    assert split.slots == whole.slots
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    assert split.accuracy == pytest.approx(whole.accuracy)


class GivenFills(ReplacedSlotDetection):
    """Fills that do not hang on how a step is cut: what is drawn for a slot is drawn by its value."""

    def forward(self, batch, hidden, wanted=None):
        prediction = self.generator(batch, hidden)
        target = self.codec.targets(batch.values, hidden.flat)
        prediction.sample = lambda **_: torch.where(target % 3 == 0, target, (target + 1) % 10 + 5)
        self.generator.forward, kept = lambda *_: prediction, self.generator.forward
        try:
            return super().forward(batch, hidden, wanted)
        finally:
            self.generator.forward = kept


@pytest.mark.parametrize("corruption", [CORRUPTION, BOUND], ids=["equal", "bound"])
def test_micro_batches_of_detection_equal_one_big_batch(seed: int, corruption: Corruption):
    setup = Setup(Text(), "in_place", "bert", seed)
    torch.manual_seed(seed)
    encoder = Encoder(EncoderConfig(width=WIDTH, layers=1, heads=2, feedforward=MLP(inner=32)))
    setup.model = GivenFills(setup.model, encoder)  # type: ignore[assignment]
    big, small = packs(setup)
    expected, whole = one_step(setup, [big], corruption)
    found, split = one_step(setup, small, corruption)
    assert any(g.abs().max() > 1e-3 for g in expected)
    close(found, expected, ROUNDING if corruption is BOUND else 1e-6)
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)


@pytest.mark.parametrize("examples", [1, 4, 16])
def test_the_bound_is_expected_whatever_a_step_holds(examples: int):
    """Weighted counts over the step's divisor, averaged over many draws, are those of the bound: each k of n alike."""
    setup = Setup(Text(), "in_place", "bert", 0)
    batch = pack(setup.examples(*(12 for _ in range(examples))), slots=12 * examples)
    by_hidden, draws = np.zeros(13), 4000 // examples
    for seed in range(draws):
        gone = BOUND.draw(batch, seed=seed)
        assert gone.weight is not None
        owner = batch.index.flatten()[gone.flat].numpy()
        counts = np.bincount(owner, minlength=examples)
        np.add.at(by_hidden, counts[owner], gone.weight.numpy() / gone.total_weight / draws)
    n = int((batch.maskable & (batch.index == 0)).sum())
    np.testing.assert_allclose(by_hidden[1 : n + 1], 1 / n, atol=0.025)


def test_a_micro_batch_with_nothing_hidden_changes_nothing(setup: Setup):
    big, _ = packs(setup)
    e = setup.modality.example(1, 6, setup.seed)
    nothing = pack([Example(values=e.values, identity=1, observed=e.observed, special=np.ones(6, bool))], slots=8)
    expected, _ = one_step(setup, [big])
    found, report = one_step(setup, [big, nothing])
    close(found, expected)
    assert report.loss == report.loss


def test_the_loss_is_the_weighted_mean_of_the_slots(setup: Setup):
    """A slot at a time, by hand."""
    big, _ = packs(setup)
    _, report = one_step(setup, [big], WEIGHTED)
    hidden = WEIGHTED.draw(big, seed=setup.seed)
    prediction, true = setup.model(big, hidden), codec_of(setup.model).targets(big.values, hidden.flat)
    alone = []
    for i in range(len(hidden)):
        one = torch.zeros(len(hidden))
        one[i] = 1
        with torch.no_grad():
            alone.append(prediction.loss(true, one).item())
    weight = hidden.weight.numpy()
    assert weight.max() > 2 * weight.min()
    assert report.loss == pytest.approx(float((np.array(alone) * weight).sum() / weight.sum()), rel=1e-4)
    assert report.weight == pytest.approx(float(big.maskable.sum()), rel=1e-6)


@pytest.mark.parametrize("corruption", [CORRUPTION, WEIGHTED], ids=["equal", "weighted"])
def test_processes_equal_one_big_batch(setup: Setup, corruption: Corruption):
    """Engines average gradients over processes; the loss makes up for it."""
    big, small = packs(setup)
    expected, whole = one_step(setup, [big], corruption)
    hidden, slots, weight = whole.hidden, whole.slots, whole.weight

    def total(x: Tensor) -> Tensor:
        return torch.tensor([hidden, slots, weight], dtype=torch.float64) if x.shape == (3,) else x

    parts = [one_step(setup, [b], corruption, processes=len(small), total=total) for b in small]
    close([sum(g) / len(small) for g in zip(*(grads for grads, _ in parts), strict=True)], expected)
    assert sum(report.loss for _, report in parts) == pytest.approx(whole.loss, rel=1e-5)


def linear_case(seed: int, n: int = 37):
    g = torch.Generator().manual_seed(seed)
    h, w = torch.randn(n, 16, generator=g), torch.randn(50, 16, generator=g)
    return h, w, torch.randn(50, generator=g), torch.randint(50, (n,), generator=g)


def gradients(loss: Tensor, *of: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, of))


@pytest.mark.parametrize("chunk", [1024, 37, 8, 1])
@pytest.mark.parametrize("biased", [True, False])
def test_the_fused_cross_entropy_equals_autograd(monkeypatch, seed: int, chunk: int, biased: bool):
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", chunk)
    h, w, b, y = linear_case(seed)
    leaves = [t.requires_grad_() for t in ((h, w, b) if biased else (h, w))]
    bias = b if biased else None
    expected = F.cross_entropy(F.linear(h, w, bias), y, reduction="sum")
    found = Categorical(h, w, bias)
    loss = found.loss(y)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert found.correct(y) == (F.linear(h, w, bias).argmax(-1) == y).sum()
    for a, e in zip(gradients(loss / 7, *leaves), gradients(expected / 7, *leaves), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1024, 8])
@pytest.mark.parametrize("half", [False, True])
def test_the_fused_cross_entropy_weighs_its_slots(monkeypatch, seed: int, chunk: int, half: bool):
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", chunk)
    h, w, b, y = linear_case(seed)
    counts = torch.linspace(0.2, 5, len(y))
    leaves = [t.requires_grad_() for t in (h.bfloat16() if half else h, w, b)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    expected = (F.cross_entropy(F.linear(*exact), y, reduction="none") * counts).sum()
    more = torch.cat([leaves[0], torch.randn(3, h.shape[1], dtype=leaves[0].dtype)])  # only rounds the shape
    loss = Categorical(more, *leaves[1:], count=len(y)).loss(y, counts)
    assert float(loss) == pytest.approx(float(expected), rel=0.02 if half else 1e-5)
    for a, e in zip(gradients(loss / 7, *leaves), gradients(expected / 7, *exact), strict=True):
        far = 0.03 if half else 1e-5
        torch.testing.assert_close(a.double(), e, rtol=0, atol=far * float(e.abs().max()))


@pytest.mark.parametrize("chunk", [1024, 8])
def test_rows_that_only_round_the_shape_count_for_nothing(monkeypatch, seed: int, chunk: int):
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", chunk)
    h, w, b, y = linear_case(seed)
    leaves = [t.requires_grad_() for t in (h, w, b)]
    rounded = torch.cat([h, torch.randn(27, h.shape[1])])
    found, plain = Categorical(rounded, w, b, count=len(h)), Categorical(h, w, b)
    loss, expected = found.loss(y), plain.loss(y)
    torch.testing.assert_close(loss, expected)
    assert found.correct(y) == plain.correct(y)
    assert len(found) == len(h)
    for a, e in zip(gradients(loss, *leaves), gradients(expected, *leaves), strict=True):
        torch.testing.assert_close(a, e)


def test_a_training_step_gives_the_head_rounded_shapes(monkeypatch, seed: int):
    """One shape per 64 hidden slots: oneDNN keeps memory for every shape it has seen."""
    seen = set()
    scored = prediction.linear_cross_entropy
    monkeypatch.setattr(prediction, "linear_cross_entropy", lambda h, *a: seen.add(len(h)) or scored(h, *a))
    model = Setup(Text(), "in_place", "bert", seed).model.train()
    batch = pack([Text().example(i, 12) for i in range(12)], slots=24)
    flat = batch.maskable.flatten().nonzero().flatten()
    for n in (1, 5, 40, 63, 64, 65, 80):
        gone = hide(flat[:n])
        model(batch, gone).loss(model.codec.targets(batch.values, gone.flat)).backward()
    assert seen == {64, 128}


@pytest.mark.parametrize("chunk", [1024, 8])
def test_two_losses_before_one_backward(monkeypatch, seed: int, chunk: int):
    """The buffers kept between steps belong to one loss at a time."""
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", chunk)
    h, w, b, y = linear_case(seed)
    leaves = [t.requires_grad_() for t in (h, w, b)]
    first, second = (Categorical(part, w, b).loss(t) for part, t in ((h[:20], y[:20]), (h[20:], y[20:])))
    found = gradients(first + 2 * second, *leaves)
    one, two = (F.cross_entropy(F.linear(h[s], w, b), y[s], reduction="sum") for s in (slice(20), slice(20, None)))
    for a, e in zip(found, gradients(one + 2 * two, *leaves), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1024, 8])
def test_two_losses_in_bf16_before_one_backward(monkeypatch, seed: int, chunk: int):
    """Three digits are left of the gradients; those of one loss count twice."""
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", chunk)
    h, w, b, y = linear_case(seed)
    leaves = [t.requires_grad_() for t in (h.bfloat16(), w, b)]
    first, second = (Categorical(leaves[0][s], w, b).loss(y[s]) for s in (slice(20), slice(20, None)))
    exact = [t.detach().double().requires_grad_() for t in leaves]
    one, two = (
        F.cross_entropy(F.linear(exact[0][s], *exact[1:]), y[s], reduction="sum") for s in (slice(20), slice(20, None))
    )
    for a, e in zip(gradients(first + 2 * second, *leaves), gradients(one + 2 * two, *exact), strict=True):
        torch.testing.assert_close(a.double(), e, rtol=0, atol=0.03 * float(e.abs().max()))


def test_a_second_backward_is_refused_or_right(seed: int):
    h, w, b, y = linear_case(seed)
    leaves = [t.requires_grad_() for t in (h, w, b)]
    loss = Categorical(h, w, b).loss(y) / 3
    first = [g.clone() for g in torch.autograd.grad(loss, leaves, retain_graph=True)]
    try:
        second = torch.autograd.grad(loss, leaves)
    except RuntimeError as error:
        assert "second time" in str(error)  # noqa: PT017
    else:
        close(list(second), list(first))
