"""`unmask pretrain text`: raw text -> tokenizer -> cache -> masked model -> a folder that transformers loads."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.co_occurrence import Factors, co_occurrences, factors, information
from unmask.core.detection import ReplacedSlotDetection
from unmask.core.model import MaskedModel
from unmask.core.sampler import PackedSampler
from unmask.core.token_codec import TokenCodec
from unmask.elsewhere import ARGUMENTS, REFUSED
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Learned, Norm, Rotary, SinCos
from unmask.encoder.local_global import LAYERS, attend_to_neighbours, pass_on
from unmask.engines.folder import prepared_at, prepared_settings
from unmask.errors import UserError
from unmask.evaluation.card import source_name
from unmask.evaluation.shown import Printed, Shown
from unmask.families import Family, by_name
from unmask.guessed import also_called
from unmask.modalities.text.network.card import corpus_of
from unmask.modalities.text.network.folder import assemble, new_text_model, save_folder
from unmask.modalities.text.reading.sources import in_memory, resolve
from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides
from unmask.modalities.text.tokens.batches import batch_maker, corruption_of, measuring_corruption, validation_batches
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.corpus import build_tokenizer, check_unknown
from unmask.modalities.text.tokens.prepare import open_prepared
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.training.checkpoint import checkpoints
from unmask.training.job import Job, ModelOfRun, RunResult
from unmask.training.pretraining import Pretrainable, pretrained
from unmask.training.same_run import started_with
from unmask.training.settings import TrainSettings, lasting, settings_from
from unmask.writing import makes_folder, write_json_lines, written

COUNTED = 16_000_000
"""Tokens from which the counts are taken that a new model begins with."""

CORPUS = "the corpus"
"""In a run's fingerprint: the digest of its tokens."""
CO_OCCURRENCES = "co_occurrences.npz"
"""Of the run folder, until the run is finished: which tokens stand near which, for the model to begin with."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TextRun(ModelOfRun, Printed):
    """A finished text run: where it is, how it ended, what the corpus was."""

    folder: Path
    result: RunResult
    settings: TextSettings
    corpus: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return self.result.summary(self.folder, self.settings.train.seed, corpus=self.corpus)

    def shown(self) -> Shown:
        """Held-out loss and accuracy beside that of the most frequent token."""
        r, frequent = self.result, self.corpus.get("most_frequent")
        title = f"A masked language model, {r.steps} steps in {r.seconds:.0f} s: {self.folder}"
        if r.stopped == "signal":
            return Shown(title=title, notes=["stopped before its end: resume=True goes on"])
        held = {name: r.validation.get(f"validation_{name}", math.nan) for name in ("loss", "accuracy")}
        rows = [("loss (nats per hidden token)", held["loss"], None), ("accuracy", held["accuracy"], frequent)]
        return Shown(
            title=title,
            columns=("held-out tokens", "model", "always the most frequent"),
            rows=rows if math.isfinite(held["loss"]) else [],
            notes=[] if math.isfinite(held["loss"]) else ["no texts were held out: nothing is judged"],
            next_step='run.model.fill("Return the [MASK] of rows."), run.model.save(folder)',
        )


TEXTS = "texts.jsonl"
"""In the folder of a run on texts in memory: these texts."""


class TextPretraining(Pretrainable[TextRun]):
    """A new masked language model on raw text; see `pretrain`."""

    def __init__(self, data: Any, settings: TextSettings) -> None:
        self.settings, self.texts, self.rule = settings, in_memory(data), dict[str, float]()
        self.data = [str(data)] if isinstance(data, str | Path) else [] if self.texts is not None else list(data)

    def prepare(self, out: Path, *, resume: bool, first: bool, say: Callable[[str], None]) -> None:
        started = resume and bool(checkpoints(out))
        if (folder := prepared_at(self.data, "text")) is not None:
            self.tokenizer, self.cache = open_prepared(folder, self.settings)
            say(f"{folder}: prepared, {self.cache.meta['tokens']:,} tokens")
        else:
            data = resolve(self.data, out, say)
            if self.texts is not None:  # a file of the run, so that it goes on with the same
                data = [str(out / TEXTS)]
                if first:
                    out.mkdir(parents=True, exist_ok=True)
                    write_json_lines(({"text": text} for text in self.texts), data[0])
            self.tokenizer = build_tokenizer(data, out, self.settings, say, reuse=started or not first)
            self.tokenizer.require_mask()
            expected = started_with(out, CORPUS) if started else None
            how: dict[str, Any] = {"resumed": started, "expected": expected, "say": say}
            self.cache = TokenCache.build(data, self.tokenizer, out / "cache", settings=self.settings, **how)
        if self.counts_neighbours and not started and self._co_occurrences(out) is None:
            self._count_co_occurrences(out, say)

    @property
    def counts_neighbours(self) -> bool:
        """Whether the model begins with which tokens stand near which."""
        return self.settings.initial_embeddings == "co_occurrence" and self.settings.objective != "detection"

    @property
    def _co_occurrences_of(self) -> str:
        """What the co-occurrences were counted in and made for: a file that says otherwise is another run's."""
        return f"{self.cache.digest()} {self.settings.width} {self.settings.train.seed}"

    def _count_co_occurrences(self, out: Path, say: Callable[[str], None]) -> None:
        """Which tokens stand near which, for all processes to begin with."""
        began = time.monotonic()
        counts = co_occurrences(self.cache.pieces(COUNTED), self.cache.meta["vocabulary"])
        found = factors(information(counts), self.settings.width, seed=self.settings.train.seed)
        out.mkdir(parents=True, exist_ok=True)
        with written(out / CO_OCCURRENCES) as file:
            np.savez(file, of=self._co_occurrences_of, **vars(found))
        say(f"embeddings begin with which tokens stand together ({time.monotonic() - began:.0f} s)")

    def _co_occurrences(self, out: Path) -> Factors | None:
        """What was counted; None where it was not asked for, or where the run was begun: see its checkpoints."""
        if not self.counts_neighbours or not (out / CO_OCCURRENCES).exists():
            return None
        with np.load(out / CO_OCCURRENCES) as file:
            arrays = dict(file)
        return Factors(**arrays) if str(arrays.pop("of")) == self._co_occurrences_of else None

    def job(self, out: Path, say: Callable[[str], None]) -> Job:
        cache = self.cache
        check_unknown(cache.unknown, say)
        model, self.family = build_model(self.settings, self.tokenizer)
        frequencies = cache.frequencies(most=COUNTED)
        unknown = self.tokenizer.unk_id
        if special := [i for i in self.tokenizer.special_ids.tolist() if i != unknown and frequencies[i]]:
            named = ", ".join(f"{self.tokenizer.token(i)} {frequencies[i]:,}" for i in special)
            say(f"warning: special tokens are written in the texts ({named}): they are read as such, and never learnt")
        if isinstance(model, MaskedModel):
            start_from_counts(model, self.settings, frequencies, self._co_occurrences(out))
        size = sum(p.numel() for p in model.parameters())
        say(f"{len(cache.train)} training and {len(cache.validation)} held-out examples, {size / 1e6:.1f} M parameters")
        job = make_job(model, cache, self.tokenizer, self.settings)
        if share := self.settings.causal_share:
            say(f"the first {share:.0%} of the run predicts each token from those before it; the rest, hidden ones")
        return replace(job, corruption=replace(job.corruption, causal=share))

    def save(self, out: Path, model: torch.nn.Module) -> None:
        source = "texts in memory" if self.texts is not None else source_name(self.data)
        about = {"text": asdict(self.settings), "source": source, "lengths": lengths_of(self.cache)}
        about["trained_slots"] = self.settings.slots
        about["corpus"] = corpus = corpus_of(self.cache, self.tokenizer)
        self.rule = {k: v for k, v in corpus.items() if k == "most_frequent"}
        save: Callable[..., None] = save_detection if self.settings.objective == "detection" else save_folder
        save(out, model=model, tokenizer=self.tokenizer, family=self.family, settings=about)
        (out / CO_OCCURRENCES).unlink(missing_ok=True)

    def finished(self, out: Path, result: RunResult) -> TextRun:
        return TextRun(folder=out, result=result, settings=self.settings, corpus=counts(self.cache) | self.rule)

    def report(self, finished: TextRun) -> None:
        write_report(finished, causal=self.settings.causal_share)


