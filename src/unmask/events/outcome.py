"""The outcome head: an average of small networks over pooled encoder states and code summaries.

Every member has a linear path and one hidden layer, trained side by side in one batched product; each stops on
patients of its own, so that all labelled patients serve both ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.events.recipes import OutcomeSettings


class Head(nn.Module):
    """Features -> probability: standardise (missing is 0 and flagged), then `members` networks, averaged.

    Args:
        features: of the input, before the flags.
        flags: how many features can be missing: each has a flag beside it.
    """

    def __init__(self, *, features: int, flags: int, members: int, hidden: int) -> None:
        super().__init__()
        self.sizes = {"features": features, "flags": flags, "members": members, "hidden": hidden}
        inputs = features + flags
        for name, length in (("centre", features), ("spread", features)):
            self.register_buffer(name, torch.ones(length))
        self.register_buffer("flagged", torch.zeros(flags, dtype=torch.int64))
        self.linear = nn.Parameter(torch.zeros(members, inputs, 1))
        self.first = nn.Parameter(torch.randn(members, inputs, hidden) * (1.0 / max(inputs, 1)) ** 0.5)
        self.first_bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.second = nn.Parameter(torch.randn(members, hidden, 1) * 0.3 * (1.0 / hidden) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(members, 1, 1))

    centre: Tensor
    spread: Tensor
    flagged: Tensor

    def shape(self) -> dict[str, int]:
        return dict(self.sizes)

    def fit_scale(self, x: np.ndarray) -> None:
        """Centre and spread of the training features; a constant one is left at 0."""
        seen = ~np.isnan(x)
        count = np.maximum(seen.sum(0), 1)
        mean = np.where(seen, x, 0).sum(0, dtype=np.float64) / count
        deviation = np.sqrt(np.where(seen, (x - mean) ** 2, 0).sum(0) / count)
        deviation = np.where(deviation > 1e-6, deviation, np.inf)
        self.centre.copy_(torch.from_numpy(mean).float())
        self.spread.copy_(torch.from_numpy(deviation).float())
        self.flagged.copy_(torch.from_numpy(flags_of(x)))

    def inputs(self, x: np.ndarray) -> Float[Tensor, "points inputs"]:
        raw = torch.from_numpy(np.asarray(x, np.float32))
        z = ((raw - self.centre) / self.spread).clamp(-5, 5).nan_to_num(0.0)
        return torch.cat([z, raw[:, self.flagged].isnan().float() - 0.5], 1)

    def logits(self, z: Tensor, dropout: float = 0.0) -> Float[Tensor, "members points"]:
        z = z.expand(len(self.linear), *z.shape)
        z = F.dropout(z, dropout, self.training)
        hidden = F.gelu(z @ self.first + self.first_bias)
        hidden = F.dropout(hidden, dropout, self.training)
        return (z @ self.linear + hidden @ self.second + self.bias)[..., 0]

    @torch.no_grad()
    def predict(self, x: np.ndarray) -> np.ndarray:
        """(points,) probability: the members' mean."""
        self.eval()
        return self.logits(self.inputs(x)).sigmoid().mean(0).double().numpy()


def flags_of(x: np.ndarray) -> np.ndarray:
    """Features missing for between 1 % and 99 % of the points: whether they are there says something."""
    share = np.isnan(x).mean(0)
    return np.flatnonzero((share > 0.01) & (share < 0.99))


