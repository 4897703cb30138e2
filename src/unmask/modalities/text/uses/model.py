"""A trained text model in use: fill, score, embed, evaluate, inspect. `unmask.load(path)` gives one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from unmask.core.batch import Example
from unmask.core.embed import embed
from unmask.core.score import Score, score
from unmask.encoder.config import Disentangled
from unmask.errors import UserError, check_choice
from unmask.evaluation.results import JudgedFigures, PredictedRows
from unmask.modalities.text.network.folder import LoadedText, load_folder, save_folder
from unmask.modalities.text.network.sentence_files import write_sentences
from unmask.modalities.text.network.sentence_vectors import prompted
from unmask.modalities.text.reading.sources import listed
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses import filling, generating
from unmask.modalities.text.uses.filling import count_longer, cut_notes, says_something, special_notes
from unmask.plugins import resolve
from unmask.training.precision import precision_of, resolve_device
from unmask.verbs import Usable

if TYPE_CHECKING:
    from unmask.modalities.text.uses.padding_free import PaddingFreeEmbedder


@dataclass(repr=False)
class TextModel(LoadedText, Usable):
    """A masked language model and its tokenizer, in use; `TextModel("folder")` loads one."""

    kind = "text"

    guesses: ClassVar[Mapping[str, Any]] = {
        "get_sentence_embedding_dimension": lambda model: lambda: model.model.encoder.config.width,
        "max_seq_length": lambda model: model.embedded_slots,
        **Usable.guesses,
    }

    folder: Any
    device: Any = "auto"
    precision: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.folder, str | Path):
            vars(self).update(vars(load(self.folder, device=self.device, precision=self.precision)))
        self.model.encoder.batch_invariant = True

    @cached_property
    def padding_free(self) -> PaddingFreeEmbedder | None:
        """The embedder without padding, None where the encoder is of another kind."""
        if self.precision != "int8":
            return self._new_padding_free([])
        from unmask.modalities.text.reading.documents import docstrings

        return self._new_padding_free([text for _, text in docstrings(40_000)])

    def _new_padding_free(self, texts: Sequence[str]) -> PaddingFreeEmbedder | None:
        """For int8 `texts` show how large the activations get."""
        from unmask.modalities.text.uses.padding_free import PaddingFreeEmbedder

        if self.device.type != "cpu":
            return None
        ids = self.tokenizer.ids(list(texts)[:256], max_slots=min(self.slots, 128))
        return PaddingFreeEmbedder.of(self.model, self.precision, ids)

    def calibrate(self, texts: Sequence[str]) -> None:
        """Quantise anew, with texts like those to come (some hundred; by default docstrings of installed packages)."""
        self.__dict__["padding_free"] = self._new_padding_free(texts)

    fill = filling.fill
    generate = generating.generate
    answers = filling.answers

    def score(self, texts: str | Sequence[str], *, mode: str = "unit") -> PredictedRows:
        """Pseudo-log-likelihood of texts: text, score (nats, summed), slots (tokens scored), unscored (tokens that are
        not), perplexity; score and perplexity are None where nothing is scored.

        Unknown words ([UNK]) and special tokens in a text ([SEP]) are not scored, as they are never predicted in
        training: compare texts that have none, or as many.
        """
        self.require_head()
        check_choice("mode", mode, ("unit", "slot"))
        texts = listed(texts)
        with self.context():
            examples = self.examples(texts)
            found = score(self.model, examples, slots=self.slots, mode=mode)  # type: ignore[arg-type]
        rows = [
            {"text": text, **scored(self.tokenizer, example, one)}
            for text, example, one in zip(texts, examples, found, strict=True)
        ]
        return PredictedRows(rows, "Pseudo-log-likelihood of {} texts, in nats: the higher, the more natural")

    @property
    def embedded_slots(self) -> int:
        """Longest text that `embed` reads to its end: what the model or a sentence-transformers folder says."""
        return min(self.slots, self.folder.sentences.slots or self.slots)

    def too_long(self, texts: Sequence[str], *, prompt: str | None = None, prompt_name: str | None = None) -> int:
        """How many of the texts `embed` cuts."""
        texts = prompted(texts, self.folder.sentences.prompt(prompt, prompt_name))
        return count_longer(self.tokenizer, texts, self.embedded_slots)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        say: Callable[[str], None] | None = None,
    ) -> np.ndarray:
        """(texts, width) vectors, order kept; of a sentence-transformers folder those of its `encode`.

        Args:
            texts: those longer than the model, or than a sentence-transformers folder says, are cut.
            pooling: mean, first, max or another of `unmask.core.embed.POOLINGS`; default as a sentence-transformers
                folder says, else mean.
            normalise: to length 1; default as a sentence-transformers folder says, else not.
            prompt, prompt_name: what is put in front of every text, itself or by the folder's name for it ("query");
                default the folder's default prompt, where it has one.
            say: called with how many texts are cut, where any is.

        Raises:
            UserError: an unknown pooling or prompt.
        """
        sentences, texts = self.folder.sentences, listed(texts)
        pooling, front = sentences.checked_pooling(pooling), sentences.prompt(prompt, prompt_name)
        texts, slots = prompted(texts, front), self.embedded_slots
        if say is not None:
            for line in cut_notes(count_longer(self.tokenizer, texts, slots), len(texts), slots):
                say(line)
        unpooled = sentences.unpooled_slots(front, self.tokenizer)
        return self.vectors(texts, None, pooling=pooling, normalise=normalise, unpooled=unpooled)

    def vectors(
        self,
        texts: Sequence[str],
        ids: Sequence[np.ndarray] | None,
        *,
        pooling: str,
        normalise: bool | None,
        unpooled: int = 0,
    ) -> np.ndarray:
        """`embed` of texts that have their prompt in front.

        Args:
            ids: of the texts, where they are known: (slots,) each, no longer than `embedded_slots`.
            unpooled: slots of the prompt, which are read and not pooled.
        """
        slots = self.embedded_slots
        if self.padding_free is not None:
            ids = self.tokenizer.ids(texts, max_slots=slots) if ids is None else ids
            found = self.padding_free.embed(ids, pooling=pooling, unpooled=unpooled)
        else:
            with self.context():
                found = embed(
                    self.model,
                    self.examples(texts, max_slots=slots),
                    slots=slots,
                    pooling=pooling,
                    unpooled=unpooled,
                    shared_rows=not isinstance(self.model.encoder.config.positions, Disentangled),
                    batch_slots=2048,
                )
        return self.folder.sentences.after_pooling(found, normalise)

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        normalize_embeddings: bool | None = None,
        convert_to_tensor: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
    ) -> Any:
        """`embed`, as sentence-transformers calls it: (texts, width), or (width,) of one text.

        Args:
            convert_to_tensor: a tensor instead of an array; convert_to_numpy=False: a list of tensors.
            batch_size, show_progress_bar: taken, and without effect: texts are batched by their length.
        """
        found = self.embed(texts, normalise=normalize_embeddings, prompt=prompt, prompt_name=prompt_name)
        vectors = found if convert_to_numpy and not convert_to_tensor else torch.from_numpy(found)
        if not (convert_to_numpy or convert_to_tensor or isinstance(texts, str)):
            return list(vectors)
        return vectors[0] if isinstance(texts, str) else vectors

    def similarity(self, texts: Any, others: Any) -> np.ndarray:
        """(texts, others): how alike texts, or their vectors, are: by the cosine, or as the folder compares them."""
        first, second = (x if hasattr(x, "shape") else self.embed(x) for x in (texts, others))
        return np.asarray(self.folder.sentences.similarity(np.atleast_2d(first), np.atleast_2d(second)))

    def zero_shot(self, texts: str | Sequence[str], labels: Sequence[str], **options: Any) -> PredictedRows:
        """Label texts without training: see `unmask.zero_shot`."""
        rows: PredictedRows = resolve("unmask.text:zero_shot")(self, texts, labels, **options)
        return rows

    @property
    def classes_(self) -> list[str]:
        """The labels of a model that classifies texts, in the order of `predict_proba`; of another there are none."""
        models = "unmask.modalities.text.tasks.model"
        if resolve(f"{models}:task_named")(self) != "classify":
            return []
        task = resolve(f"{models}:load")(self).task
        return [] if task.problem == "regression" else list(task.labels)

    def predict_proba(self, texts: Any) -> np.ndarray:
        """(texts, classes) probabilities of the labels `classes_`; NaN where a text says nothing."""
        rows, labels = self.predict(texts), self.classes_
        if any("probabilities" not in row for row in rows):
            raise UserError(
                "predict_proba: no probabilities of classes", hint="model.predict(texts) says what it gives."
            )
        return np.array([[(row["probabilities"] or {}).get(label, np.nan) for label in labels] for row in rows])

    label = filling.label

    def evaluate(
        self,
        texts: Any,
        labels: Any = None,
        *,
        ratio: float = 0.15,
        seed: int = 0,
        frequencies: np.ndarray | None = None,
        nelbo_draws: int = 4,
        nelbo_tokens: int | None = 16_384,
        say: Callable[[str], None] = lambda line: None,
    ) -> JudgedFigures:
        """Loss, perplexity and accuracy on hidden tokens and a bound on the likelihood of the texts (see
        `unmask.modalities.text.uses.evaluate`; `nelbo_draws=0` leaves it out); of a model that was fine-tuned the
        figures of its task on labelled data (`unmask.text.evaluate`).

        Args:
            frequencies: how often each token occurred in training, by id; default as the run's folder still knows, else
                in these texts.
            say: called with how many tokens the tokenizer does not know, where it is more than one in a thousand, and
                how many texts hold special tokens.
        """
        from unmask.modalities.text.uses.evaluate import evaluate, judged_shown, likelihood, training_frequencies

        if resolve("unmask.modalities.text.tasks.model:task_named")(self):
            usual = {"ratio": ratio == 0.15, "frequencies": frequencies is None}
            usual |= {"nelbo_draws": nelbo_draws == 4, "nelbo_tokens": nelbo_tokens == 16_384}
            unread = {name: True for name, same in usual.items() if not same}  # which it refuses by name
            judged: JudgedFigures = resolve("unmask.text:evaluate")(self, texts, labels, seed=seed, say=say, **unread)
            return judged
        if labels is not None:
            raise UserError("labels of a model without a task", hint="Fine-tune it: model.finetune(texts, labels).")
        texts = listed(texts)
        for line in special_notes(self.tokenizer, texts, then=", and they are not predicted"):
            say(line)
        if frequencies is None and self.folder.path is not None:
            frequencies = training_frequencies(self.folder.path, self.tokenizer.vocab_size)
        found = evaluate(self, texts, ratio=ratio, seed=seed, frequencies=frequencies, say=say)
        if nelbo_draws:
            more = likelihood(
                self, texts, draws=nelbo_draws, most_tokens=nelbo_tokens, seed=seed, frequencies=frequencies
            )
            found |= more | {"intervals": found["intervals"] | more["intervals"]}
        return JudgedFigures(found, judged_shown)

    def inspect(self) -> dict[str, Any]:
        """Parameters, context, FLOPs per token, memory by precision."""
        config, codec = self.model.encoder.config, self.model.codec
        total = sum(p.numel() for p in self.model.parameters())
        table = codec.word.weight.numel()
        head = 2 * codec.config.vocabulary * codec.config.width
        body = config.flops_per_slot(self.slots)
        return {
            "kind": "text",
            "family": self.folder.family.name,
            "parameters": total,
            "embedding_parameters": table,
            "layers": config.layers,
            "width": config.width,
            "heads": config.heads,
            "vocabulary": codec.config.vocabulary,
            "slots": self.slots,
            "longest_context": self.slots,
            "flops_per_token": body + head,
            "head_share_of_flops": head / (body + head),
            "memory_mb_fp32": total * 4 / 1e6,
            "memory_mb_bf16": total * 2 / 1e6,
            "memory_mb_int8": total / 1e6,
            "predicts_hidden_tokens": self.folder.why_not_masked() is None,
            "task_head": head_.kind if (head_ := self.folder.head()) else None,
            "tensors_left_random": self.folder.random,
            "tensors_ignored": self.folder.ignored,
            **({"vectors": self.folder.sentences.to_dict()} if self.folder.sentences.given else {}),
        }

    nearest_words = filling.nearest_words

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Save as a Hugging Face folder: what was loaded, under its names and in its number format, or in `dtype`; with
        sentence-transformers' files where the model came with them."""
        f = self.folder
        f.refuse_baseline()
        save_folder(
            folder,
            model=f.model,
            tokenizer=f.tokenizer,
            family=f.family,
            hf_config=f.hf_config,
            passengers=f.passengers,
            aliases=f.aliases,
            settings=f.settings,
            like=f.loaded,
            dtype=dtype,
        )
        if f.sentences.given and (f.settings.get("task") or {}).get("name") != "similarity":
            write_sentences(Path(folder), f.sentences, self.model.encoder.config.width, self.embedded_slots)


