"""New records, one time stamp after the other: how long until the next one, which codes stand there, with which values.

Each is drawn given the plan of the patient (`plan`) and a summary of all that was drawn before (`State`): codes and
values of the last time stamp, how often and how long ago each code came, what the plan still holds. Codes of one time
stamp are drawn in a fixed order, each given those before it, by a network whose weights towards earlier codes are
masked (MADE: Germain et al. 2015); so one pass trains all of them. Values are normal scores: a mean and a spread from
the network, and around it the errors that were seen in training, of all patients together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
GAPS, PACE = 40, 3
"""Levels of the gap between time stamps, and features of how long gaps are to be."""
SHORT = 0.7
"""Of the moving average of what came lately, the share that stays at each time stamp."""
FREEDOM = 3.0
"""Of Student's t, by which values are learnt: a value that jumps moves little else."""
CERTAIN = 100.0
"""Log odds of what the plan says."""
SCHEDULE, SLOWEST = 20, 0.1
"""Steps of a record's course at which it is looked how much of its span is left, and the share of the records of which
as little may be."""
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
        self.unit, gaps = data.unit, np.diff(data.time)[np.diff(data.patient) == 0]
        usual = np.log(np.maximum(gaps, data.unit))
        self.usual, self.spread = float(usual.mean()), float(max(usual.std(), 0.1))

    def of(self, state: State, plan: Plan, planned: np.ndarray) -> np.ndarray:
        """(patients, features) float32, the last `PACE` of how long gaps are to be, so that what the plan still holds
        ends in its span; `planned`: the plan's own features."""
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
        pace = (np.log(np.maximum(span, self.unit) / np.maximum(visits, 1)) - self.usual) / self.spread
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
            np.stack([pace, pace**2, pace / np.maximum(visits, 1)], 1),
        ]
        return np.concatenate([np.asarray(part, np.float32) for part in parts], 1)


