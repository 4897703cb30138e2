"""Who a new patient is, and what their record holds as a whole: facts, age, start, how long, how often each code comes,
and around which value. Each is drawn given those before it, by a chain of regularised logistic regressions, so that
shares and co-occurrence of codes are those of the records, whatever happens afterwards from one time stamp to the next.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from unmask.modalities.events.records.meds import HOUR
from unmask.modalities.events.synthesis.sequences import LEAST, Sequences

BINS = 16
FEW_BINS = 10
"""Of how often a code comes, and of its mean value."""
FINE = 8
"""Quantiles of a level, by which values are drawn within it."""
STEPS, BATCH = 400, 1024
DRAWN = 4000
"""Plans by which biases are set."""
SPREAD = 4.0
"""Deviation of the log odds before anything is seen: the prior of the logistic regressions."""


class Bins:
    """Levels of a number: values that more than one in `bins` has, and 0 of `LEAST` or more, stand alone, others lie
    between quantiles, of which the outermost are the `LEAST`-th smallest and largest; the last level is none (NaN).
    Within a level values are drawn by its own quantiles, with `LEAST` values or more between two of them."""

    def __init__(self, values: np.ndarray, bins: int) -> None:
        known = values[np.isfinite(values)]
        found, count = np.unique(known, return_counts=True)
        self.alone = found[count > np.where(found == 0, LEAST - 1, max(len(known) / bins, LEAST - 1))]
        others = np.sort(known[~np.isin(known, self.alone)])
        rest = others[LEAST - 1 : len(others) - LEAST + 1] if len(others) >= 2 * LEAST else others[:0]
        shares = np.linspace(0, 1, min(bins, max(1, len(rest) // LEAST)) + 1)
        self.edges = np.unique(np.quantile(rest, shares, method="higher")) if len(rest) else np.zeros(0)
        if len(self.edges) < 2 and len(others) >= LEAST:  # too few, or too alike, to lie between two quantiles
            self.alone, self.edges = np.union1d(self.alone, others[len(others) // 2]), np.zeros(0)
        if not len(self.alone) and len(self.edges) < 2:
            self.alone = np.unique(np.median(known)) if len(known) else np.zeros(0)
        parts = np.split(rest, np.searchsorted(rest, self.edges[1:-1])) if len(self.edges) > 1 else []
        self.inside = [
            np.quantile(part, np.linspace(0, 1, max(1, min(FINE, len(part) // LEAST)) + 1)) for part in parts
        ]

    @property
    def levels(self) -> int:
        return len(self.alone) + len(self.inside) + 1

    @property
    def least(self) -> np.ndarray:
        """(levels,) the smallest value of each; infinite of the last."""
        return np.concatenate([self.alone, [part[0] for part in self.inside], [np.inf]])

    def level(self, values: np.ndarray) -> np.ndarray:
        """Of each value; a rare one, that stands between no edges, has the nearest."""
        out = np.full(len(values), self.levels - 1)
        known = np.isfinite(values)
        x = values[known]
        near = np.abs(x[:, None] - self.alone[None]).argmin(1) if len(self.alone) else np.zeros(len(x), np.int64)
        if len(self.edges) > 1:
            inside = np.clip(np.searchsorted(self.edges, x, side="right") - 1, 0, len(self.edges) - 2)
            exact = self.alone[near] == x if len(self.alone) else np.zeros(len(x), bool)
            near = np.where(exact, near, len(self.alone) + inside)
        out[known] = near
        return out

    def draw(self, level: np.ndarray, rng: np.random.Generator, most: np.ndarray | None = None) -> np.ndarray:
        """A value of each level, up to `most` where the level has such values; NaN of the last."""
        out, share = np.full(len(level), np.nan), rng.random(len(level))
        alone = level < len(self.alone)
        out[alone] = self.alone[level[alone]]
        for i, part in enumerate(self.inside, len(self.alone)):
            here, shares = level == i, np.linspace(0, 1, len(part))
            up_to = 1.0 if most is None else np.interp(most[here], part, shares)
            out[here] = np.interp(up_to * share[here], shares, part)
        return out


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Of some patients; what `course` fills in.

    Attributes:
        facts, fact_score: (patients, static) facts without a time, and the scores of their values.
        age, start: (patients,) years at the first time stamp, NaN where unknown; when it is, in microseconds.
        visits, span: (patients,) time stamps, and microseconds from the first to the last.
        count, mean: (patients, timed) how often each code comes, and the mean score of its values.
    """

    facts: np.ndarray
    fact_score: np.ndarray
    age: np.ndarray
    start: np.ndarray
    visits: np.ndarray
    span: np.ndarray
    count: np.ndarray
    mean: np.ndarray

    def take(self, rows: np.ndarray) -> Plan:
        """Of some of the patients."""
        return Plan(**{name: values[rows] for name, values in vars(self).items()})

    def features(self) -> np.ndarray:
        """(patients, features) float32: what a network reads of it."""
        scores = (np.nan_to_num(self.fact_score), np.nan_to_num(self.mean) / 2)
        parts = (self.facts, scores[0], np.log1p(self.count), scores[1], np.nan_to_num(self.age)[:, None] / 50)
        more = np.stack([np.log1p(self.visits), np.log1p(self.span / HOUR)], 1) / 5
        return np.concatenate([*parts, more], 1).astype(np.float32)


