"""Does pretraining pay in an encoder that is tuned as a whole? Two axes, variables and windows of time, as DuETT has.

Labach et al., DuETT: Dual Event Time Transformer for Electronic Health Records, 2023. A stay is a grid of variables x
windows of three hours. Attention is among variables (each with all its windows) and among windows (each with all its
variables) in turn. Pretraining hides cells, variables, windows, or all that follows a moment, and predicts values
(smooth absolute error) and presence of what is hidden; fine-tuning trains all of it, the first layers slowest, and
averages the weights over the steps. What it says of the test stays joins the folder of benchmarks/events_death.py,
whose table has it alone and as a fourth voice of our head.

    python benchmarks/events_axes.py --folder runs [--splits 1] [--minutes 4]       minutes: of pretraining, processor
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from events_death import OURS, PRETRAINED, SCRATCH, SHARED, SHARES, labelled, parts

WINDOWS, WINDOW_HOURS, MOST = 16, 3, 60
"""Windows before the prediction, hours in each, and codes that are looked at."""
CELL, WIDTH, BLOCKS = 8, 64, 2
MEMBERS = 2
"""Fine-tunings that are averaged: each stops on another fifth of its labels."""
EPOCHS = {1.0: 7, 0.1: 20, 0.02: 40}
Grid = tuple[Tensor, Tensor, Tensor]
"""Mean values (stays, variables, windows), NaN where there is none; log(1 + count) of them; static facts."""


def grids() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, counts, static facts (NaN where not known) and outcomes of sets a and c, in the order of subjects."""
    found: list[tuple[np.ndarray, ...]] = []
    codes: list[str] = []
    for name in "ac":
        data = pl.read_parquet(SHARED / f"data/events/physionet2012_{name}/data/*.parquet")
        task = pl.read_parquet(SHARED / f"data/events/physionet2012_{name}/tasks/in_hospital_death/*.parquet")
        task = task.sort("subject_id")
        codes = codes or data["code"].value_counts(sort=True)["code"].to_list()[:MOST]
        data = data.join(task.select("subject_id", "prediction_time"), on="subject_id")
        data = data.filter(pl.col("time").is_null() | (pl.col("time") <= pl.col("prediction_time")))
        data = data.filter(pl.col("code").is_in(codes))
        hours = (data["prediction_time"] - data["time"]).dt.total_seconds() / 3600
        static, hours = hours.is_null().to_numpy(), hours.fill_null(0).to_numpy()
        window = (WINDOWS - hours / WINDOW_HOURS).astype(int).clip(0, WINDOWS - 1)
        stay = np.searchsorted(task["subject_id"].to_numpy(), data["subject_id"].to_numpy())
        code = np.array([codes.index(c) for c in data["code"].to_list()], int)
        value = data["numeric_value"].to_numpy().astype(float)
        total, count, seen = (np.zeros((len(task), len(codes), WINDOWS)) for _ in range(3))
        fact = np.full((len(task), len(codes)), np.nan)
        good = ~static & np.isfinite(value)
        np.add.at(count, (stay[~static], code[~static], window[~static]), 1)
        np.add.at(total, (stay[good], code[good], window[good]), value[good])
        np.add.at(seen, (stay[good], code[good], window[good]), 1)
        fact[stay[static], code[static]] = np.where(np.isfinite(value[static]), value[static], 1.0)
        mean = np.where(seen > 0, total / np.maximum(seen, 1), np.nan)
        found.append((mean, np.log1p(count), fact, task["boolean_value"].to_numpy().astype(float)))
    value, count, fact, y = (np.concatenate(part).astype(np.float32) for part in zip(*found, strict=True))
    used = count.max((0, 2)) > 0
    return value[:, used], count[:, used], fact[:, ~np.isnan(fact).all(0)], y


def scaled(value: np.ndarray, count: np.ndarray, fact: np.ndarray, train: np.ndarray) -> Grid:
    """Standardised by the training stays, values within their 99 %."""
    low, high = np.nanquantile(value[train], [0.005, 0.995], axis=(0, 2), keepdims=True)
    value = np.clip(value, low, high)
    mean, spread = (f(value[train], (0, 2), keepdims=True) for f in (np.nanmean, np.nanstd))
    z = (fact - np.nanmean(fact[train], 0)) / (np.nanstd(fact[train], 0) + 1e-6)
    facts = np.concatenate([np.nan_to_num(z).clip(-5, 5), np.isnan(fact)], 1)
    value = (value - mean) / (spread + 1e-6)
    return tuple(torch.from_numpy(np.ascontiguousarray(a, np.float32)) for a in (value, count, facts))  # type: ignore[return-value]


class Block(nn.Module):
    def __init__(self, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        stays, tokens, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(stays, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # Of so few tokens plain products are faster than the fused kernel on a processor.
        mixed = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))


