"""How good frozen features are: k nearest neighbours, and a linear probe behind a batch norm without weights."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def knn_predict(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    *,
    k: int = 20,
    temperature: float = 0.07,
    chunk: int = 1024,
) -> np.ndarray:
    """Classes by the k nearest training vectors (cosine), each voting exp(cosine / temperature) (Wu et al. 2018)."""
    known = F.normalize(torch.from_numpy(np.ascontiguousarray(train)).float(), dim=-1)
    queries = F.normalize(torch.from_numpy(np.ascontiguousarray(test)).float(), dim=-1)
    classes = torch.from_numpy(labels)
    count = int(labels.max()) + 1
    out = []
    for part in queries.split(chunk):
        near, which = (part @ known.t()).topk(min(k, len(known)), -1)
        votes = torch.zeros(len(part), count).scatter_add_(1, classes[which], ((near - 1) / temperature).exp())
        out.append(votes.argmax(-1))
    return torch.cat(out).numpy() if out else np.zeros(0, np.int64)


def fit_linear(
    features: np.ndarray, labels: np.ndarray, *, penalty: float, steps: int = 100
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multinomial logistic regression on standardised features, to its optimum by L-BFGS.

    Standardising by the training features is what a batch norm without weights does at rest; the optimum needs no rate,
    no schedule and no seed.

    Args:
        penalty: L2 on the weights, on the mean loss.

    Returns:
        (mean, deviation, weight, bias).
    """
    x = torch.from_numpy(np.ascontiguousarray(features)).float()
    y = torch.from_numpy(labels)
    mean, deviation = x.mean(0), (x.std(0) if len(x) > 1 else torch.ones(x.shape[1])).clamp_min(1e-6)
    x = (x - mean) / deviation
    classes = int(labels.max()) + 1
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, history_size=10, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y) + penalty * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)
    return mean, deviation, weight.detach(), bias.detach()


def linear_logits(fitted: tuple[Tensor, Tensor, Tensor, Tensor], features: np.ndarray) -> Tensor:
    """(rows, classes) logits of a fitted linear layer."""
    mean, deviation, weight, bias = fitted
    x = (torch.from_numpy(np.ascontiguousarray(features)).float() - mean) / deviation
    return F.linear(x, weight, bias)


def linear_predict(fitted: tuple[Tensor, Tensor, Tensor, Tensor], features: np.ndarray) -> np.ndarray:
    """Classes by a fitted linear layer."""
    return linear_logits(fitted, features).argmax(-1).numpy()


PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)


def probe_predict(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, *, seed: int = 0, penalty: float | None = None
) -> np.ndarray:
    """Classes by a linear probe; where no penalty is given, it is chosen on a tenth of the training vectors."""
    if penalty is None:
        order = np.random.default_rng(seed).permutation(len(train))[:20_000]
        held = max(len(order) // 10, 1)
        inner, outer = order[held:], order[:held]
        right = [
            (linear_predict(fit_linear(train[inner], labels[inner], penalty=p), train[outer]) == labels[outer]).mean()
            for p in PENALTIES
        ]
        penalty = PENALTIES[int(np.argmax(right))]
    return linear_predict(fit_linear(train, labels, penalty=penalty, steps=200), test)
