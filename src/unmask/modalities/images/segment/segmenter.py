"""A segmenter ready to use: a class, or a quantity, for every pixel of pictures of any size."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from unmask.errors import UserError, first_of, option, quoted
from unmask.evaluation.results import JudgedFigures, PredictedRows
from unmask.modalities.images.network.card import judged_shown, scored
from unmask.modalities.images.network.folder import save_folder
from unmask.modalities.images.reading.account import tell_skipped
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.copies import digest
from unmask.modalities.images.recipes import ATTRIBUTES
from unmask.modalities.images.segment.baselines import rule_masks
from unmask.modalities.images.segment.crops import Scene
from unmask.modalities.images.segment.legend import Legend, value_of
from unmask.modalities.images.segment.network import SegmentNet
from unmask.modalities.images.segment.pairs import read_pairs
from unmask.modalities.images.segment.quantity import Quantity, number_of, target_of
from unmask.modalities.images.segment.scenes import WholePicture, whole_pictures
from unmask.modalities.images.segment.tiles import picture_answers
from unmask.training.precision import computing
from unmask.verbs import Usable


def learnt_as(pixels: np.ndarray) -> str | None:
    """By what a picture that was learnt from is known again; None of a blank one."""
    found = digest(pixels)
    return None if found is None else found.hex()


@dataclass(repr=False)
class Segmenter(Usable):
    """A fine-tuned model ready to use; `unmask.load` gives one for a folder that `finetune segment` wrote.

    Attributes:
        model: the image model below.
        net: encoder and convolutions.
        legend: the classes, and the values that stand for them in masks; or the quantity.
        rules: what rules without a network know of the training pictures; see `baselines.learnt_rules`.
        about: what else the folder says: how many pictures, digests of them ('learnt'), figures on held-out ones.
    """

    kind = "images"
    guesses: ClassVar[Mapping[str, Any]] = {**ATTRIBUTES, **Usable.guesses}

    model: Any
    net: SegmentNet
    legend: Legend | Quantity
    rules: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Segmenter({first_of(map(quoted, self.legend.names))}; {self.model!r})"

    @classmethod
    def restore(cls, model: Any) -> Segmenter:
        """From a loaded folder that holds the convolutions."""
        about = dict(model.folder.settings["segmenter"])
        legend = target_of(about.pop("legend"))
        net = SegmentNet(model.model, len(legend.names), legend.scale)
        own = {name for name in net.state_dict() if not name.startswith("masked.")}
        if set(model.folder.head) != own:
            raise UserError("the folder lacks parts of the segmenter", hint="Copy the folder again.")
        net.load_state_dict(model.folder.head, strict=False)
        net = net.to(model.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        return cls(model=model, net=net, legend=legend, rules=about.pop("rules"), about=about)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.device

    @property
    def precision(self) -> str:
        """In what it computes: fp32 or bf16."""
        return str(self.model.precision)

    @property
    def names(self) -> list[str]:
        """Names of the classes; 'value' of a quantity."""
        return list(self.legend.names)

    def meant(self) -> str:
        """What it says of a pixel, in words."""
        return "a quantity" if isinstance(self.legend, Quantity) else first_of(self.names)

    def read(self, images: Any, **options: Any) -> ImageSet:
        """Pictures of any source at their own resolution; see `ImageModel.read`."""
        return self.model.read(images, **{"problem": "none", "view": "tile", "overlap": 0} | options)

    def probabilities(self, images: Any) -> list[np.ndarray]:
        """(classes, height, width) float32 of each picture, order kept."""
        self.check_probabilities(True)
        read = self.read(images)
        found = [self.answers(self.seen(whole)) for whole in whole_pictures(read)]
        tell_skipped(images, read)
        return found

    def check_probabilities(self, wanted: bool) -> None:
        """Refuse to give probabilities of a quantity."""
        if wanted and isinstance(self.legend, Quantity):
            raise UserError("probabilities of a quantity", hint="The model gives one value per pixel: its mean.")

    def seen(self, whole: WholePicture) -> np.ndarray:
        """A picture as the network sees it."""
        return whole.seen(self.net.masked.codec)

    def answers(self, seen: np.ndarray) -> np.ndarray:
        """(classes, height, width) float32 probabilities, or (1, height, width) of the quantity in its own unit, of a
        picture as the network sees it."""
        with computing(self.precision, self.device):
            return picture_answers(self.net, seen).numpy()

    def predict(  # type: ignore[override]  # there are no options
        self, images: Any, out: str | Path | None = None, *, probabilities: bool = False
    ) -> PredictedRows:
        """A mask for each picture, in order: 'name', 'mask' ((height, width) values as the training masks have them, of
        colours (height, width, 3)), 'shares' of the pixels by class; 'probabilities' (classes, height, width) where
        asked for. Of a quantity 'mask' is float32, and beside it are its 'mean' and 'sum'.

        Args:
            out: a folder to write the masks to instead, in the format of each picture; rows then have 'file'.
        """
        from unmask.modalities.images.segment.written import write_masks

        self.check_probabilities(probabilities)
        if out is not None:
            return PredictedRows(write_masks(self, images, out, probabilities=probabilities), "Masks of {} pictures")
        read = self.read(images)
        found = PredictedRows(
            (self.row(whole, probabilities=probabilities) for whole in whole_pictures(read)),
            "Masks of {} pictures",
            hidden=("mask", "probabilities"),
        )
        tell_skipped(images, read)
        return found

    def row(self, whole: WholePicture, *, probabilities: bool = False) -> dict[str, Any]:
        """What `predict` gives for a picture."""
        answers = self.answers(self.seen(whole))
        found = self.legend.answer(answers)
        row = {"name": whole.name, "mask": self.legend.written(found), **self.legend.summary(found)}
        return row | ({"probabilities": answers} if probabilities else {})

    def judge(
        self, scenes: Sequence[Scene], more: Mapping[str, Any] | None = None, *, seed: int = 0
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """(figures, masks) of scenes, beside those of rules.

        Args:
            more: name of a further rule -> a function that gives its mask of a scene.
        """
        legend: Any = self.legend
        masks, own, rules = list[np.ndarray](), list[Any](), dict[str, list[Any]]()
        for scene in scenes:
            masks.append(legend.answer(self.answers(scene.pixels)))
            own.append(legend.counted(scene.mask, masks[-1]))
            others = rule_masks(self.rules, scene) | {name: rule(scene) for name, rule in (more or {}).items()}
            for name, mask in others.items():
                rules.setdefault(name, []).append(legend.counted(scene.mask, mask))
        grouped = [scene.group for scene in scenes]
        groups = np.array(grouped) if len(set(grouped)) < len(grouped) else None
        found: dict[str, Any] = legend.figures(own, groups, seed)
        found["rules"] = {name: legend.figures(parts, groups, seed) for name, parts in rules.items()}
        found |= {"rows": len(scenes), "pictures": len(scenes), "classes": self.names, "problem": legend.problem}
        return found | {"names": [scene.name for scene in scenes]}, masks

    def evaluate(
        self, images: Any, masks: Any = None, *, ignore: str | int | None = None, seed: int = 0
    ) -> JudgedFigures:
        """Dice, IoU and the F of borders (within 2 pixels) of each class, what is taken for what, and the same of rules
        without a network, with 95 % intervals over pictures. Of a quantity: R2, RMSE, MAE, and the error of a
        picture's sum.

        Args:
            masks: a folder of masks named as the pictures, or arrays in their order.
            ignore: the value of pixels without a class; default that of training.
        """
        if masks is None:
            raise UserError("pictures without masks: nothing to judge by", hint=f"Give {option('masks')}.")
        scenes, notes, skipped = self.scenes(images, masks, ignore=ignore)
        found, _ = self.judge(scenes, seed=seed)
        return JudgedFigures(found | {"skipped": skipped, "notes": notes}, judged_shown)

    def scenes(
        self, images: Any, masks: Any, *, ignore: str | int | None = None, reading: dict[str, Any] | None = None
    ) -> tuple[list[Scene], list[str], int]:
        """(pictures with their masks as the network sees them, what is to be said of them, how many cannot be read);
        arguments as `evaluate` and `pairs.read_pairs` have them."""
        legend: Any = self.legend
        if ignore is not None:
            number = number_of if isinstance(legend, Quantity) else value_of
            legend = dataclasses.replace(legend, ignore=None if ignore == "none" else number(ignore))
        how = "auto" if ignore is None else ignore
        pairs = read_pairs(self.model, images, masks, ignore=how, legend=legend, reading=reading)
        known = set(self.about.get("learnt", ()))
        count = sum(learnt_as(whole.pixels) in known for whole, _ in pairs.pairs)
        notes = [*pairs.notes]
        if count:
            which = f"{count:,} of {len(pairs.pairs):,} pictures were learnt from"
            notes.append(f"warning: {which}: figures on them flatter the model")
        scenes = [whole.scene(self.net.masked.codec, mask) for whole, mask in pairs.pairs]
        return scenes, notes, len(pairs.skipped)

    def embed(self, images: Any, **options: Any) -> np.ndarray:
        """Pooled states of the fine-tuned encoder; see `ImageModel.embed`."""
        return self.model.embed(images, **options)

    def inspect(self) -> dict[str, Any]:
        """Size and settings of the model, and the classes."""
        size = sum(p.numel() for p in self.net.parameters()) - sum(p.numel() for p in self.net.masked.parameters())
        found: dict[str, Any] = self.model.inspect()
        return found | {"classes": self.names, "problem": self.legend.problem, "convolution_parameters": size}

    def save(self, path: str | Path, *, pictures: int | None = None, judged: dict[str, Any] | None = None) -> None:
        """Save as a model folder with its convolutions.

        Args:
            pictures, judged: how many it was trained on, and what `judge` gave on held-out ones, for the model card.
        """
        base = {k: v for k, v in self.model.folder.settings.items() if k not in ("results", "classifier", "segmenter")}
        about = dict(self.about) | ({} if pictures is None else {"pictures": pictures})
        about |= {} if judged is None else {"figures": [f.to_dict() for f in scored(judged)]}
        about |= {"legend": self.legend.about(), "rules": self.rules}
        own = {name: t for name, t in self.net.state_dict().items() if not name.startswith("masked.")}
        save_folder(
            path,
            self.net.masked,
            depth=self.model.folder.depth,
            settings=base | {"segmenter": json.loads(json.dumps(about))},
            head=own,
            head_name="segmenter",
        )
