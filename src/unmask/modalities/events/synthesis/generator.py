"""New records, one time stamp after the other: how long until the next one, which codes stand there, with which values.

Each is drawn given the plan of the patient (`plan`) and a summary of all that was drawn before (`State`): codes and
values of the last time stamp, how often and how long ago each code came, what the plan still holds. Codes of one time
stamp are drawn in a fixed order, each given those before it, by a network whose weights towards earlier codes are
masked (MADE: Germain et al. 2015); so one pass trains all of them. Values are normal scores: a mean and a spread from
the network, and around it the errors that were seen in training, of all patients together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.modalities.events.records.histories import YEAR
from unmask.modalities.events.records.meds import HOUR
from unmask.modalities.events.records.vocabulary import FIRST, LEVELS
from unmask.modalities.events.synthesis.plan import Bins, Plan, Planner, plan_of
from unmask.modalities.events.synthesis.sequences import FEWEST_PATIENTS, LEAST, Sequences
from unmask.progress import counted

WIDTH = 128
BATCH = 512
STEPS = 3000
CHECK = 250
"""Steps between looks at the held-out patients."""
PATIENCE = 4
HELD_OUT = 0.1
MOST_CELLS = 250_000_000
"""Numbers of the summaries that are held at once, two bytes each: of more records a sample is learnt from."""
GAPS = 40
SHORT = 0.7
"""Of the moving average of what came lately, the share that stays at each time stamp."""
FREEDOM = 3.0
"""Of Student's t, by which values are learnt: a value that jumps moves little else."""
FAR = 3.1
"""Scores beyond it are not drawn: the last knots of the scale."""


@dataclass
class State:
    """What a record holds so far, of several patients at once: arrays of (patients, ...)."""

    last: np.ndarray
    lately: np.ndarray
    count: np.ndarray
    value: np.ndarray
    total: np.ndarray
    measured: np.ndarray
    since: np.ndarray
    time: np.ndarray
    visits: np.ndarray

    @classmethod
    def begin(cls, start: np.ndarray, codes: int) -> State:
        """Nothing yet."""
        n = len(start)
        names = ("last", "lately", "count", "value", "total", "measured")
        zeros = {name: np.zeros((n, codes), np.float32) for name in names}
        return cls(**zeros, since=np.zeros((n, codes), np.int64), time=start.copy(), visits=np.zeros(n, np.int64))

    def take(self, rows: np.ndarray) -> State:
        """Of some of the patients."""
        return State(**{name: values[rows] for name, values in vars(self).items()})

    def add(self, time: np.ndarray, present: np.ndarray, score: np.ndarray) -> None:
        """A further time stamp of each patient."""
        valued = np.isfinite(score)
        self.last = present.astype(np.float32)
        self.lately = SHORT * self.lately + (1 - SHORT) * self.last
        self.count = self.count + self.last
        self.value = np.where(valued, score, self.value)
        self.total = self.total + np.nan_to_num(score)
        self.measured = self.measured + valued
        self.since = np.where(present, time[:, None], self.since)
        self.time, self.visits = time, self.visits + 1


class Summary:
    """The numbers that a network sees of a state."""

    def __init__(self, data: Sequences) -> None:
        lengths = np.diff(data.first)
        elapsed = (data.time - np.repeat(data.time[data.first[:-1]], lengths)).astype(np.float64)
        age = np.repeat(np.nan_to_num(data.age), lengths) + elapsed / YEAR
        self.clocks = [Bins(v, 16) for v in (elapsed, age, data.time.astype(np.float64))]

    def of(self, state: State, plan: Plan, planned: np.ndarray) -> np.ndarray:
        """(patients, features) float32; `planned`: the plan's own features."""
        passed = (state.time - plan.start).astype(np.float64)
        clocks = (passed, np.nan_to_num(plan.age) + passed / YEAR, state.time.astype(np.float64))
        seen = state.count > 0
        hours = np.where(seen, (state.time[:, None] - state.since) / HOUR, 0.0)
        left = np.maximum(plan.count - state.count, 0)
        visits, span = plan.visits - state.visits, np.maximum(plan.span - passed, 0)
        rate = left / np.maximum(visits, 1)[:, None]
        mean = np.where(state.measured > 0, state.total / np.maximum(state.measured, 1), np.nan_to_num(plan.mean))
        times = [
            np.log1p(visits.clip(0)) / 3,
            visits <= 1,
            np.log1p(span / HOUR) / 5,
            passed / np.maximum(plan.span, 1),
        ]
        times += [np.log1p(span / np.maximum(visits, 1) / HOUR) / 5]
        parts = [
            planned,
            state.last,
            state.lately,
            np.log(rate.clip(0.003, 1)) / 3 + 1,
            state.value / 2,
            mean / 2,
            np.where(seen, 1 - np.log1p(hours) / 8, 0.0),
            np.stack(times, 1),
            *(np.eye(q.levels, dtype=np.float32)[q.level(v)] for q, v in zip(self.clocks, clocks, strict=True)),
        ]
        return np.concatenate([np.asarray(part, np.float32) for part in parts], 1)