def fit_head(x: np.ndarray, y: np.ndarray, groups: np.ndarray, settings: OutcomeSettings) -> Head:
    """Train the members; patients (`groups`), not rows, are what a member stops on."""
    generator = np.random.default_rng(settings.seed)
    torch.manual_seed(settings.seed)
    k = settings.members
    head = Head(features=x.shape[1], flags=len(flags_of(x)), members=k, hidden=settings.hidden)
    head.fit_scale(x)
    with torch.no_grad():
        base = min(max(float(y.mean()), 1e-3), 1 - 1e-3)
        head.bias.fill_(float(np.log(base / (1 - base))))
    z, target = head.inputs(x), torch.from_numpy(y.astype(np.float32))
    fold = _folds(y, groups, k, generator)
    stop = torch.stack([torch.from_numpy(np.isin(fold, [m % 5])) for m in range(k)])
    optimiser = torch.optim.AdamW(head.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    best = torch.full((k,), torch.inf)
    kept = {n: p.detach().clone() for n, p in head.named_parameters()}
    waited, size = torch.zeros(k), min(256, max(16, len(y) // 12))
    for _ in range(settings.epochs):
        head.train()
        order = torch.from_numpy(generator.permutation(len(y)))
        for part in order.split(size):
            loss = F.binary_cross_entropy_with_logits(
                head.logits(z[part], settings.dropout), target[part].expand(k, -1), reduction="none"
            )
            weight = (~stop[:, part]).float()
            (loss * weight).sum(1).div(weight.sum(1).clamp_min(1)).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
        head.eval()
        with torch.no_grad():
            loss = F.binary_cross_entropy_with_logits(head.logits(z), target.expand(k, -1), reduction="none")
            held = (loss * stop).sum(1) / stop.sum(1).clamp_min(1)
            better = held < best
            best = torch.where(better, held, best)
            waited = torch.where(better, 0.0, waited + 1)
            for name, p in head.named_parameters():
                kept[name][better] = p[better]
        if bool((waited >= settings.patience).all()):
            break
    head.load_state_dict({**head.state_dict(), **kept})
    return head.eval()


def _folds(y: np.ndarray, groups: np.ndarray, members: int, generator: np.random.Generator) -> np.ndarray:
    """Fold 0..4 of every row, by patient, positives spread evenly."""
    names, first = np.unique(groups, return_index=True)
    number = np.zeros(len(names), np.int64)
    for label in np.unique(y):
        mine = generator.permutation(np.flatnonzero(y[first] == label))
        number[mine] = np.arange(len(mine)) % 5
    return number[np.searchsorted(names, groups)]


def figures(y: np.ndarray, p: np.ndarray, *, draws: int = 500, seed: int = 0) -> dict[str, Any]:
    """AUROC, AUPRC, Brier score and calibration (expected error over 10 equal-count bins), with bootstrap intervals."""
    from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

    rules = {"auroc": roc_auc_score, "auprc": average_precision_score, "brier": brier_score_loss, "ece": calibration}
    if len(np.unique(y)) < 2:
        return {"n": len(y), "positives": int(y.sum())}
    rng = np.random.default_rng(seed)
    again = [i for i in (rng.integers(0, len(y), len(y)) for _ in range(draws)) if 0 < y[i].sum() < len(i)]
    out: dict[str, Any] = {"n": len(y), "positives": int(y.sum()), "intervals": {}}
    for name, rule in rules.items():
        out[name] = float(rule(y, p))
        low, high = np.quantile([rule(y[i], p[i]) for i in again], [0.025, 0.975])
        out["intervals"][name] = [float(low), float(high)]
    return out


def calibration(y: np.ndarray, p: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: mean distance of predicted and observed share over bins of equal count."""
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    return float(sum(len(i) * abs(p[i].mean() - y[i].mean()) for i in parts if len(i)) / len(y))


def baselines(x: np.ndarray, y: np.ndarray, test: np.ndarray, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Predictions for `test` of models fitted on the usual summaries (x, y): prevalence, logistic regression, boosting."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    told = ~np.isnan(x).all(0)  # a feature without a single value is refused by some versions of scikit-learn
    x, test = x[:, told], test[:, told]
    steps = SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()
    logistic = make_pipeline(*steps, LogisticRegression(C=0.01, max_iter=1000))
    boosting = HistGradientBoostingClassifier(
        learning_rate=0.05, max_iter=200, max_leaf_nodes=15, min_samples_leaf=20, l2_regularization=1.0,
        random_state=seed,
    )  # fmt: skip
    out = {"prevalence": np.full(len(test), float(y.mean()))}
    for name, model in (("logistic regression", logistic), ("gradient boosting", boosting)):
        out[name] = model.fit(x, y).predict_proba(test)[:, 1]
    return out
