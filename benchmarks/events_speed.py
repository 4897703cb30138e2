"""Real events per second of a training step: ours beside a BERT of transformers that pads, on the same patients.

All loops read the same histories of up to --slots events and take AdamW steps of about --batch histories. Theirs is
the usual recipe for events: `BertModel(inputs_embeds=...)` of the same width, layers, heads and inner size with SDPA,
15 % of the codes hidden in place, a linear decoder over the hidden positions alone, fused AdamW, batches padded to
their longest history: in fp32 as such code is found, under bf16 autocast where the processor has bf16, and that with
histories sorted by length, which is the best it can do. Ours predicts codes, values and times, packed: our own recipe
(visible only, 10 to 60 % of the events hidden) and `behrt`'s (in place, codes alone, 15 %).

Steps alternate between the loops in one process; figures are medians over steps, and ratios of each pair of
neighbouring steps with their quartiles. All loops have our allocator settings, which help the reference too.

    python benchmarks/events_speed.py [--data synthea_r4|physionet2012_a] [--seconds 20] [--width 128] [--layers 4]
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

from beside import format_here
from unmask.training.precision import computing

FORMAT = format_here()
SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
Stepper = Callable[[], tuple[int, float]]
"""One optimiser step: (real events, seconds)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each loop")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="histories a padded batch")
    parser.add_argument("--data", default="synthea_r4")
    parser.add_argument("--set", action="append", default=[], help="setting of ours (not of behrt), key=value")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", help="write the figures here too, as JSON")
    a = parser.parse_args()
    if a.quick:
        a.seconds, a.width, a.layers = 1.0, 64, 2
    from unmask.memory import keep_freed_memory
    from unmask.modalities.events.records.histories import Histories
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.records.vocabulary import Vocabulary

    keep_freed_memory()
    events = read_meds(SHARED / "data/events" / a.data)
    vocabulary = Vocabulary.fit(events)
    histories = Histories(events, vocabulary)
    examples = [histories.example(i, slots=a.slots) for i in range(len(events))]
    lengths = np.array([len(e) for e in examples])
    print(
        f"{a.data}: {len(examples)} histories, {lengths.mean():.0f} events on average, longest {lengths.max()}; "
        f"{a.layers} x {a.width}, {a.slots} slots, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    codes = len(vocabulary)
    loops: dict[str, Stepper] = {
        "ours, visible only": ours(examples, codes, a, {}),
        "ours, behrt": ours(examples, codes, a, "behrt"),
        "padded, fp32": theirs(examples, codes, a, precision="fp32", by_length=False),
        f"padded, {FORMAT.name}": theirs(examples, codes, a, precision=FORMAT.name, by_length=False),
        f"sorted by length, {FORMAT.name}": theirs(examples, codes, a, precision=FORMAT.name, by_length=True),
    }
    found = measure(loops, a.seconds)
    if a.out:
        Path(a.out).write_text(json.dumps({"arguments": vars(a), "found": found}, indent=1))


def measure(loops: dict[str, Stepper], seconds: float) -> dict[str, Any]:
    """Steps of each loop in turn; medians, and how many times faster our loops' steps were than their neighbours."""
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    for one in loops.values():
        one(), one()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds * len(loops):
        for name, one in loops.items():
            count, spent = one()
            speeds[name].append(count / spent)
    found: dict[str, Any] = {}
    for name, mine in speeds.items():
        found[name] = {"events_per_second": float(np.median(mine)), "steps": len(mine)}
        shown = f"{name:24}{np.median(mine):9,.0f} real events/s"
        if name.startswith("ours"):
            for other, theirs_ in speeds.items():
                if not other.startswith("ours"):
                    low, middle, high = np.quantile(np.array(mine) / np.array(theirs_), [0.25, 0.5, 0.75]).tolist()
                    found[name][f"over {other}"] = [low, middle, high]
                    shown += f"   {other}: {middle:.2f}x ({low:.2f}-{high:.2f})"
        print(shown, flush=True)
    return found


def ours(examples: list, codes: int, a: argparse.Namespace, recipe: Any) -> Stepper:
    """Steps of the loop that `unmask pretrain events` runs, in the format that it picks here."""
    from unmask.core.batch import packer
    from unmask.core.pretrain import StepContext, pretrain
    from unmask.core.sampler import PackedSampler
    from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides
    from unmask.modalities.events.uses.folder import new_model
    from unmask.modalities.events.uses.pretrain import corruption_of
    from unmask.training.optimiser import build_optimiser, step
    from unmask.training.settings import TrainSettings, parse_set

    torch.manual_seed(0)
    rows = max(1, a.batch * int(np.mean([len(e) for e in examples])) // a.slots)
    shape = {"width": a.width, "layers": a.layers, "heads": 4, "inner": 4 * a.width, "slots": a.slots}
    settings = with_overrides(
        EventSettings(), {**(RECIPES[recipe] if recipe else parse_set(a.set)), **shape, "batch_slots": rows * a.slots}
    )
    model = new_model(settings, codes).train()
    train = TrainSettings(steps=10**6, learning_rate=1e-3, schedule="constant", warmup=0.0)
    optimiser = build_optimiser(model, train)
    lengths = np.array([len(e) for e in examples])
    sampler = PackedSampler(lengths=lengths, examples=np.arange(len(examples)), slots=a.slots, rows=rows)

    make = packer(lambda number: examples[number], a.slots)

    def batches() -> Iterator[tuple[int, list]]:
        for planned in sampler.steps():
            yield planned.epoch, [make(planned.rows, sampler.rows)]

    def update(progress: float) -> tuple[float, bool]:
        norm = step(optimiser, model.parameters(), clip=1.0)
        optimiser.zero_grad(set_to_none=True)
        return float(norm), True

    machine = StepContext(update=update, autocast=lambda: computing(FORMAT.name, torch.device("cpu")))
    loop = pretrain(model, batches(), corruption_of(settings), machine, progress=lambda n: 0.0)

    def one() -> tuple[int, float]:
        start = time.perf_counter()
        return next(loop).slots, time.perf_counter() - start

    return one


class Theirs(torch.nn.Module):
    """Code and time embeddings into a BertModel, a linear decoder over hidden positions."""

    def __init__(self, codes: int, a: argparse.Namespace) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=2,
            hidden_size=a.width,
            num_hidden_layers=a.layers,
            num_attention_heads=4,
            intermediate_size=4 * a.width,
            max_position_embeddings=a.slots,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
        self.code, self.time = torch.nn.Embedding(codes + 1, a.width), torch.nn.Linear(2, a.width)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.decoder = torch.nn.Linear(a.width, codes)

    def forward(self, code: Any, clock: Any, mask: Any, hidden: Any, mask_id: int) -> Any:
        x = self.code(torch.where(hidden, mask_id, code)) + self.time(clock)
        states = self.bert(inputs_embeds=x, attention_mask=mask).last_hidden_state
        return torch.nn.functional.cross_entropy(self.decoder(states[hidden]).float(), code[hidden])


def theirs(examples: list, codes: int, a: argparse.Namespace, *, precision: str, by_length: bool) -> Stepper:
    torch.manual_seed(0)
    model = Theirs(codes, a).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rng = np.random.default_rng(0)

    def batches() -> Iterator[list]:
        while True:
            order = rng.permutation(len(examples))
            if by_length:
                order = order[np.argsort([len(examples[i]) for i in order], kind="stable")]
            groups = [order[i : i + a.batch] for i in range(0, len(order), a.batch)]
            for k in rng.permutation(len(groups)):
                yield [examples[i] for i in groups[k]]

    source = batches()

    def one() -> tuple[int, float]:
        mine = next(source)
        start = time.perf_counter()
        shape = (len(mine), max(len(e) for e in mine))
        code, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        clock = torch.zeros(*shape, 2)
        for row, e in enumerate(mine):
            code[row, : len(e)] = torch.from_numpy(e.values["code"])
            clock[row, : len(e), 0] = torch.from_numpy(np.log1p(e.values["hours"]))
            clock[row, : len(e), 1] = torch.from_numpy(e.values["value"])
            mask[row, : len(e)] = 1
        hidden = (torch.rand(shape) < 0.15) & (mask == 1)
        with computing(precision, torch.device("cpu")):
            loss = model(code, clock, mask, hidden, codes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        return int(mask.sum()), time.perf_counter() - start

    return one


if __name__ == "__main__":
    main()
