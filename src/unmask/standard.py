"""A model with all shared uses, for a modality that brings its examples and its codec and leaves the rest to unmask.

A subclass says how data become examples, which model predicts them, what is hidden and how filled values are written;
it inherits `pretrain`, `load`, `fill`, `score`, `embed`, `evaluate` and `inspect`, which `unmask.cli.standard` calls.
`examples/dna` is one.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors.torch import load_model, save_model

from unmask.core.batch import Example, packer, place_best_fit
from unmask.core.corruption import ALL_MASK, Corruption
from unmask.core.embed import embed
from unmask.core.fill import fill_examples
from unmask.core.inference import first_slots, inference_mode, packed_batches
from unmask.core.model import MaskedModel
from unmask.core.pretrain import validate
from unmask.core.sampler import PackedSampler
from unmask.core.score import score
from unmask.core.token_codec import TokenCodec, TokenCodecConfig
from unmask.encoder.build import make_encoder
from unmask.encoder.config import EncoderConfig, Rotary
from unmask.errors import UserError
from unmask.evaluation.card import add_card
from unmask.evaluation.charts import number
from unmask.evaluation.report import Report, training_curves
from unmask.files import check_weights, damaged, read_object
from unmask.training.job import Job, RunResult
from unmask.training.precision import resolve_device
from unmask.training.pretraining import Pretrainable, pretrained
from unmask.training.same_run import digest
from unmask.training.settings import apply_run_overrides, lasting
from unmask.version import __version__
from unmask.writing import brought_to_an_end, demo_folder, replace_json, written_folder

Named = Sequence[tuple[str, Example]]
"""Examples with their names, in the order of the data."""
HOLDOUT = 0.1
"""Share of the examples that a run holds out."""


def token_model(*, vocabulary: int, mask_id: int, special_ids: Sequence[int], width: int, layers: int) -> MaskedModel:
    """A masked model of tokens (channel "token") with random weights: an encoder with rotary positions, tied
    embeddings.

    Args:
        vocabulary: how many tokens there are.
        mask_id: the token that stands in hidden slots.
        special_ids: tokens that are never predicted, the mask among them.
    """
    about = TokenCodecConfig(
        vocabulary=vocabulary, width=width, encoder_width=width, mask_id=mask_id, special_ids=tuple(special_ids)
    )
    config = EncoderConfig(width=width, layers=layers, heads=max(1, width // 64), positions=Rotary())
    return MaskedModel(TokenCodec(about), make_encoder(config))


class StandardModel(ABC):
    """A masked model of one modality; `kind` is the modality's name, `Settings` its settings.

    The settings are a frozen dataclass with the fields `slots` (longest example) and `train` (a `TrainSettings`).

    Attributes:
        model: the masked model.
        settings: what it was made by.
        device, precision: where and how it computes.
    """

    kind: ClassVar[str]
    Settings: ClassVar[type]

    def __init__(self, model: MaskedModel, settings: Any, device: torch.device) -> None:
        self.model, self.settings, self.device, self.precision = model.to(device), settings, device, "fp32"

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.model.parameters())
        return f"{type(self).__name__}({self.kind}, {size / 1e6:.3g} M parameters, up to {self.settings.slots} slots)"

    @classmethod
    @abstractmethod
    def new_model(cls, settings: Any) -> MaskedModel:
        """A model with random weights."""

    @abstractmethod
    def read(self, data: Any) -> Named:
        """The examples of some data, none longer than `settings.slots`; missing slots are those to fill.

        Raises:
            UserError: naming what is wrong with the data, and where.
        """

    @abstractmethod
    def corruption(self) -> Corruption:
        """What is hidden in training, and what stands there instead."""

    @abstractmethod
    def shown(self, example: Example, values: dict[str, np.ndarray]) -> Any:
        """An example with filled values, as people write it."""

    def learn_rules(self, examples: Sequence[Example]) -> None:
        """Look at the training examples before training: for trivial rules that `evaluate` sets beside the model."""
        return

    @classmethod
    def demo_data(cls, folder: Path, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        """Data for `unmask demo`, written below a folder: what to train on, what to evaluate on, and
        settings by key."""
        raise UserError(f"no demo of {cls.kind}", hint="Its model class has no demo_data.")

    @classmethod
    def pretrain(
        cls, data: Any, out: str | Path, *, settings: Any, resume: bool = False, console: bool = True
    ) -> RunResult:
        """Train a model on data and write it to a folder.

        Raises:
            UserError: what is wrong with the data, the settings or the folder.
        """
        return pretrained(_Pretraining(cls, data, settings), out, resume=resume, console=console)

    @classmethod
    def run_demo(cls, out: str | Path, *, minutes: float = 1.0, seed: int = 0) -> dict[str, Any]:
        """Train on the data of `demo_data` and evaluate; what every demo returns.

        Raises:
            UserError: `out` exists and is not an earlier demo, or there is no demo.
        """
        out = demo_folder(out)
        train, held_out, chosen = cls.demo_data(out, seed)
        settings = apply_run_overrides(cls.Settings(), {**chosen, "minutes": minutes, "seed": seed})
        result = cls.pretrain(train, out / "model", settings=settings)
        found = cls.load(out / "model").evaluate(held_out, seed=seed)
        replace_json(out / "demo.json", found)
        lines = [f"{name.replace('_', ' ')}: {number(value)}" for name, value in found.items()]
        about = {"report": str(out / "model" / "report.html"), "device": result.device, "precision": result.precision}
        return {**found, **about, "lines": lines}

    def report(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write report.html into the folder of a run."""
        page = Report(f"Masked pretraining: {self.kind}", str(folder)).facts(facts)
        page.section("Training", training_curves(folder / "metrics.jsonl"))
        page.settings(self.settings).write(folder / "report.html")

    def job(self, examples: Sequence[Example], seen: np.ndarray, held: np.ndarray) -> Job:
        """A run on the examples of numbers `seen`, judged by those of numbers `held`."""
        settings, corruption = self.settings, self.corruption()
        lengths = np.array([len(example) for example in examples])
        rows = max(1, settings.train.batch_slots // settings.slots)
        make, measuring = packer(lambda number: examples[number], settings.slots), self._measuring()
        placed = [[int(held[i]) for i in row] for row in place_best_fit(lengths[held], settings.slots)]
        return Job(
            model=self.model,
            sampler=PackedSampler(
                lengths=lengths, examples=seen, slots=settings.slots, rows=rows, seed=settings.train.seed
            ),
            make_batch=make,
            corruption=corruption,
            validation=[make(placed[i : i + rows], min(rows, len(placed))) for i in range(0, len(placed), rows)],
            validation_corruption=measuring,
            fingerprint={
                "settings": lasting(asdict(settings)),
                "the data": digest([], *(x for example in examples for x in example.values.values())),
            },
        )

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder, whole or not at all."""
        about = {"kind": self.kind, "version": __version__, "settings": asdict(self.settings)}
        with written_folder(folder) as new:
            save_model(self.model, str(new / "model.safetensors"))
            (new / "unmask.json").write_text(json.dumps(about), encoding="utf-8")
            add_card(new, folder)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", precision: str = "auto") -> Self:
        """The model in a folder.

        Raises:
            UserError: a file is missing or damaged, or another precision than fp32 is asked for.
        """
        if precision not in ("auto", "fp32"):
            raise UserError(f"precision={precision}", hint=f"Models of {cls.kind} compute in fp32.")
        brought_to_an_end(Path(folder))
        with damaged(folder):
            about = read_object(Path(folder) / "unmask.json") or {}
            check_weights(folder, about)
            settings = apply_run_overrides(cls.Settings(), about.get("settings", {}))
            model = cls.new_model(settings)
            load_model(model, str(Path(folder) / "model.safetensors"))
        return cls(model.eval(), settings, resolve_device(device))

    def fill(self, data: Any, *, steps: int = 1, temperature: float = 0.0, seed: int = 0) -> list[dict[str, Any]]:
        """Fill the missing slots of every example: name, filled, slots (an entry per slot that was filled) and
        log_probability (joint, in nats); arguments as `unmask.core.fill.fill` has them."""
        named = self.read(data)
        examples = [one for _, one in named]
        missing = [np.zeros(0, int) if e.observed is None else np.flatnonzero(~e.observed) for e in examples]
        draw = torch.Generator(self.device).manual_seed(seed)
        found = fill_examples(
            self.model,
            examples,
            missing,
            slots=self.settings.slots,
            steps=steps,
            temperature=temperature,
            generator=draw,
        )
        return [
            {
                "name": name,
                "filled": self.shown(one, done.values),
                "slots": [
                    {"slot": slot, "log_probability": p}
                    for slot, p in zip(done.slots.tolist(), done.log_prob.tolist(), strict=True)
                ],
                "log_probability": float(done.log_prob.sum()),
            }
            for (name, one), done in zip(named, found, strict=True)
        ]

    def score(self, data: Any) -> list[dict[str, Any]]:
        """Pseudo-log-likelihood of every example."""
        named = self.read(data)
        scores = score(self.model, [one for _, one in named], slots=self.settings.slots)
        return [{"name": n, "score": s.total, "slots": s.slots} for (n, _), s in zip(named, scores, strict=True)]

    def embed(self, data: Any) -> np.ndarray:
        """One vector per example, the mean of its slots' states."""
        return embed(self.model, [one for _, one in self.read(data)], slots=self.settings.slots)

    def predicted(self, examples: Named, seed: int) -> Iterator[tuple[Example, np.ndarray, dict[str, np.ndarray]]]:
        """(example, which slots were hidden, values with the likeliest ones there) of each, masked as in training.

        Examples share batches: they come once each, those of one batch after another.
        """
        corruption, every = self._measuring(), [one for _, one in examples]
        with inference_mode(self.model):
            for batch, numbers in packed_batches(every, self.settings.slots):
                batch, first = batch.to(self.device), first_slots(batch, len(numbers))
                hidden = corruption.draw(batch, seed=seed).to(self.device)
                found = self.model.codec.write(batch.values, hidden.flat, self.model(batch, hidden).mode())
                values = {channel: value.flatten(0, 1).cpu().numpy() for channel, value in found.items()}
                masked = hidden.grid(batch.shape).flatten().cpu().numpy()
                for number, start in zip(numbers.tolist(), first.tolist(), strict=True):
                    here = slice(start, start + len(every[number]))
                    yield every[number], masked[here], {channel: value[here] for channel, value in values.items()}

    def evaluate(self, data: Any, *, seed: int = 0) -> dict[str, Any]:
        """Loss per hidden slot of held-out data, in nats."""
        every = [one for _, one in self.read(data)]
        batches = (batch for batch, _ in packed_batches(every, self.settings.slots))
        found = validate(self.model, batches, self._measuring(), seed=seed, device=self.device)
        return {"rows": len(every), "loss": found["loss"], "hidden_slots": int(found["hidden_slots"])}

    def _measuring(self) -> Corruption:
        """What is hidden as in training, always the same, and masked wholly."""
        return dataclasses.replace(self.corruption(), replace=ALL_MASK, static=True)

    def inspect(self) -> dict[str, Any]:
        """Size and settings."""
        size = sum(p.numel() for p in self.model.parameters())
        return {"kind": self.kind, "parameters": size, "slots": self.settings.slots, "settings": asdict(self.settings)}


class _Pretraining(Pretrainable[RunResult]):
    """A new model of a kind that `StandardModel` serves."""

    def __init__(self, kind: type[StandardModel], data: Any, settings: Any) -> None:
        self.kind, self.data, self.settings = kind, data, settings

    def prepare(self, out: Path, *, resume: bool, first: bool, say: Callable[[str], None]) -> None:
        torch.manual_seed(self.train.seed)
        self.made = self.kind(self.kind.new_model(self.settings), self.settings, torch.device("cpu"))
        self.examples = [example for _, example in self.made.read(self.data)]
        if len(self.examples) < 2:
            raise UserError(
                f"{self.data}: {len(self.examples)} examples", hint="Two or more are needed: some are held out."
            )

    def job(self, out: Path, say: Callable[[str], None]) -> Job:
        order = np.random.default_rng(self.train.seed).permutation(len(self.examples))
        held, seen = np.split(order, [max(1, round(HOLDOUT * len(self.examples)))])
        self.made.learn_rules([self.examples[i] for i in seen])
        return self.made.job(self.examples, np.sort(seen), np.sort(held))

    def save(self, out: Path, model: Any) -> None:
        self.made.save(out)

    def finished(self, out: Path, result: RunResult) -> RunResult:
        self.out = out
        return result

    def report(self, finished: RunResult) -> None:
        loss = finished.held_out("loss", "{:.3f} nats")
        self.made.report(self.out, {"Held-out loss": loss, "Steps": finished.steps})
