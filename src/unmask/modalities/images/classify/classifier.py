"""A classifier on top of an image encoder: the network, and its uses once trained."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.model import MaskedModel
from unmask.errors import UserError, first_of, quoted, setting
from unmask.evaluation.results import JudgedFigures, PredictedRows
from unmask.guessed import also_called
from unmask.kernels.on_host import on_host, to_device
from unmask.modalities.images.classify.objectives import Objective, OneClass, objective_from
from unmask.modalities.images.network.card import judged_shown, scored
from unmask.modalities.images.network.codec import (
    PatchCodec,
    PatchCodecConfig,
    picture_gradients,
    picture_numbers,
    unpatchify,
)
from unmask.modalities.images.network.features import PASSING, cell_means, cells, pooled, settled
from unmask.modalities.images.network.folder import save_folder
from unmask.modalities.images.reading.account import tell_skipped
from unmask.modalities.images.reading.arrays import ImageSet, some_pictures
from unmask.modalities.images.reading.copies import several_labels
from unmask.modalities.images.reading.split import kept_together
from unmask.modalities.images.recipes import ATTRIBUTES
from unmask.verbs import Usable
from unmask.writing import write_json_lines

ClassPooling = Literal["mean", "first", "grid"]


class DropPath:
    """Stochastic depth (Huang et al. 2016): a block's output is left out for a random share of the rows while training.
    A forward hook of the block, so that the encoder itself knows nothing of it. `kept`: which rows keep the output;
    None draws them at every pass."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.kept: Tensor | None = None

    def draw(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """Booleans: which of so many rows keep the output."""
        return torch.rand(rows, generator=generator) >= self.share

    def __call__(self, module: nn.Module, _: Any, output: Tensor) -> Tensor:
        if not module.training or not self.share:
            return output
        kept = self.draw(len(output)) if self.kept is None else self.kept
        return output * to_device(kept.to(output.dtype) / (1 - self.share), output.device)[:, None, None]


class ClassifierNet(nn.Module):
    """Encoder with nothing hidden -> pooled patches (or the class token) -> norm -> linear. The norm stands behind the
    pooling, as in MAE's fine-tuning, and starts as the encoder's final one. With pooling 'grid' it stands before: the
    head reads what `embed(pooling="grid")` gives. With `gradients` it reads the oriented gradients of the whole picture
    beside (`codec.picture_gradients`)."""

    def __init__(
        self,
        model: MaskedModel[PatchCodec],
        classes: int,
        pooling: ClassPooling = "mean",
        drop_path: float = 0.0,
        gradients: bool = False,
    ) -> None:
        super().__init__()
        self.masked = model
        self.norm = model.encoder.final_norm
        model.encoder.final_norm = nn.Identity()
        self.read(pooling, gradients, classes)
        layers = model.encoder.layers
        self.drop_paths: list[DropPath] = []
        for number, layer in enumerate(layers if drop_path else ()):
            for block in (layer.attention, layer.feedforward):
                self.drop_paths.append(DropPath(drop_path * number / max(len(layers) - 1, 1)))
                block.register_forward_hook(self.drop_paths[-1])

    @property
    def config(self) -> PatchCodecConfig:
        """What the encoder was built for: size, patch and channels of pictures."""
        return self.masked.codec.config

    def read(self, pooling: ClassPooling, gradients: bool, classes: int) -> None:
        """Let a new head of so many outputs, near 0, read features of this kind."""
        if pooling == "first" and not self.config.class_token:
            raise UserError(
                "pooling=first, but the model has no class token", hint=f"Use {setting('pooling', 'mean')}."
            )
        self.pooling, self.gradients = pooling, gradients
        inputs = self.masked.encoder.config.width * (math.prod(cells(self.config.grid)) if pooling == "grid" else 1)
        inputs += picture_numbers(self.config.image) if gradients else 0
        self.head = nn.Linear(inputs, classes, device=self.device)
        nn.init.trunc_normal_(self.head.weight, std=2e-5)
        nn.init.zeros_(self.head.bias)

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return self.masked.codec.patch.weight.device

    def forward(self, batch: PackedBatch) -> Float[Tensor, "rows classes"]:
        return self.head(self.features(batch)).float()

    def features(self, batch: PackedBatch) -> Float[Tensor, "rows features"]:
        """What the head reads of each picture."""
        pooled = self.pooled(self.masked.states(batch), batch, self.pooling)
        if not self.gradients:
            return pooled
        return torch.cat([pooled, self.edges(batch).to(pooled.dtype)], 1)

    def edges(self, batch: PackedBatch) -> Float[Tensor, "rows numbers"]:
        """Oriented gradients of the pictures of a batch."""
        patches = batch.values["patch"][:, int(self.config.class_token) :]
        return picture_gradients(unpatchify(patches, self.config.patch, self.config.grid))

    def pooled(
        self, states: Float[Tensor, "rows slots width"], batch: PackedBatch, pooling: ClassPooling
    ) -> Float[Tensor, "rows features"]:
        """The encoder's states, pooled and normed."""
        first = int(self.config.class_token)
        if pooling == "grid":
            return cell_means(self.norm(states), batch, self.config)
        if pooling == "first":
            pooled = states[:, 0]
        elif bool(on_host(batch.observed).all()):
            pooled = states[:, first:].mean(1)
        else:  # the mean over the patches that were measured
            seen = batch.observed[:, first:, None].to(states.dtype)
            pooled = (states[:, first:] * seen).sum(1) / seen.sum(1).clamp_min(1)
        return self.norm(pooled)

    @contextlib.contextmanager
    def whole(self) -> Iterator[MaskedModel[PatchCodec]]:
        """The masked model with its final norm put back, for saving and embedding."""
        self.masked.encoder.final_norm = self.norm
        try:
            yield self.masked
        finally:
            self.masked.encoder.final_norm = nn.Identity()


@dataclass(repr=False)
class Classifier(Usable):
    """A fine-tuned model ready to use; `unmask.load` gives one for a folder that `finetune classify` wrote.

    Attributes:
        model: the image model below (its `read` brings pictures into shape).
        net: encoder and head.
        classes: names of the classes or labels; of a number what it is called.
        objective: what its labels are: one class per picture (the default), several labels, or a number.
        label_column: of the table that it was trained on; read before others.
    """

    kind = "images"
    guesses: ClassVar[Mapping[str, Any]] = {**ATTRIBUTES, **Usable.guesses}

    model: Any
    net: ClassifierNet
    classes: list[str]
    objective: Objective = field(default=None)  # type: ignore[assignment]
    label_column: str | None = None

    def __post_init__(self) -> None:
        if self.objective is None:
            self.objective = OneClass(self.classes)

    def __repr__(self) -> str:
        return f"Classifier({first_of(map(quoted, self.classes))}; {self.model!r})"

    @classmethod
    def restore(cls, model: Any) -> Classifier:
        """From a loaded folder that holds a head."""
        about: Mapping[str, Any] = model.folder.classifier
        gradients = bool(about.get("gradients", False))
        net = ClassifierNet(model.model, len(about["classes"]), about["pooling"], gradients=gradients)
        if set(model.folder.head) != {"weight", "bias"}:
            raise UserError("the folder has no classification head", hint="Copy the folder again.")
        net.head.load_state_dict(model.folder.head)
        objective = objective_from(about)
        net, column = net.to(model.device).eval(), about.get("label_column")
        return cls(model=model, net=net, classes=objective.classes, objective=objective, label_column=column)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.device

    @property
    def precision(self) -> str:
        """In what it computes: fp32 or bf16."""
        return self.model.precision

    @property
    def problem(self) -> str:
        """'single' (one class per picture), 'multi' (several labels) or 'regression' (a number)."""
        return self.objective.problem

    def meant(self) -> str:
        """What it says of a picture, in words."""
        if self.problem == "regression":
            return f"a number ({self.classes[0]})"
        return f"{len(self.classes)} {'labels' if self.problem == 'multi' else 'classes'}"

    def read(self, images: Any, *, labelled: bool = True, **options: Any) -> ImageSet:
        """Pictures of any source for this model, with labels of its kind; see `ImageModel.read`.

        Args:
            labelled: read the labels of a table; False reads its files alone.
        """
        chosen = {"store": PASSING, "problem": self.problem if labelled else "none"} | options
        chosen["usual"] = self.model.folder.reading | {"label_column": self.label_column}
        return self.model.read(images, **chosen)

    def answers(self, images: Any) -> np.ndarray:
        """(pictures, classes) probabilities, or (pictures, 1) numbers in their own unit; order kept."""
        found = self.read(images, labelled=False)
        answers = self._answers(found)[settled(found)]
        tell_skipped(images, found)
        return answers

    def probabilities(self, images: Any) -> np.ndarray:
        """(pictures, classes) float32, order kept.

        Raises:
            UserError: the model predicts a number.
        """
        if self.problem == "regression":
            raise UserError("a model of numbers has no probabilities", hint="Use answers(...) or predict(...).")
        return self.answers(images)

    @also_called({"batch_size": "Leave it out: they are read as many at a time as memory asks for"})
    def predict(  # type: ignore[override]  # there are no options
        self, images: Any, out: str | Path | None = None
    ) -> PredictedRows:
        """A prediction for each picture, in order; 'name' is its path where it came from a file. One class: 'label' and
        its 'probability'; several labels: 'labels' (from the threshold on) and 'probabilities' of all; a number:
        'value' in its own unit. Of a picture cut into tiles the mean over them. `out`: a .jsonl to write them to."""
        read = self.read(images, labelled=False)
        found = PredictedRows(self.predicted(read), "Predictions of {} pictures")
        tell_skipped(images, read)
        if out is not None:
            write_json_lines(found, out)
        return found

    def predicted(self, found: ImageSet) -> Iterator[dict[str, Any]]:
        """`predict` of pictures that were read, a batch of them at a time."""
        if found.tiles is not None:
            yield from self.objective.rows(found.tiles.names, pooled(self._answers(found), found))
            return
        names = found.names or [str(i) for i in range(len(found))]
        for place, p in self._answered(found):
            whole = settled(found)[place]
            yield from self.objective.rows([n for n, w in zip(names[place], whole, strict=True) if w], p[whole])

    def _answers(self, found: ImageSet) -> np.ndarray:
        """Answers to all pictures, those that could not be read among them."""
        return np.concatenate([p for _, p in self._answered(found)])

    def _answered(self, found: ImageSet) -> Iterator[tuple[slice, np.ndarray]]:
        """Places and answers of each batch."""
        for place, batch in self.model.batches(found):
            with torch.inference_mode(), self.model._context():
                logits = self.net(batch).cpu().numpy()
            yield place, self.objective.answers(logits)

    def predict_proba(self, images: Any) -> np.ndarray:
        """`probabilities`, as scikit-learn calls them; columns as `classes_`."""
        return self.probabilities(images)

    @property
    def classes_(self) -> np.ndarray:
        """`classes`, as scikit-learn has them."""
        return np.array(self.classes)

    def score(self, images: Any, labels: Any) -> float:
        """Accuracy (of numbers R2), as scikit-learn's `score` is; of several labels the macro AUROC."""
        name = {"single": "accuracy", "multi": "macro_auroc", "regression": "r2"}[self.problem]
        return float(self.evaluate(images, labels)[name])

    def evaluate(self, images: Any, labels: Any = None, *, seed: int = 0, most: int | None = None) -> JudgedFigures:
        """Figures on labelled pictures (of their test part, where they have one; tiles of one picture count once) with
        95 % intervals, beside a rule that looks at no picture: `evaluation.classes.class_figures`,
        `evaluation.labels.label_figures` or `evaluation.values.value_figures`; `notes` names pictures that stand under
        several labels.

        Args:
            images: labelled pictures, or pictures whose `labels` stand beside.
            seed: of the intervals, and of which pictures are taken.
            most: at most this many pictures.

        Raises:
            UserError: no labels, labels of another kind, or a class the model does not know.
        """
        given = images if labels is None else (images, labels)
        found = self.read(given)
        notes = several_labels(found)
        if (part := found.part("test", "validation")) is not None:
            assert part.split is not None
            notes.append(f"judged on the {part.split[0]} part: {len(part):,} of {len(found):,} pictures")
            found = part
        if most is not None:
            found = some_pictures(found, most, seed)
        figures = self.objective.figures(*self.judged(found), seed)
        tell_skipped(given, found)
        count = {"rows": figures["n"], "pictures": figures["n"], "skipped": len(found.skipped)}
        about = {"classes": list(self.classes), "problem": self.problem, "notes": notes}
        return JudgedFigures(figures | count | about, judged_shown)

    def judged(self, found: ImageSet) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """(truth, answers, groups or None) of each picture that could be read; of one cut into tiles the answer is the
        mean over them."""
        truth, answers, groups = self.objective.truth(found), self._answers(found), kept_together(found)
        if found.tiles is not None:
            present, first = np.unique(found.tiles.scene, return_index=True)
            return truth[first], pooled(answers, found)[present], None if groups is None else groups[first]
        whole = settled(found)
        return truth[whole], answers[whole], None if groups is None else groups[whole]

    def embed(self, images: Any, **options: Any) -> np.ndarray:
        """Pooled states of the fine-tuned encoder; see `ImageModel.embed`."""
        with self.net.whole():
            return self.model.embed(images, **options)

    def inspect(self) -> dict[str, Any]:
        """Size and settings of the model, and the classes."""
        about: dict[str, Any] = {"classes": self.classes, "problem": self.problem}
        about |= {"pooling": self.net.pooling, "gradients": self.net.gradients}
        return self.model.inspect() | about | self.objective.about()

    def save(self, path: str | Path, *, pictures: int | None = None, judged: dict[str, Any] | None = None) -> None:
        """Save as a model folder with its head.

        Args:
            pictures, judged: how many it was trained on, and what `evaluate` gave on held-out ones, for the model card.
        """
        base = {k: v for k, v in self.model.folder.settings.items() if k not in ("results", "classifier", "segmenter")}
        known = self.model.folder.settings.get("classifier") or {}
        kept = {k: known[k] for k in ("pictures", "figures") if k in known}  # of a model that was loaded
        data: dict[str, Any] = kept if pictures is None else {"pictures": pictures}
        data |= {} if judged is None else {"figures": [f.to_dict() for f in scored(judged)]}
        with self.net.whole() as masked:
            read: dict[str, Any] = {"pooling": self.net.pooling, "gradients": self.net.gradients}
            about = data | {"classes": self.classes} | read | self.objective.about()
            about["label_column"] = self.label_column
            save_folder(
                path,
                masked,
                depth=self.model.folder.depth,
                settings=base | {"classifier": about},
                head={"weight": self.net.head.weight, "bias": self.net.head.bias},
            )
