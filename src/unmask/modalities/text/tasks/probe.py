"""Heads that start as linear probes: the best regularised linear model of the frozen encoder's states, put into the
head.

A random head on top of a trained encoder spends its first hundreds of steps on what a convex problem solves in seconds,
and bends the encoder while it does (Kumar et al. 2022, sec. 3). The layer in front of the last one, where a family has
one, is made to pass standardised states on, so that the last one is a linear model of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.embed import embed_batches, pool_states
from unmask.core.inference import first_slots, inference_mode, packed_batches
from unmask.core.model import MaskedModel
from unmask.families.heads import TaskHead
from unmask.kernels.fused_linear import activation
from unmask.kernels.on_host import on_host, to_device
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tasks import linear
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.held_out import kept_together
from unmask.modalities.text.tasks.network import TaskModel, add_mean_layer, can_add_mean_layer, through_mean_layer

MOST_WORDS, MOST_WINDOWS = 40_000, 160
"""Words, and windows of contexts, that a probe of each slot is fitted to."""
SHIFT = 1.5
"""Behind relu and gelu standardised states are moved up by this, so that most of them pass."""
HALF = 0.5
"""tanh is given standardised states times this."""


@dataclass(frozen=True)
class Probed:
    """How a head started: `pooling` 'first' or 'mean' (classify) or 'each' (tag, answer); `strength`: C, chosen by
    cross-validation within the training rows; `added`: a layer that averages was put on top; `rows`: examples, words or
    slots it was fitted to; `loss`: the mean of rows held out in that, to which the head is scaled."""

    pooling: str
    strength: float
    added: bool
    rows: int
    loss: float = float("nan")

    def to_dict(self) -> dict[str, Any]:
        """As plain data; of the loss None where none was worked out (answer)."""
        return dataclasses.asdict(self) | ({} if math.isfinite(self.loss) else {"loss": None})


def start_classifier(
    text: TextFolder,
    model: TaskModel,
    training: Prepared,
    target: Tensor,
    kind: linear.Kind,
    *,
    slots: int,
    weights: np.ndarray | None = None,
    seed: int = 0,
    chosen: Probed | None = None,
) -> Probed:
    """Fit a probe of pooled states and make the head one; pooling and C by cross-validation, unless they are `chosen`.
    The target: class numbers, (n, labels) of 0 and 1, or numbers, by `kind`."""
    head = head_of(model)
    first, mean = pooled(model, training, slots)
    if kind == "softmax":
        y = np.eye(last_layer(head).out_features, dtype=np.float32)[target.numpy()]
    else:
        y = target.numpy().reshape(len(target), -1).astype(np.float32)
    candidates = {"first": first}
    adds = head.head.pooling_key is None and head.pool == "first" and can_add_mean_layer(text)
    if head.head.pooling_key is not None:
        candidates["mean"] = mean
    elif adds:
        candidates["mean"] = through_mean_layer(first, mean, text.model.encoder.config.norm.epsilon)
    if chosen is not None:
        candidates = {chosen.pooling: candidates[chosen.pooling]}
    seen = {name: _in_front(head, x) for name, x in candidates.items()}
    names = list(seen)
    options: dict[str, Any] = {"seed": seed, "weights": weights, "groups": kept_together(training.items)}
    at, strength, loss = _best([seen[name][0] for name in names], y, kind, chosen, **options)
    pooling = names[at]
    features, layers = seen[pooling]

    def solved(x: np.ndarray) -> linear.Linear:
        found = linear.fit(x, y, kind, strength, weights=weights)
        return found if kind == "squared" else linear.tempered(found, x, y, kind, loss)

    _settle(head, features, layers, solved)
    if pooling == "mean" and adds:
        add_mean_layer(text)
    elif head.head.pooling_key is not None:
        head.pool = pooling
        text.hf_config = {**text.hf_config, head.head.pooling_key[0]: {"first": "cls"}.get(pooling, pooling)}
    return Probed(pooling, strength, pooling == "mean" and adds, len(y), loss)


def start_tagger(
    model: TaskModel, training: Prepared, labels: int, *, slots: int, seed: int = 0, chosen: Probed | None = None
) -> Probed:
    """The same for a tag per word: a multinomial regression on the state of each word's first token."""
    head, rng = head_of(model), np.random.default_rng([seed, 19])
    order, taken, total = rng.permutation(len(training.examples)), [], 0
    for number in order:
        taken.append(int(number))
        total += int(np.count_nonzero(training.examples[number].values["target"]))
        if total >= MOST_WORDS:
            break
    states, tags, owner = [], [], []
    group = _groups_of_windows(training)[np.sort(taken)]
    for x, batch, numbers in _passes(model, [training.examples[i] for i in sorted(taken)], slots):
        here = on_host(batch.values["target"]).flatten()
        where = here.nonzero().flatten()
        states.append(x.flatten(0, 1)[to_device(where, x.device)].float())
        tags.append(here[where] - 1)
        owner.append(group[numbers[on_host(batch.index).flatten()[where].numpy()]])
    features, layers = _in_front(head, torch.cat(states))
    y = np.eye(labels, dtype=np.float32)[torch.cat(tags).numpy()]
    options: dict[str, Any] = {"seed": seed, "groups": np.concatenate(owner), "strengths": (0.01, 0.1, 1, 10)}
    _, strength, loss = _best([features], y, "softmax", chosen, **options)
    _settle(
        head,
        features,
        layers,
        lambda x: linear.tempered(linear.fit(x, y, "softmax", strength, steps=100), x, y, "softmax", loss),
    )
    return Probed("each", strength, False, len(y), loss)