@also_called(REFUSED, **ARGUMENTS)
@makes_folder
def pretrain(
    data: Any,
    out: str | Path | None = None,
    *,
    settings: TextSettings | TrainSettings | Mapping[str, Any] | None = None,
    resume: bool = False,
    console: bool = True,
    trackers: Sequence[str] = (),
    **overrides: Any,
) -> TextRun:
    """Pretrain a masked language model on raw text.

    Args:
        data: files, folders, globs, URLs of these or `hf:NAME`, see `unmask.modalities.text.reading.sources`; or the
            folder of a corpus that `prepare` has made; or texts: a column, a table with one column or a column
            `text`, a list.
        out: run folder: config.json, model.safetensors, tokenizer.json, unmask.json, metrics.jsonl, report.html; left
            out, a temporary one, which lives as long as the result.
        settings, overrides: fields of `TextSettings` and of its `train`, as keywords (`steps=60, width=128`), a dict or
            an object; default those that the corpus was prepared with, or `TextSettings()`.
        resume: continue the run in `out`; on a CPU with one process and as many threads, bit for bit as if never
            interrupted (runs bounded by minutes excepted: their schedule follows the clock).

    Raises:
        UserError: for anything wrong with the input, the settings or the folder.
    """
    assert out is not None  # of `makes_folder`
    kind = TextPretraining(data, TextSettings())
    if kind.texts is None:
        kind.settings = with_overrides(kind.settings, prepared_settings(kind.data, "text"))
    kind.settings = settings_from(kind.settings, settings, overrides, with_overrides, RECIPES)
    return pretrained(kind, out, resume=resume, console=console, trackers=trackers)