def load(path: str | Path, *, device: str = "auto", precision: str = "auto") -> TextModel:
    """Load a text model from a folder or hub name.

    Args:
        precision: 'fp32', 'bf16', 'int8' or 'auto'. 'auto' computes in fp32 for models so small that casting costs more
            than it saves (under 2 M parameters), else measures. 'int8' embeds in 8 bits.

    Raises:
        UserError: naming what is missing, corrupt or does not fit together.
    """
    where = resolve_device(device)
    if precision == "int8" and where.type != "cpu":
        raise UserError("precision=int8 is built for CPUs", hint="Use bf16 on this device.")
    folder = load_folder(path)
    name = "int8" if precision == "int8" else precision_of(folder.model, precision, where)
    folder.model.to(where).eval()
    return TextModel(folder=folder, device=where, precision=name)


def scored(tokenizer: Tokenizer, example: Example, found: Score) -> dict[str, Any]:
    """The figures of a text's score: score, slots, unscored and perplexity; score and perplexity are None where nothing
    is scored, or white space alone."""
    ids = example.values["token"]
    around = len(tokenizer.before) + len(tokenizer.after)
    unscored = int(np.isin(ids, tokenizer.special_ids).sum()) - around
    if not says_something(tokenizer, ids):
        return {"score": None, "slots": 0, "unscored": unscored, "perplexity": None}
    perplexity = math.exp(min(-found.total / found.slots, 700.0))
    return {"score": found.total, "slots": found.slots, "unscored": unscored, "perplexity": perplexity}