def _best(
    candidates: list[np.ndarray], y: np.ndarray, kind: linear.Kind, chosen: Probed | None, **options: Any
) -> tuple[int, float, float]:
    """Which features and which C, and the loss of held-out rows: those `chosen`, else by cross-validation."""
    if chosen is not None:
        return 0, chosen.strength, chosen.loss
    return linear.cross_validated([_standard(x)[0] for x in candidates], y, kind, **options)


def start_answerer(
    model: TaskModel, training: Prepared, *, slots: int, seed: int = 0, chosen: Probed | None = None
) -> Probed:
    """The same for start and end: a softmax over the slots of each window; C by one context in four held out."""
    head, rng = head_of(model), np.random.default_rng([seed, 20])
    taken = np.sort(rng.permutation(len(training.examples))[:MOST_WINDOWS])
    target = training.extra["target"].numpy()
    rows: dict[int, Tensor] = {}
    for x, batch, numbers in _passes(model, [training.examples[i] for i in taken], slots):
        flat, index = x.flatten(0, 1).float(), batch.index.flatten()
        for i, number in enumerate(numbers.tolist()):
            rows[number] = flat[index == i]
    parts = [rows[i] for i in range(len(taken))]
    size = np.array([len(p) for p in parts])
    features, layers = _in_front(head, torch.cat(parts))
    begins = np.cumsum(size) - size
    y = np.zeros((len(features), 2), np.float32)
    for column in (0, 1):
        y[begins + target[taken, column], column] = 1.0
    window = np.repeat(np.arange(len(taken)), size)
    strength = chosen.strength if chosen else 1.0
    group = np.unique(_groups_of_windows(training)[taken], return_inverse=True)[1].ravel()
    if chosen is None and len(taken) >= 8 and group.max() >= 3:
        x = _standard(features)[0]
        held = (rng.permutation(group.max() + 1) % 4 == 0)[group]
        outside = held[window]
        inner, outer = (np.cumsum(size[m]) - size[m] for m in (~held, held))
        found, best = None, np.inf
        for tried in (0.01, 0.1, 1.0):
            found = linear.fit(x[~outside], y[~outside], "pointer", tried, segments=inner, start=found, steps=60)
            loss = linear.pointer_loss(found, x[outside], y[outside], outer)
            if loss < best:
                best, strength = loss, tried
    _settle(head, features, layers, lambda x: linear.fit(x, y, "pointer", strength, segments=begins, steps=100))
    return Probed("each", strength, False, len(y))