def counts(cache: TokenCache) -> dict[str, int]:
    """How many examples a corpus has."""
    return {"examples": len(cache), "training": len(cache.train), "held_out": len(cache.validation)}


def lengths_of(cache: TokenCache) -> list[int]:
    """101 quantiles of the training examples' lengths in tokens, without special ones: from these `generate` draws."""
    around = len(cache.meta["before"]) + len(cache.meta["after"])
    return np.quantile(cache.lengths[cache.train] - around, np.linspace(0, 1, 101), method="nearest").tolist()


def make_job(
    model: torch.nn.Module, cache: TokenCache, tokenizer: Tokenizer, settings: TextSettings, **more: Any
) -> Job:
    """Tie a model, a corpus and a corruption together for the run."""
    if not len(cache.train):
        raise UserError("no training examples: the corpus is too small to hold any out", hint="Give more text.")
    special = tokenizer.special_ids
    sampler = PackedSampler(
        lengths=cache.lengths,
        examples=np.asarray(cache.train),
        slots=settings.slots,
        rows=settings.train.batch_slots // settings.slots,
        seed=settings.train.seed,
    )
    return Job(
        model=model,
        sampler=sampler,
        make_batch=batch_maker(cache, settings.slots, special),
        corruption=corruption_of(settings, cache),
        validation=validation_batches(
            cache,
            np.asarray(cache.validation),
            slots=settings.slots,
            special_ids=special,
            batch_slots=settings.train.batch_slots,
        ),
        validation_corruption=measuring_corruption(),
        fingerprint={  # what must not change between a run and its resumption
            "settings": lasting(asdict(settings)),
            "the tokenizer": tokenizer.fingerprint(),
            CORPUS: cache.digest(),
        },
        **more,
    )


def write_report(finished: TextRun, *, notes: Sequence[str] = (), causal: float = 0.0) -> Path:
    """report.html of a run: the figures, the curves, and what the model makes of held-out text; `causal` is the share
    of the run whose training loss is of tokens predicted from those before them."""
    from unmask.evaluation.report import Report, training_curves

    r = finished.result
    report = Report("Masked pretraining on text", str(finished.folder))
    facts: dict[str, Any] = {
        "Held-out accuracy": r.held_out("accuracy", "{:.1%}"),
        "Held-out loss": r.held_out("loss", "{:.3f} nats"),
        "Steps": r.steps,
        "Time": f"{r.seconds:.0f} s",
        "Real tokens/s": f"{r.slots_per_second:,.0f}",
        "Padding waste": f"{r.padding_waste:.1%}",
        "Precision": r.precision,
    }
    if causal:
        facts["Training loss and accuracy"] = f"of each token from those before it in the first {causal:.0%} of the run"
    report.facts(facts)
    if notes:
        report.section("Did it help?", "\n\n".join(notes))
    report.section("Training", training_curves(finished.folder / "metrics.jsonl"))
    report.settings(finished.settings)
    return report.write(finished.folder / "report.html")