def plan_of(data: Sequences) -> Plan:
    """That of patients who are there."""
    known = np.isfinite(data.score)
    parts = (data.present, np.where(known, data.score, 0), known)
    count, total, valued = (np.add.reduceat(part, data.first[:-1], axis=0, dtype=np.float64) for part in parts)
    start, end = data.time[data.first[:-1]], data.time[data.first[1:] - 1]
    return Plan(
        facts=data.facts,
        fact_score=data.fact_score,
        age=data.age,
        start=start,
        visits=np.diff(data.first),
        span=end - start,
        count=count.astype(np.int64),
        mean=np.where(valued > 0, total / np.maximum(valued, 1), np.nan),
    )


class Planner:
    """Learns and draws plans. Facts whose codes differ behind the last // alone, and of which nobody has two, are
    levels of one question, so that nobody is drawn with two of them either."""

    def __init__(self, data: Sequences, seed: int) -> None:
        plan = plan_of(data)
        names = [data.vocabulary.codes[i] for i in data.static]
        groups: dict[str, list[int]] = {}
        for i, name in enumerate(names):
            groups.setdefault(name.rpartition("//")[0] or name, []).append(i)
        self.groups: list[list[int]] = []
        for members in groups.values():
            alone = data.facts[:, members].sum(1).max() <= 1
            self.groups += [members] if alone else [[i] for i in members]
        self.origin, self.shape = int(plan.start.min()), plan.count.shape
        # name, place in its array, values, levels; the number of time stamps comes before what they hold.
        self.numbers: list[tuple[str, int, Bins]] = []
        columns: list[np.ndarray] = []

        def add(name: str, place: int, values: np.ndarray, bins: int) -> None:
            if np.isfinite(values).any():
                self.numbers.append((name, place, Bins(values, bins)))
                columns.append(values.astype(np.float64))

        add("age", 0, plan.age, BINS)
        add("start", 0, (plan.start - self.origin).astype(np.float64), BINS)
        for i in range(len(names)):
            add("fact_score", i, plan.fact_score[:, i], BINS)
        add("span", 0, plan.span.astype(np.float64), BINS)
        add("visits", 0, plan.visits.astype(np.float64), BINS)
        for i in np.argsort(data.death, kind="stable").tolist():  # whether somebody dies is drawn given all else
            add("count", i, plan.count[:, i].astype(np.float64), FEW_BINS)
            add("mean", i, plan.mean[:, i], FEW_BINS)
        eased = [_eased(values, name) for values, (name, *_) in zip(columns, self.numbers, strict=True)]
        self.centre = np.array([np.nanmean(values) for values in eased])
        self.scale = np.array([max(np.nanstd(values), 1e-6) for values in eased])
        levels = [np.where(data.facts[:, g].any(1), data.facts[:, g].argmax(1), len(g)) for g in self.groups]
        inputs = [np.eye(len(g) + 1, dtype=np.float32)[x] for g, x in zip(self.groups, levels, strict=True)]
        sizes = [len(g) + 1 for g in self.groups]
        for i, (values, (_, _, bins)) in enumerate(zip(columns, self.numbers, strict=True)):
            levels.append(bins.level(values))
            inputs.append(self._input(i, values))
            sizes.append(bins.levels)
        self.outputs, self.inputs = _slices(sizes), _slices([part.shape[1] for part in inputs])
        self._fit(np.concatenate(inputs, 1), np.stack(levels, 1), seed)
        counts = [np.bincount(x, minlength=size) for x, size in zip(levels, sizes, strict=True)]
        self.draw(DRAWN, np.random.default_rng([seed, 15]), [count / len(data) for count in counts])

    def _input(self, i: int, values: np.ndarray) -> np.ndarray:
        """(patients, 2) a number as those behind it see it: whether it is there, and how large."""
        known = np.isfinite(values) & (values != 0)
        size = (_eased(values, self.numbers[i][0]) - self.centre[i]) / self.scale[i]
        return np.stack([known, np.clip(np.nan_to_num(size), -3, 3)], 1).astype(np.float32)

    def _fit(self, inputs: np.ndarray, levels: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng([seed, 12])
        before = np.zeros((inputs.shape[1], self.outputs[-1].stop), np.float32)
        bias = np.zeros(self.outputs[-1].stop, np.float32)
        for i, (seen, out) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            before[: seen.start, out] = 1
            count = np.bincount(levels[:, i], minlength=out.stop - out.start)
            bias[out] = np.where(count > 0, np.log(np.maximum(count, 0.5) / len(levels)), -30)
        x, target, mask = torch.from_numpy(inputs), torch.from_numpy(levels), torch.from_numpy(before)
        b, w = torch.from_numpy(bias).requires_grad_(), torch.zeros_like(mask, requires_grad=True)
        most = max(out.stop - out.start for out in self.outputs)
        place = torch.tensor([[min(out.start + k, out.stop - 1) for k in range(most)] for out in self.outputs])
        there = torch.tensor([[out.start + k < out.stop for k in range(most)] for out in self.outputs])
        penalty = 0.5 * x.shape[1] / (SPREAD**2 * len(x))
        optimiser = torch.optim.Adam([b, w], lr=0.02)
        for step in range(STEPS):
            optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / STEPS)
            chosen = torch.from_numpy(rng.permutation(len(x))[:BATCH])
            logits = b + x[chosen] @ w
            each = torch.where(there, logits[:, place], -torch.inf)  # (rows, questions, levels)
            loss = F.cross_entropy(each.transpose(1, 2), target[chosen]) * len(place) + penalty * w.square().sum()
            optimiser.zero_grad()
            loss.backward()
            if w.grad is not None:
                w.grad *= mask  # weights of what comes later stay 0
            optimiser.step()
        self.bias, self.weight = b.detach().numpy(), w.detach().numpy()

    def draw(self, count: int, rng: np.random.Generator, shares: list[np.ndarray] | None = None) -> Plan:
        """New ones. `shares`: of the levels of each question, to which biases are set, so that what is drawn has them:
        errors of the regressions do not add up along the chain."""
        seen = np.zeros((count, self.inputs[-1].stop), np.float32)
        static = sum(map(len, self.groups))
        out = {
            "facts": np.zeros((count, static), bool),
            "fact_score": np.full((count, static), np.nan, np.float32),
            **{name: np.full((count, 1), np.nan) for name in ("age", "start", "span", "visits")},
            **{name: np.full((count, self.shape[1]), np.nan) for name in ("count", "mean")},
        }
        for i, (given, part) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            logits = self.bias[part] + seen[:, : given.start] @ self.weight[: given.start, part]
            for share in [shares[i]] * 5 if shares else []:
                found = np.exp(logits - logits.max(1, keepdims=True))
                mean = (found / found.sum(1, keepdims=True)).mean(0)
                shift = np.log(np.maximum(share, 1e-6) / np.maximum(mean, 1e-6)).clip(-1, 1)
                self.bias[part] += shift
                logits += shift
            level = np.argmax(logits + rng.gumbel(size=logits.shape), 1)
            if i < len(self.groups):
                group = self.groups[i]
                some = level < len(group)
                out["facts"][np.flatnonzero(some), np.array(group)[level[some]]] = True
                seen[np.arange(count), given.start + level] = 1
                continue
            name, place, bins = self.numbers[i - len(self.groups)]
            values = bins.draw(level, rng)
            out[name][:, place] = values
            seen[:, given] = self._input(i - len(self.groups), values)
        whole = {
            name: np.rint(np.nan_to_num(out[name])).astype(np.int64) for name in ("start", "span", "visits", "count")
        }
        whole["start"] += self.origin
        whole["visits"] = np.maximum(whole["visits"], 1)
        one = ("age", "start", "span", "visits")
        return Plan(**{k: v[:, 0] if k in one else v for k, v in (out | whole).items()})


def _eased(values: np.ndarray, name: str) -> np.ndarray:
    """Counts and times on a scale on which they are less skewed."""
    return np.log1p(values / HOUR if name == "span" else values) if name in ("span", "visits", "count") else values


def _slices(sizes: list[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(ends)]
