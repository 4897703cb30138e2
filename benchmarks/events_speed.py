"""Real events a second of a training step: ours beside a BERT of transformers that pads, on the same patients.

Both read PhysioNet-2012 histories (or simulated ones) of up to --slots events and take one AdamW step a batch. Theirs is
the usual recipe for events: `BertModel(inputs_embeds=...)` of the same width, layers, heads and inner size, batches
padded to their longest history, sorted by length or not, 15 % of the codes hidden in place, a linear decoder over the
hidden positions alone. Ours in both architectures, packed. Same precision, same threads; best of the runs.

    python benchmarks/events_speed.py [--seconds 20] [--width 128] [--layers 4] [--data synthea_r4|physionet2012_a]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each loop")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="histories a padded batch")
    parser.add_argument("--data", default="synthea_r4")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out")
    a = parser.parse_args()
    if a.quick:
        a.seconds, a.width, a.layers = 3.0, 64, 2
    from unmask.events.histories import Histories
    from unmask.events.meds import read_meds
    from unmask.events.vocabulary import Vocabulary

    events = read_meds(SHARED / "data/events" / a.data)
    vocabulary = Vocabulary.fit(events, np.arange(len(events.code)))
    histories = Histories(events, vocabulary)
    examples = [histories.example(i, slots=a.slots) for i in range(len(events))]
    lengths = np.array([len(e) for e in examples])
    print(
        f"{len(examples)} histories, {lengths.mean():.0f} events on average, longest {lengths.max()}, {torch.get_num_threads()} threads"
    )
    loops: dict[str, Callable[[], Iterator[int]]] = {
        "ours, visible only, 60 % of visits": lambda: ours(examples, len(vocabulary), a, "visible_only", 0.6),
        "ours, in place, 15 %": lambda: ours(examples, len(vocabulary), a, "in_place", 0.15),
        "transformers, padded": lambda: theirs(examples, len(vocabulary), a, False),
        "transformers, sorted by length": lambda: theirs(examples, len(vocabulary), a, True),
    }
    found = {name: timed(loop(), a.seconds) for name, loop in loops.items()}
    base = found["transformers, padded"]
    for name, speed in found.items():
        print(f"{name:38} {speed:10,.0f} real events/s   {speed / base:5.2f} x padded", flush=True)
    if a.out:
        Path(a.out).write_text(json.dumps({"arguments": vars(a), "events_per_second": found}, indent=1))


def timed(steps: Iterator[int], seconds: float) -> float:
    """Events a second after two steps to warm up."""
    next(steps), next(steps)
    start, total = time.perf_counter(), 0
    for count in steps:
        total += count
        if time.perf_counter() - start > seconds:
            break
    return total / (time.perf_counter() - start)


def ours(examples: list, codes: int, a: argparse.Namespace, architecture: str, ratio: float) -> Iterator[int]:
    from unmask.core.batch import pack
    from unmask.core.plan import Plan
    from unmask.events.folder import new_model
    from unmask.events.pretrain import corruption_of
    from unmask.events.recipes import EventSettings, with_overrides

    shape = {"width": a.width, "layers": a.layers, "inner": 4 * a.width, "slots": a.slots}
    rows = max(1, a.batch * int(np.mean([len(e) for e in examples])) // a.slots)
    hide = "visit" if ratio > 0.5 else "event"
    weights = {} if ratio > 0.5 else {"value_weight": 0.0, "time_weight": 0.0}
    settings = with_overrides(
        EventSettings(),
        {**shape, **weights, "architecture": architecture, "ratio": ratio, "hide": hide, "batch_slots": rows * a.slots},
    )
    model = new_model(settings, codes).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corruption = corruption_of(settings)
    lengths = np.array([len(e) for e in examples])
    plan = Plan(lengths=lengths, examples=np.arange(len(examples)), slots=a.slots, rows=rows)
    for step in plan.steps():
        members = [i for row in step.rows for i in row]
        ends = np.cumsum([0, *(len(row) for row in step.rows)])
        placement = [list(range(s, e)) for s, e in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        batch = pack([examples[i] for i in members], slots=a.slots, rows=rows, placement=placement)
        hidden = corruption.draw(batch, seed=0, epoch=step.epoch)
        loss = model(batch, hidden).loss(model.codec.targets(batch.values, hidden.flat)) / max(1, len(hidden))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        yield batch.real_slots


class Theirs(torch.nn.Module):
    """Code and time embeddings into a BertModel, a linear decoder over hidden positions."""

    def __init__(self, codes: int, a: argparse.Namespace) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=2, hidden_size=a.width, num_hidden_layers=a.layers, num_attention_heads=4,
            intermediate_size=4 * a.width, max_position_embeddings=a.slots, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.code, self.time = torch.nn.Embedding(codes + 1, a.width), torch.nn.Linear(2, a.width)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.decoder = torch.nn.Linear(a.width, codes)

    def forward(self, code: Any, clock: Any, mask: Any, hidden: Any, mask_id: int) -> Any:
        x = self.code(torch.where(hidden, mask_id, code)) + self.time(clock)
        states = self.bert(inputs_embeds=x, attention_mask=mask).last_hidden_state
        return torch.nn.functional.cross_entropy(self.decoder(states[hidden]), code[hidden])


def theirs(examples: list, codes: int, a: argparse.Namespace, by_length: bool) -> Iterator[int]:
    torch.manual_seed(0)
    model = Theirs(codes, a).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(examples))
        if by_length:
            order = order[np.argsort([len(examples[i]) for i in order], kind="stable")]
        batches = [order[i : i + a.batch] for i in range(0, len(order), a.batch)]
        for k in rng.permutation(len(batches)):
            mine = [examples[i] for i in batches[k]]
            longest = max(len(e) for e in mine)
            code, mask = (
                torch.zeros(len(mine), longest, dtype=torch.long),
                torch.zeros(len(mine), longest, dtype=torch.long),
            )
            clock = torch.zeros(len(mine), longest, 2)
            for row, e in enumerate(mine):
                code[row, : len(e)] = torch.from_numpy(e.values["code"])
                clock[row, : len(e), 0] = torch.from_numpy(np.log1p(e.values["hours"]))
                clock[row, : len(e), 1] = torch.from_numpy(e.values["value"])
                mask[row, : len(e)] = 1
            hidden = (torch.rand(code.shape) < 0.15) & (mask == 1)
            model(code, clock, mask, hidden, codes).backward()
            optimiser.step()
            optimiser.zero_grad()
            yield int(mask.sum())


if __name__ == "__main__":
    main()
