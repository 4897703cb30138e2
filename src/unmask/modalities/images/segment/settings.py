"""How a segmenter is fine-tuned. torch is not imported here."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Literal

from unmask.modalities.images.recipes import UNREAD, sides
from unmask.training.settings import (
    TrainSettings,
    apply_run_overrides,
    check_types,
    require,
    require_counts,
    require_shares,
)

SCALE = (0.8, 1.25)


@dataclass(frozen=True, kw_only=True)
class SegmenterSettings:
    """How a network that gives every pixel a class, or a quantity, is fine-tuned.

    Attributes:
        problem: what masks hold: classes ('segment') or a quantity per pixel, such as a height or a density
            ('regression'); 'auto': few whole numbers are classes, many fractions a quantity, all else is asked for.
        crop: side, or height,width, of the crops that are learnt from and of the tiles that are predicted, in pixels of
            the pictures; none is the size of the pictures that the model was pretrained on. Positions are resampled.
        ignore: the value of pixels without a class: a number, a colour (#ffffff), or none; auto takes 255 for it where
            the other values count up from 0 or 1. NaN and a file's nodata always are without.
        encoder_rate: rate of the pretrained encoder's last layer, times `learning_rate`; the convolutions, which are
            new, have the whole.
        layer_decay: each layer of the encoder has this times the rate of the next.
        dice: weight of the soft Dice loss (Milletari et al. 2016) beside cross-entropy (a quantity has squared error).
        class_weight: most that a rare class may count in the cross-entropy, times the most frequent; weights are the
            inverse root of a class's share. 1 weighs all alike.
        balance: share of the crops that are drawn around a pixel of a class drawn evenly (of a quantity: above or below
            its mean); the others lie anywhere.
        scale: factors by which crops are enlarged, low,high; 1,1 for none. Default 0.8,1.25 of classes; of a quantity
            none, for a density or a distance changes with the size of what is seen.
        flip, turn: mirror crops; turn half of them by any angle, half by quarters. Say false where left and right, or
            up, decide the class. The latter half is neither scaled nor bent.
        bend: deviation of a smooth displacement of the crops, in pixels; 0 for none.
        jitter: changes of brightness and contrast, channel by channel.
        average: decay per step of the running mean of the weights, which is what is kept.
        batch: crops in a step.
        group: what must not be split between training and held-out pictures: folder, file, or a folder level; none
            takes the patient of DICOM files and the file elsewhere.
        holdout: share of the pictures (or groups) held out where no validation pictures are given: none of fewer than
            five groups, which are all needed to learn from.
        keep_best: keep the state with the best mean Dice (RMSE) on the held-out pictures, not the last.
        from_scratch: start from random weights (to see what pretraining is worth).
        examples: show held-out pictures and their masks in report.html, the worst first.
    """

    problem: Literal["auto", "segment", "regression"] = "auto"
    crop: int | tuple[int, int] | None = None
    ignore: str = "auto"
    encoder_rate: float = 0.3
    layer_decay: float = 0.8
    dice: float = 1.0
    class_weight: float = 3.0
    balance: float = 0.5
    scale: tuple[float, float] | None = None
    flip: bool = True
    turn: bool = True
    bend: float = 2.0
    jitter: float = 0.2
    average: float = 0.99
    batch: int = 8
    group: str | None = None
    holdout: float = 0.2
    keep_best: bool = True
    from_scratch: bool = False
    examples: bool = False
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            steps=1000,
            learning_rate=2e-3,
            beta2=0.999,
            epsilon=1e-8,
            weight_decay=0.02,
            schedule="cosine",
            warmup=0.05,
            minimum_rate=1e-3,
        )
    )

    def __post_init__(self) -> None:
        check_types(self)
        require_counts(self, "batch")
        require_shares(self, "holdout", "average")
        require(self, lambda v: 0 < v <= 1, "a share above 0 and up to 1", "layer_decay", "encoder_rate")
        require(self, lambda v: 0 <= v <= 1, "a share, 0 to 1", "balance")
        require(self, lambda v: v >= 0, "a number, 0 or more", "dice", "bend", "jitter")
        require(self, lambda v: v >= 1, "a number, 1 or more", "class_weight")
        require(self, lambda v: 0 < v[0] <= v[1], "low,high with 0 < low <= high", "scale")
        require(self, lambda v: min(sides(v)) >= 1, "pixels: a side, or height,width", "crop")


FEWEST = 5
"""Pictures (or groups) from which on some are held out."""


with_overrides = functools.partial(apply_run_overrides, without=UNREAD)
"""Replace settings by key; keys of `train` may be given bare."""