def _groups_of_windows(training: Prepared) -> np.ndarray:
    """(windows,) the number of what each window is kept together with."""
    return kept_together(training.items)[[window.owner for window in training.extra["windows"]]]


def pooled(model: TaskModel, prepared: Prepared, slots: int) -> tuple[Tensor, Tensor]:
    """(first, mean) states of each example, each (n, width) fp32 on the CPU."""
    width = model.masked.encoder.config.width

    def both(masked: MaskedModel, batch: PackedBatch, count: int) -> Tensor:
        states = masked.states(batch)
        first = to_device(torch.from_numpy(first_slots(batch, count)), states.device)
        return torch.cat([states.flatten(0, 1)[first].float(), pool_states(states, batch, count, "mean", True)], 1)

    with model.context():
        batches = packed_batches(prepared.examples, slots)
        found = embed_batches(model.masked, batches, both, count=len(prepared.examples), width=2 * width)
    first, mean = torch.from_numpy(found).split(width, 1)
    return first, mean


def _passes(model: TaskModel, examples: Any, slots: int) -> Any:
    """(states, batch, numbers) of the frozen encoder, batch by batch."""
    with inference_mode(model.masked), model.context():
        for batch, numbers in packed_batches(examples, slots):
            batch = batch.to(model.device)
            yield model.masked.states(batch), batch, numbers


def head_of(model: TaskModel) -> TaskHead:
    """Its head, which it must have."""
    assert model.head is not None
    return model.head


def last_layer(head: TaskHead) -> nn.Linear:
    """The linear layer whose outputs are the head's."""
    found = head.layers[head.head.steps[-1][0].replace(".", "/")]
    assert isinstance(found, nn.Linear)
    return found


def _in_front(head: TaskHead, x: Tensor) -> tuple[np.ndarray, dict[str, tuple[Tensor, Tensor]]]:
    """(what the last layer is given, fp32; weights and biases of the layers in front), of states (n, width)."""
    x = x.detach().clone().float().cpu()
    layers: dict[str, tuple[Tensor, Tensor]] = {}
    with torch.no_grad():
        for (name, _), act in zip(head.head.steps[:-1], head.activations[:-1], strict=True):
            if name.startswith("="):
                codec = head._codec[0]
                device = next(codec.parameters()).device
                x = codec.norm(codec.activation(codec.transform(x.to(device)))).float().cpu()
                continue
            mean, deviation = x.mean(0), x.std(0, correction=0).clamp_min(1e-4)
            scale = HALF if act == "tanh" else 1.0
            weight = torch.diag(scale / deviation)
            bias = -mean / deviation * scale + (0.0 if act in ("tanh", None) else SHIFT)
            layers[name] = weight, bias
            x = x @ weight + bias
            if act is not None:
                x = activation(act)(x)
    return x.numpy(), layers


def _standard(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(standardised features, their means, their deviations)."""
    mean, deviation = x.mean(0), np.maximum(x.std(0), 1e-4)
    return ((x - mean) / deviation).astype(np.float32), mean, deviation


def _settle(
    head: TaskHead,
    features: np.ndarray,
    layers: dict[str, tuple[Tensor, Tensor]],
    fit: Callable[[np.ndarray], linear.Linear],
) -> None:
    """Write the layers in front and the fitted last one into the head."""
    x, mean, deviation = _standard(features)
    found = fit(x)
    weight = found.weight / deviation[:, None]
    with torch.no_grad():
        for name, (w, b) in layers.items():
            layer: Any = head.layers[name.replace(".", "/")]
            layer.weight.copy_(w.t())
            layer.bias.copy_(b)
        last = last_layer(head)
        last.weight.copy_(torch.from_numpy(weight.T.copy()))
        last.bias.copy_(torch.from_numpy(found.bias - mean @ weight))