class Network(nn.Module):
    """From a summary: the gap to the next time stamp; given the gap, codes; given these, values.

    Args:
        features, codes, gaps: how many; level `gaps` stands for the gap before the first time stamp.
        level: (codes,) log odds of each code, what its bias begins at.
    """

    lower: Tensor

    def __init__(self, features: int, codes: int, gaps: int, level: np.ndarray) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Dropout(0.1), nn.Linear(features, WIDTH), nn.GELU(), nn.Dropout(0.2))
        self.to_gap = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, gaps))
        self.of_gap = nn.Embedding(gaps + 1, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2))
        self.to_codes = nn.Linear(2 * WIDTH, codes)
        self.to_values = nn.Linear(2 * WIDTH, 2 * codes)
        # How much of a code's own plan and past tells of it.
        self.own = nn.Parameter(torch.zeros(5, codes))
        self.own_value = nn.Parameter(torch.zeros(3, codes))
        self.code_code = nn.Parameter(torch.zeros(codes, codes))
        self.value_code = nn.Parameter(torch.zeros(codes, codes))
        self.value_value = nn.Parameter(torch.zeros(codes, codes))
        self.register_buffer("lower", torch.ones(codes, codes).tril(-1))
        with torch.no_grad():
            self.to_codes.bias.copy_(torch.from_numpy(level))
            self.to_codes.weight.mul_(0.1)

    def hidden(self, x: Tensor, gap: Tensor) -> Tensor:
        """Of the summary and the gap that led here."""
        state = self.trunk(x)
        return torch.cat([self.mix(state + self.of_gap(gap)), state], 1)

    def codes(self, mixed: Tensor, own: Tensor) -> Tensor:
        """Log odds of each code, before codes of the same time stamp tell; `own`: (rows, 7, codes)."""
        return self.to_codes(mixed) + (own[:, :5] * self.own).sum(1)

    def values(self, mixed: Tensor, own: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (before values of the same time stamp tell) and log deviation of each code's value."""
        mean, spread = self.to_values(mixed).chunk(2, 1)
        own = torch.stack([own[:, 3], own[:, 5], own[:, 6]], 1)
        return mean + (own * self.own_value).sum(1) + present @ self.value_code.T, spread.clamp(-3.5, 1.5)

    def losses(
        self, x: Tensor, own: Tensor, gap: Tensor, present: Tensor, score: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Sums over rows of gaps, codes and values; (rows, codes) standardised errors of the values, NaN without."""
        state = self.trunk(x)
        mixed = torch.cat([self.mix(state + self.of_gap(gap)), state], 1)
        first = gap == self.of_gap.num_embeddings - 1
        found = {"gap": F.cross_entropy(self.to_gap(state)[~first], gap[~first], reduction="sum")}
        logits = self.codes(mixed, own) + present @ (self.code_code * self.lower).T
        possible = own[:, 0] > -0.9  # what the plan holds no more is not drawn
        each = F.binary_cross_entropy_with_logits(logits, present, reduction="none")
        found["codes"] = (each * possible).sum()
        mean, spread = self.values(mixed, own, present)
        z = torch.nan_to_num(score)
        error = (z - mean - z @ (self.value_value * self.lower).T) * torch.exp(-spread)
        each = 0.5 * (FREEDOM + 1) * torch.log1p(error.square() / FREEDOM) + spread
        found["values"] = torch.where(torch.isfinite(score), each, 0.0).sum()
        return found, torch.where(torch.isfinite(score), error.detach(), torch.nan)


class Generator:
    """What draws records like those it was fitted to.

    Raises:
        UserError: nobody has events at two times.
    """

    def __init__(self, data: Sequences, *, seed: int = 0) -> None:
        self.data, self.seed = data, seed
        gaps = np.diff(data.time)[np.diff(data.patient) == 0]
        if not len(gaps):
            raise UserError("no patient has events at two times", hint="Give records with a course of time.")
        self.gaps = Bins(gaps.astype(np.float64), GAPS)
        self.first_gap = self.gaps.levels - 1  # the level of no gap
        self.planner, self.summary = Planner(data, seed), Summary(data)
        self.latest = int(data.time.max())
        self.fit()

    def _own(self, state: State, plan: Plan) -> np.ndarray:
        """(patients, 7, codes) what of a code's own tells of it: what is left of the plan (-1: nothing), ..."""
        left = plan.count - state.count
        visits = np.maximum(plan.visits - state.visits, 1)[:, None]
        rate = (left / visits).clip(0.003, 0.997)
        odds = np.log(rate / (1 - rate)) / 3
        seen = state.count > 0
        mean = np.nan_to_num(plan.mean)
        parts = (np.where(left > 0, 0.0, -1.0), odds, state.last, mean * seen, seen, state.value, mean)
        return np.stack([np.asarray(part, np.float32) for part in parts], 1)

    def _rows(self, numbers: np.ndarray, whole: Plan) -> dict[str, np.ndarray]:
        """What is learnt from some patients: a row before each time stamp."""
        data = self.data
        order = numbers[np.argsort(-np.diff(data.first)[numbers], kind="stable")]
        first, length = data.first[order], np.diff(data.first)[order]
        plan = whole.take(order)
        planned, state = plan.features(), State.begin(plan.start, len(data.timed))
        parts: dict[str, list[np.ndarray]] = {k: [] for k in ("x", "own", "gap", "visit")}
        for t in range(int(length[0])):
            active = np.arange(int(np.searchsorted(-length, -t, side="left")))  # those with more than t time stamps
            state, plan, planned = state.take(active), plan.take(active), planned[active]
            first, length = first[active], length[active]
            visit = first + t
            gap = np.full(len(active), self.first_gap)
            if t:
                gap = self.gaps.level((data.time[visit] - state.time).astype(np.float64))
            parts["x"].append(self.summary.of(state, plan, planned).astype(np.float16))
            parts["own"].append(self._own(state, plan).astype(np.float16))
            parts["gap"].append(gap)
            parts["visit"].append(visit)
            state.add(data.time[visit], data.present[visit], data.score[visit])
        return {name: np.concatenate(found) for name, found in parts.items()}

    def fit(self) -> None:
        """Learn from the records; patients held out say when to stop."""
        data, rng = self.data, np.random.default_rng([self.seed, 11])
        codes, plan = len(data.timed), plan_of(data)
        width = 4 * data.facts.shape[1] + 15 * codes + 60
        order = rng.permutation(len(data))
        cells = np.cumsum(np.diff(data.first)[order] * float(width))
        order = order[: max(FEWEST_PATIENTS, int(np.searchsorted(cells, MOST_CELLS)))]
        self.learnt_from = len(order)
        held = max(4, round(HELD_OUT * len(order)))
        parts = [self._rows(chosen, plan) for chosen in (order[held:], order[:held])]
        share = (data.present.sum(0) + 0.5) / (len(data.present) + 1)
        torch.manual_seed(self.seed)
        network = self.network = Network(parts[0]["x"].shape[1], codes, self.first_gap, np.log(share / (1 - share)))
        optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.1)
        best, kept, waited = np.inf, network.state_dict(), 0
        for step in counted(range(STEPS), STEPS):
            network.train()
            for group in optimiser.param_groups:
                group["lr"] = 2e-3 * min(1.0, (step + 1) / 100) * (1 - step / STEPS) ** 0.5
            chosen = rng.integers(0, len(parts[0]["visit"]), BATCH)
            losses, _ = self._losses(parts[0], chosen)
            loss = torch.stack(list(losses.values())).sum() / BATCH
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            if (step + 1) % CHECK == 0:
                found = sum(self._judged(parts[1])[0].values())
                waited = 0 if found < best else waited + 1
                if found < best:
                    best, kept = found, {k: v.clone() for k, v in network.state_dict().items()}
                if waited == PATIENCE:
                    break
        network.load_state_dict(kept)
        self.steps, self.held_out_loss = step + 1, best
        self.errors = np.zeros((codes, len(LEVELS)), np.float32)
        for i, of_code in enumerate(self._judged(parts[0], most=60_000)[1].T):
            known = of_code[np.isfinite(of_code)]
            if len(known) >= 2 * LEAST:
                self.errors[i] = np.quantile(known, LEVELS)

    def _losses(self, rows: dict[str, np.ndarray], chosen: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        visit = rows["visit"][chosen]
        present = self.data.present[visit].astype(np.float32)
        x, own = (rows[name][chosen].astype(np.float32) for name in ("x", "own"))
        return self.network.losses(
            *map(torch.from_numpy, (x, own, rows["gap"][chosen], present, self.data.score[visit]))
        )

    @torch.no_grad()
    def _judged(self, rows: dict[str, np.ndarray], most: int = 20_000) -> tuple[dict[str, float], np.ndarray]:
        """Mean losses of a row, and the standardised errors of its values."""
        self.network.eval()
        count = len(rows["visit"])
        chosen = np.linspace(0, count - 1, min(count, most)).astype(np.int64)
        found = [self._losses(rows, part) for part in np.array_split(chosen, max(1, len(chosen) // 2048))]
        losses = {k: sum(float(part[k]) for part, _ in found) / len(chosen) for k in found[0][0]}
        return losses, np.concatenate([error.numpy() for _, error in found])

    @torch.no_grad()
    def draw(self, count: int, rng: np.random.Generator) -> tuple[Plan, dict[str, np.ndarray]]:
        """Records of new patients: their plans, and (events,) `patient`, `time`, `code` (number into the vocabulary's
        codes) and `value`."""
        network, data = self.network.eval(), self.data
        plan, death = self.planner.draw(count, rng), data.death
        whole, planned = plan, plan.features()
        state, who, time = (
            State.begin(plan.start, len(data.timed)),
            np.arange(count),
            plan.start // data.unit * data.unit,
        )
        gap = np.full(count, self.first_gap)
        weights = {k: (getattr(network, k) * network.lower).numpy() for k in ("code_code", "value_value")}
        events: list[tuple[np.ndarray, ...]] = []
        while len(who):
            own = self._own(state, plan)
            mixed = network.hidden(torch.from_numpy(self.summary.of(state, plan, planned)), torch.from_numpy(gap))
            logits = network.codes(mixed, torch.from_numpy(own)).numpy()
            last = (state.visits + 1 >= plan.visits)[:, None]
            logits[:, death] = np.where(last & (plan.count[:, death] > 0), 30.0, -np.inf)
            logits[(own[:, 0] < 0) & ~death] = -np.inf
            present = self._codes(logits, weights["code_code"], rng)
            given = torch.from_numpy(present).float()
            mean, spread = (t.numpy() for t in network.values(mixed, torch.from_numpy(own), given))
            score = self._values(mean, np.exp(spread), weights["value_value"], present, rng)
            row, column = np.nonzero(present)
            events.append((who[row], time[row], data.timed[column], score[row, column]))
            state.add(time, present, score)
            on = np.flatnonzero(state.visits < plan.visits)
            state, plan, planned, who = state.take(on), plan.take(on), planned[on], who[on]
            if not len(who):
                break
            logits = network.to_gap(network.trunk(torch.from_numpy(self.summary.of(state, plan, planned)))).numpy()
            gap = np.argmax(logits + rng.gumbel(size=logits.shape), 1)
            steps = np.maximum(np.rint(self.gaps.draw(gap, rng) / data.unit), 1).astype(np.int64)
            time = state.time + steps * data.unit
        patient, when, code, scores = (np.concatenate(part) for part in zip(*events, strict=True))
        when = self._inside(whole.start, patient, when)
        return whole, {"patient": patient, "time": when, "code": code, "value": self.unscaled(code, scores)}

    def _inside(self, start: np.ndarray, patient: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Times of the events; records that would go on for longer than anybody was observed are compressed."""
        begin = start[patient] // self.data.unit * self.data.unit
        passed, end = (time - begin).astype(np.float64), np.zeros(len(start))
        np.maximum.at(end, patient, passed)
        room = np.maximum(self.latest - begin, 0)
        passed *= np.minimum(1.0, room / np.maximum(end[patient], 1))
        return begin + (passed // self.data.unit).astype(np.int64) * self.data.unit

    def _codes(self, logits: np.ndarray, weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(patients, codes) drawn in order, at least one where the plan holds any."""
        out = np.zeros(logits.shape, bool)
        left = np.flatnonzero(np.isfinite(logits).any(1))
        for _ in range(20):
            now, found = logits[left].copy(), np.zeros((len(left), logits.shape[1]), bool)
            noise = rng.logistic(size=now.shape)
            for i in range(logits.shape[1]):
                here = np.flatnonzero(now[:, i] > noise[:, i])
                found[here, i] = True
                now[here, i + 1 :] += weight[i + 1 :, i]
            out[left] = found
            left = left[~found.any(1)]
        out[left, logits[left].argmax(1)] = True
        return out

    def _values(
        self, mean: np.ndarray, spread: np.ndarray, weight: np.ndarray, present: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        out = np.full(mean.shape, np.nan, np.float32)
        level = rng.random(mean.shape)
        for i in np.flatnonzero(present.any(0) & self.errors.any(1)).tolist():
            here = np.flatnonzero(present[:, i])
            error = np.interp(level[here, i], LEVELS, self.errors[i])
            out[here, i] = np.clip(mean[here, i] + spread[here, i] * error, -FAR, FAR)
            mean[here, i + 1 :] += out[here, i][:, None] * weight[i + 1 :, i]
        return out

    def unscaled(self, code: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Raw values, within the bounds of their codes and with as many decimals as theirs have."""
        data, out = self.data, np.full(len(code), np.nan)
        known = np.isfinite(score) & np.isfinite(data.bounds[code, 0])
        for i in np.unique(code[known]).tolist():
            here = known & (code == i)
            value = np.clip(data.vocabulary.unscale(i + FIRST, score[here]), *data.bounds[i])
            out[here] = np.round(value, int(data.decimals[i]))
        return out