def build_model(settings: TextSettings, tokenizer: Tokenizer) -> tuple[Any, Any]:
    """A new model with random weights, made from the seed alone."""
    torch.manual_seed(settings.train.seed)
    if settings.objective == "detection":
        return new_detection(settings, tokenizer)
    decoder = None
    if settings.architecture == "visible_only":
        # Narrower and shallower than the encoder, as in MAE (He et al. 2022, table 1).
        width = max(64, settings.width // 4 * 2)  # even, for sines and cosines
        heads = next(n for n in range(width // 32, 0, -1) if width % n == 0)
        decoder = EncoderConfig(
            width=width,
            layers=max(1, settings.layers // 4),
            heads=heads,
            positions=SinCos(),
            feedforward=MLP(inner=4 * width),
        )
    model, family = new_text_model(
        settings.recipe,
        vocabulary=tokenizer.vocab_size,
        width=settings.width,
        layers=settings.layers,
        heads=settings.attention_heads,
        inner=settings.inner,
        slots=settings.slots,
        tokenizer=tokenizer,
        dropout=settings.dropout,
        decoder=decoder,
    )
    if attends_to_neighbours(settings, model):
        attend_to_neighbours(model.codec.word.weight, [layer.attention for layer in model.encoder.layers[:LAYERS]])
    return model, family


def attends_to_neighbours(settings: TextSettings, model: Any) -> bool:
    """Whether the first heads of a new model look at the slots beside them."""
    return settings.initial_attention == "neighbours" and isinstance(model.encoder.config.positions, Rotary)


def start_from_counts(model: Any, settings: TextSettings, frequencies: np.ndarray, factored: Factors | None) -> None:
    """Let a new model begin as a rule that counting gives, before it learns more than that."""
    model.codec.start_from(frequencies, factored)
    if factored is not None and attends_to_neighbours(settings, model):
        pass_on(torch.from_numpy(factored.axes), [layer.attention for layer in model.encoder.layers[:LAYERS]])


GENERATOR = "generator"
"""Folder of the generator, in the discriminator's."""


def new_detection(settings: TextSettings, tokenizer: Tokenizer) -> tuple[ReplacedSlotDetection[TokenCodec], Family]:
    """Generator and discriminator with random weights, in ELECTRA's shape; the tables of tokens, token types and
    positions are one (section 3.2).

    The generator has the discriminator's layers and `settings.generator` of its width and feed-forward, to the nearest
    even number, in heads about as wide as the discriminator's.
    """
    width, depth = settings.width, settings.width // settings.attention_heads
    norm, inner = Norm(placement="post", epsilon=1e-12), settings.inner or 4 * settings.width
    shape: dict[str, Any] = {
        "layers": settings.layers,
        "norm": norm,
        "positions": Learned(slots=max(settings.slots, 16)),
        "dropout": settings.dropout,
    }
    encoder = EncoderConfig(width=width, heads=settings.attention_heads, feedforward=MLP(inner=inner), **shape)
    narrow = max(2, 2 * round(width * settings.generator / 2))
    heads = next(n for n in range(max(1, round(narrow / depth)), 0, -1) if narrow % n == 0)
    small = EncoderConfig(
        width=narrow,
        heads=heads,
        feedforward=MLP(inner=max(1, round(inner * narrow / width))),
        embedding_width=width,
        **shape,
    )
    codec = {"types": 2, "head_norm": norm, "width": width, "encoder_width": small.width}
    generator = assemble(tokenizer.vocab_size, tokenizer, small, codec, None)
    model = ReplacedSlotDetection(generator, make_encoder(encoder))
    model.encoder.stem.positions = generator.encoder.stem.positions
    return model, by_name("electra")


def save_detection(
    out: Path,
    model: ReplacedSlotDetection[TokenCodec],
    tokenizer: Tokenizer,
    family: Family,
    settings: Mapping[str, Any],
) -> None:
    """Write the discriminator into `out` and the generator into its subfolder; transformers loads both."""
    generator = model.generator
    save_folder(out / GENERATOR, model=generator, tokenizer=tokenizer, family=family, settings=settings)
    bare = dataclasses.replace(
        generator.codec.config, head=False, output_bias=False, encoder_width=generator.codec.config.width
    )
    codec = TokenCodec(bare)
    codec.word, codec.token_type = generator.codec.word, generator.codec.token_type
    head: dict[str, torch.Tensor] = {}
    for name, module in (("dense", model.transform), ("dense_prediction", model.verdict)):
        head |= {f"discriminator_predictions.{name}.{k}": v for k, v in module.state_dict().items()}
    save_folder(
        out,
        model=MaskedModel(codec, model.encoder),
        tokenizer=tokenizer,
        family=family,
        passengers=head,
        hf_config={"architectures": ["ElectraForPreTraining"], "mask_token_id": tokenizer.mask_id},
        settings=settings,
    )