class Network(nn.Module):
    """From a summary: the gap to the next time stamp; given the gap, codes; given these, values.

    Args:
        features, codes, gaps: how many; level `gaps` stands for the gap before the first time stamp.
    """

    lower: Tensor

    def __init__(self, features: int, codes: int, gaps: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Dropout(0.1), nn.Linear(features, WIDTH), nn.GELU(), nn.Dropout(0.2))
        self.to_gap = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, gaps))
        self.by_pace = nn.Linear(PACE, gaps, bias=False)
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
            # Learning begins at the plan: each code as often as is left of it, a first value at the mean, further ones
            # between that and the last.
            self.own[1], self.own_value[:, :] = 3.0, torch.tensor([[-0.5], [0.5], [1.0]])
            for last in (self.to_codes, self.to_values):
                last.weight.mul_(0.1)
                last.bias.zero_()
            self.by_pace.weight.zero_()

    def hidden(self, state: Tensor, gap: Tensor) -> Tensor:
        """Of the summary, as the trunk has it, and the gap that led here."""
        return torch.cat([self.mix(state + self.of_gap(gap)), state], 1)

    def gaps(self, x: Tensor, state: Tensor) -> Tensor:
        """Log odds of the gaps to the next time stamp."""
        found: Tensor = self.to_gap(state) + self.by_pace(x[:, -PACE:])
        return found

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
        mixed = self.hidden(state, gap)
        first = gap == self.of_gap.num_embeddings - 1
        found = {"gap": F.cross_entropy(self.gaps(x, state)[~first], gap[~first], reduction="sum")}
        logits = self.codes(mixed, own) + present @ (self.code_code * self.lower).T
        possible = own[:, 0].abs() < 0.9  # what the plan holds no more is not drawn, what it holds throughout is
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
        self.shortest = max(int(self.gaps.least.min()), data.unit)
        self.left = _shares_left(data)
        self.planner, self.summary = Planner(data, seed), Summary(data)
        self.latest = int(data.time.max())
        self.fit()

    def _own(self, state: State, plan: Plan) -> np.ndarray:
        """(patients, 7, codes) what of a code's own tells of it: what is left of the plan (-1: nothing; 1: as many as
        time stamps), ..."""
        left = plan.count - state.count
        visits = np.maximum(plan.visits - state.visits, 1)[:, None]
        rate = (left / visits).clip(0.003, 0.997)
        odds = np.log(rate / (1 - rate)) / 3
        seen = state.count > 0
        mean = np.nan_to_num(plan.mean)
        parts = (
            np.where(left > 0, 1.0 * (left >= visits), -1.0),
            odds,
            state.last,
            mean * seen,
            seen,
            state.value,
            mean,
        )
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
        torch.manual_seed(self.seed)
        network = self.network = Network(parts[0]["x"].shape[1], codes, self.first_gap)
        named = [(name.startswith(("own", "by_pace")), p) for name, p in network.named_parameters()]
        groups = [
            {"params": [p for o, p in named if o is own], "weight_decay": 0.1 * (not own)} for own in (True, False)
        ]
        optimiser = torch.optim.AdamW(groups, lr=2e-3)
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
        self.errors = np.zeros((codes, len(LEVELS)), np.float32)
        for i, of_code in enumerate(self._judged(parts[0], most=60_000)[1].T):
            known = of_code[np.isfinite(of_code)]
            if len(known) >= 2 * LEAST:
                self.errors[i] = np.quantile(known, LEVELS)

    def _losses(self, rows: dict[str, np.ndarray], chosen: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        visit = rows["visit"][chosen]
        x, own, gap = (torch.from_numpy(rows[name])[torch.from_numpy(chosen)] for name in ("x", "own", "gap"))
        present, score = (torch.from_numpy(some[visit]) for some in (self.data.present, self.data.score))
        return self.network.losses(x.float(), own.float(), gap, present.float(), score)

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
        # Nobody is observed for longer than those learnt from.
        longest = np.maximum(self.latest - plan.start // data.unit * data.unit, 0)
        plan = replace(
            plan, span=np.minimum(plan.span, longest), visits=np.minimum(plan.visits, longest // self.shortest + 1)
        )
        whole, planned = plan, plan.features()
        state, who, time = (
            State.begin(plan.start, len(data.timed)),
            np.arange(count),
            plan.start // data.unit * data.unit,
        )
        gap = np.full(count, self.first_gap)
        weights = {k: (getattr(network, k) * network.lower).numpy() for k in ("code_code", "value_value")}
        least, events = self.gaps.least[:-1], list[tuple[np.ndarray, ...]]()
        while len(who):
            own = self._own(state, plan)
            x = torch.from_numpy(self.summary.of(state, plan, planned))
            mixed = network.hidden(network.trunk(x), torch.from_numpy(gap))
            logits = network.codes(mixed, torch.from_numpy(own)).numpy()
            last = (state.visits + 1 >= plan.visits)[:, None]
            logits[own[:, 0] > 0] = CERTAIN
            logits[own[:, 0] < 0] = -np.inf
            logits[:, death] = np.where(last & (plan.count[:, death] > 0), CERTAIN, -np.inf)
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
            x = torch.from_numpy(self.summary.of(state, plan, planned))
            logits = network.gaps(x, network.trunk(x)).numpy()
            most, end = self._room(state, plan)
            logits[(least[None] > most[:, None]) & (least > least.min())] = -np.inf
            gap = np.argmax(logits + rng.gumbel(size=logits.shape), 1)
            steps = np.rint(self.gaps.draw(gap, rng, most) / data.unit).astype(np.int64)
            time = state.time + np.clip(steps, 1, end // data.unit) * data.unit
        patient, when, code, scores = (np.concatenate(part) for part in zip(*events, strict=True))
        return whole, {"patient": patient, "time": when, "code": code, "value": self.unscaled(code, scores)}

    def _room(self, state: State, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """(patients,) the longest gap, in microseconds, that leaves the further gaps as much of the plan's span as they
        have in records, and the longest before the end of all records. With the second alone, a record that comes to
        that end too early has all the rest of its plan pressed together there."""
        gaps = plan.visits - state.visits - 1  # behind the next one
        share = np.interp(gaps / np.maximum(plan.visits - 1, 1), *self.left)
        end = self.latest - state.time - gaps * self.shortest
        room = (1 - share) * plan.span - (state.time - plan.start)
        return np.minimum(np.maximum(room, self.shortest), end), end

    def _codes(self, logits: np.ndarray, weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(patients, codes) drawn in order, at least one where the plan holds any."""
        out = np.zeros(logits.shape, bool)
        left = np.flatnonzero(np.isfinite(logits).any(1))
        for _ in range(20):
            now, found, rows = logits[left], np.zeros((len(left), logits.shape[1]), bool), np.arange(len(left))
            beyond = now > (noise := rng.logistic(size=now.shape))
            while len(rows := rows[beyond[rows].any(1)]):
                code = beyond[rows].argmax(1)  # the first of each, which tells of those behind it
                found[rows, code] = True
                now[rows] += weight[:, code].T
                beyond[rows] = (now[rows] > noise[rows]) & (np.arange(logits.shape[1]) > code[:, None])
            out[left] = found
            left = left[~found.any(1)]
        out[left, logits[left].argmax(1)] = True
        return out

    def _values(
        self, mean: np.ndarray, spread: np.ndarray, weight: np.ndarray, present: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        out = np.full(mean.shape, np.nan, np.float32)
        row, column = np.nonzero(present & self.errors.any(1))
        turn = np.arange(len(row)) - np.searchsorted(row, row)
        # A quantile of the errors: which two levels it lies between, and how far on.
        at = np.clip(np.searchsorted(LEVELS, rng.random(len(row)), side="right") - 1, 0, len(LEVELS) - 2)
        share = rng.random(len(row))
        for k in range(int(turn.max(initial=-1)) + 1):
            some = np.flatnonzero(turn == k)
            r, c = row[some], column[some]
            low, high = self.errors[c, at[some]], self.errors[c, at[some] + 1]
            score = mean[r, c] + spread[r, c] * (low + (high - low) * share[some])
            out[r, c] = np.clip(score, -FAR, FAR)
            mean[r] += out[r, c][:, None] * weight[:, c].T
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


def _shares_left(data: Sequences) -> tuple[np.ndarray, np.ndarray]:
    """(levels,) share of a record's gaps that are still to come, and the share of its span that these have at least, in
    all but `SLOWEST` of the records."""
    gaps = np.diff(data.first) - 1
    begin, end = data.time[data.first[:-1]], data.time[data.first[1:] - 1]
    some = gaps[data.patient] > 0
    patient, to_come = data.patient[some], (data.first[1:][data.patient] - 1 - np.arange(len(data.time)))[some]
    level = np.rint(to_come / gaps[patient] * SCHEDULE).astype(np.int64)
    span = (end[patient] - data.time[some]) / (end - begin)[patient]
    levels = np.unique(level)
    return levels / SCHEDULE, np.array([np.quantile(span[level == k], SLOWEST) for k in levels.tolist()])