class Axes(nn.Module):
    """A grid's cells, `CELL` numbers each, are written to by attention among variables and among windows in turn."""

    def __init__(self, variables: int, facts: int) -> None:
        super().__init__()
        rows, self.variables = variables + 1, variables  # the last row holds the static facts

        def drawn(*shape: int, deviation: float = 0.1) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape) * deviation)

        def linear(here: int, there: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(here, there) for _ in range(BLOCKS))

        self.cell = drawn(variables, 7, CELL, deviation=0.4)
        self.variable, self.window = drawn(rows, 1, CELL), drawn(1, WINDOWS, CELL)
        self.facts = nn.Sequential(nn.Linear(facts, 64), nn.GELU(), nn.Linear(64, WINDOWS * CELL))
        self.row_in, self.row_out = linear(WINDOWS * CELL, WIDTH), linear(WIDTH, WINDOWS * CELL)
        self.column_in, self.column_out = linear(rows * CELL, WIDTH), linear(WIDTH, rows * CELL)
        self.among_rows, self.among_columns = (nn.ModuleList(Block() for _ in range(BLOCKS)) for _ in range(2))
        self.row_place, self.column_place = drawn(rows, WIDTH), drawn(WINDOWS, WIDTH)
        self.row_norm, self.column_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.by_row, self.by_column = nn.Linear(WIDTH, 2 * WINDOWS), nn.Linear(WIDTH, 2 * variables)
        self.by_cell = drawn(variables, CELL, 2)
        self.dropout, self.out = nn.Dropout(0.3), nn.Linear(3 * WIDTH, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, value: Tensor, count: Tensor, facts: Tensor, hide: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cells, rows (variables, then facts) and columns (windows); what `hide` names is not seen."""
        seen, hidden = value.isfinite() & ~hide, hide.float()
        value, stays = torch.where(seen, value, 0), len(value)
        place = torch.arange(WINDOWS)
        last = torch.where(seen, place, -1).cummax(-1).values
        carried = value.gather(-1, last.clamp_min(0)) * (last >= 0)
        gap = torch.where(last >= 0, (place - last).float() / WINDOWS, 1.0)
        square = ((carried**2 - 1) / 2).clamp_max(5) * (last >= 0)
        told = torch.stack([value, carried, square, gap, seen.float(), count * (1 - hidden), hidden], -1)
        told = told.transpose(0, 1).reshape(self.variables, stays * WINDOWS, 7)
        cells = (told @ self.cell).view(self.variables, stays, WINDOWS, CELL).transpose(0, 1)
        z = torch.cat([cells, self.facts(facts).view(stays, 1, WINDOWS, CELL)], 1)
        z = F.gelu(z + self.variable + self.window)
        for i in range(BLOCKS):
            rows = self.among_rows[i](self.row_in[i](z.flatten(2)) + self.row_place)
            z = z + self.row_out[i](rows).view(z.shape)
            columns = self.among_columns[i](self.column_in[i](z.transpose(1, 2).flatten(2)) + self.column_place)
            z = z + self.column_out[i](columns).view(stays, WINDOWS, -1, CELL).transpose(1, 2)
        return z, self.row_norm(rows), self.column_norm(columns)

    def loss(self, grid: Grid, generator: torch.Generator) -> Tensor:
        """Of hidden values and of hidden presence."""
        value, count, _ = grid
        stays = len(value)
        hide = torch.rand(value.shape, generator=generator) < 0.1
        hide |= torch.rand(stays, self.variables, 1, generator=generator) < 0.2
        hide |= torch.rand(stays, 1, WINDOWS, generator=generator) < 0.2
        after = torch.randint(WINDOWS // 3, WINDOWS, (stays,), generator=generator)
        after = torch.where(torch.rand(stays, generator=generator) < 0.25, after, WINDOWS)
        hide |= (torch.arange(WINDOWS) >= after[:, None])[:, None]
        z, rows, columns = self(*grid, hide)
        found = self.by_row(rows[:, :-1]).view(stays, self.variables, WINDOWS, 2)
        found = found + self.by_column(columns).view(stays, WINDOWS, self.variables, 2).transpose(1, 2)
        found = found + torch.einsum("svwc,vck->svwk", z[:, :-1], self.by_cell)
        there = hide & value.isfinite()
        presence = F.binary_cross_entropy_with_logits(found[..., 1][hide], (count[hide] > 0).float())
        return F.smooth_l1_loss(found[..., 0][there], value[there]) + presence

    def logit(self, grid: Grid, hide: Tensor | None = None) -> Tensor:
        _, rows, columns = self(*grid, torch.zeros_like(grid[0], dtype=torch.bool) if hide is None else hide)
        pooled = torch.cat([rows[:, :-1].mean(1), rows[:, -1], columns.mean(1)], -1)
        return self.out(self.dropout(pooled))[:, 0]


def some(grid: Grid, stays: Tensor) -> Grid:
    return tuple(part[stays] for part in grid)  # type: ignore[return-value]


def step(model: Axes, optimiser: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * rate
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def rate(place: float, steps: int, warmup: int) -> float:
    return min(1.0, steps / warmup) * max(0.02, 0.5 * (1 + math.cos(math.pi * place)))


def pretrained(grid: Grid, train: np.ndarray, minutes: float, seed: int) -> Axes:
    torch.manual_seed(seed)
    model, generator = Axes(grid[0].shape[1], grid[2].shape[1]), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW([{"params": [*model.parameters()], "peak": 3e-3}], weight_decay=0.02)
    start, place, steps = time.process_time(), 0.0, 0
    while place < 1:
        for rows in torch.from_numpy(train)[torch.randperm(len(train), generator=generator)].split(64):
            place = (time.process_time() - start) / 60 / minutes
            if place >= 1:
                break
            step(model, optimiser, model.loss(some(grid, rows), generator), rate(place, steps, 100))
            steps += 1
    print(f"{steps} steps of pretraining", flush=True)
    return model


def log_odds(model: Axes, grid: Grid, rows: np.ndarray) -> np.ndarray:
    model.eval()
    with torch.no_grad():
        return torch.cat([model.logit(some(grid, part)) for part in torch.from_numpy(rows).split(256)]).double().numpy()


def tuned(start: Axes, grid: Grid, y: Tensor, few: np.ndarray, *, peak: float, epochs: int, member: int) -> Axes:
    """The average of the weights over the steps, where a fifth of the labels, which is not learnt from, liked it
    best."""
    torch.manual_seed(100 + member)
    model, generator = copy.deepcopy(start), torch.Generator().manual_seed(member)
    few = np.random.default_rng([member, 5]).permutation(few)
    fold = np.zeros(len(few), int)
    for outcome in (0, 1):
        here = np.flatnonzero(y[few].numpy() == outcome)
        fold[here] = np.arange(len(here)) % 5
    learnt, watched = torch.from_numpy(few[fold != member]), few[fold == member]
    slow = dict.fromkeys(("cell", "variable", "window", "facts"), 0.25)
    groups = []
    for name, weights in model.named_parameters():
        share = slow.get(name.split(".")[0], 0.5 if ".0." in name else 1.0)
        groups.append({"params": [weights], "peak": 2e-3 if name.startswith("out") else peak * share})
    optimiser = torch.optim.AdamW(groups, weight_decay=0.05)
    with torch.no_grad():
        model.out.bias.fill_(float(torch.logit(y[learnt].mean())))
    mean, size = copy.deepcopy(model), min(64, max(16, len(learnt) // 12))
    per_epoch = -(-len(learnt) // size)
    steps, every = max(epochs * per_epoch, 150), max(15, per_epoch // 2)
    done, worse, best = 0, 0, (math.inf, mean.state_dict())
    while done < steps and worse < 6:
        for rows in learnt[torch.randperm(len(learnt), generator=generator)].split(size):
            model.train()
            hide = torch.rand(len(rows), model.variables, WINDOWS, generator=generator) < 0.15
            hide |= torch.rand(len(rows), model.variables, 1, generator=generator) < 0.1
            loss = F.binary_cross_entropy_with_logits(model.logit(some(grid, rows), hide), y[rows])
            step(model, optimiser, loss, rate(done / steps, done, 30))
            done += 1
            with torch.no_grad():
                for kept, now in zip(mean.parameters(), model.parameters(), strict=True):
                    kept.lerp_(now, 1 - min(0.97, done / (done + 5)))
            if done % every == 0:
                found = torch.from_numpy(log_odds(mean, grid, watched)).float()
                held = F.binary_cross_entropy_with_logits(found, y[watched]).item()
                worse += 1
                if held < best[0]:
                    worse, best = 0, (held, copy.deepcopy(mean.state_dict()))
            if done >= steps or worse >= 6:
                break
    mean.load_state_dict(best[1])
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of benchmarks/events_death.py, which ran before")
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=4.0)
    given = parser.parse_args()
    *raw, outcome = grids()
    y = torch.from_numpy(outcome)
    for split in range(given.splits):
        train, test = parts(split, len(y))
        grid, starts = scaled(*raw, train), {}
        for share, subset in ((share, subset) for share, count in SHARES.items() for subset in range(count)):
            file = given.folder / f"{split}-{share:g}-{subset}-axes.npz"
            if file.exists():
                continue
            if not starts:
                starts[PRETRAINED] = (pretrained(grid, train, given.minutes, split), 1e-3)
                torch.manual_seed(77 + split)
                starts[SCRATCH] = (Axes(grid[0].shape[1], grid[2].shape[1]), 2e-3)
            few, said = labelled(split, share, subset, train), {}
            with np.load(file.with_name(file.name.replace("axes", "ours"))) as found:
                head = np.log(found[OURS]) - np.log1p(-found[OURS])
            for name, (model, peak) in starts.items():
                fitted = (tuned(model, grid, y, few, peak=peak, epochs=EPOCHS[share], member=m) for m in range(MEMBERS))
                alone = np.mean([log_odds(m, grid, test) for m in fitted], 0)
                said[f"two axes, {name}"] = alone
                said[f"ours, with two axes, {name}"] = (3 * head + alone) / 4
            np.savez(file, **{name: 1 / (1 + np.exp(-q)) for name, q in said.items()})
            print(file.stem, flush=True)


if __name__ == "__main__":
    main()
