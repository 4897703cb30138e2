"""How an image classifier is fine-tuned. torch is not imported here."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Literal

from unmask.errors import UserError, setting
from unmask.modalities.images.recipes import UNREAD
from unmask.training.settings import (
    TrainSettings,
    apply_run_overrides,
    check_types,
    refuse_unread,
    require,
    require_shares,
)


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """How an image classifier is fine-tuned; defaults after MAE's (He et al. 2022, table 9), for small data.

    Attributes:
        pooling: 'mean' of the patches, the class token ('first'), or the means over a grid of cells side by side
            ('grid': what is where is kept; more weights to learn from the labels). 'auto' takes the features by which a
            linear probe gives the classes of the training pictures the highest probability, in four folds; where the
            head starts at zero, the mean.
        gradients: the head reads the oriented gradients of the whole picture (HOG) beside; None decides as pooling=auto
            does, and leaves them out where the head starts at zero.
        start: where the head starts: at 'zero', or as the linear probe of the frozen features ('probe': of one class
            per picture; its penalty is chosen by cross-validation on the training pictures). 'auto' is the probe for
            one class per picture, unless from_scratch. The probe itself is then among the states that are kept by the
            held-out pictures.
        probe_rate: with the head started as a probe, all rates are this times `learning_rate`: what starts right moves
            slowly.
        average: with the head started as a probe, the share of the trained weights in their mean with those of the
            start (Wortsman et al. 2022, 'Robust fine-tuning of zero-shot models'); where pictures are held out, kept
            unless the trained weights alone are right more often there. 1 never averages.
        layer_decay: each layer has this times the rate of the next.
        drop_path: share of a deepest block's outputs left out, rising evenly from 0 at the first.
        problem: what the labels are: one class per picture ('single'), several labels ('multi'), a number
            ('regression'); 'auto' looks at them and says what it took them for. Whole numbers are classes unless told
            otherwise.
        threshold: several labels: the probability from which on a label is given.
        mixup, cutmix: beta parameters, 0 for none; each batch gets one of the two. Numbers are mixed up, but not cut.
        smoothing: share of a target spread over all classes, of several labels over yes and no; None is 0.1 of one
            class per picture, else 0. Numbers are not smoothed.
        crop, flip: as in pretraining. A number that belongs to the whole picture (a count, an area) wants crop=1,1.
        batch: pictures in a step.
        group: what must not be split between training and held-out pictures; see `ImageSettings`.
        pictures, column, label_column: of a table of labels: the folder its paths are relative to (default its own),
            its columns of files and of labels (several of 0 and 1 parted by commas).
        holdout: share of each class (rarest label, fifth of the numbers) held out where no validation pictures are
            given; 0 trains on all and keeps the end.
        keep_best: the best state on the validation pictures is kept, not the last: by accuracy, of several labels the
            mean area under the precision-recall curve, of numbers the root mean squared error.
        from_scratch: start from random weights (to see what pretraining is worth).
        store, store_folder: where decoded pictures are kept, as in pretraining.
    """

    pooling: Literal["auto", "mean", "first", "grid"] = "auto"
    gradients: bool | None = None
    start: Literal["auto", "zero", "probe"] = "auto"
    probe_rate: float = 0.3
    average: float = 0.5
    layer_decay: float = 0.75
    drop_path: float = 0.1
    problem: Literal["auto", "single", "multi", "regression"] = "auto"
    threshold: float = 0.5
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float | None = None
    crop: tuple[float, float] = (0.6, 1.0)
    flip: bool = True
    batch: int = 64
    group: str | None = None
    pictures: str | None = None
    column: str | None = None
    label_column: str | None = None
    holdout: float = 0.1
    keep_best: bool = True
    from_scratch: bool = False
    store: Literal["auto", "memory", "disk"] = "auto"
    store_folder: str | None = None
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=50,
            learning_rate=1e-3,
            beta2=0.999,
            epsilon=1e-8,
            weight_decay=0.05,
            schedule="cosine",
            warmup=0.1,
            minimum_rate=1e-3,
        )
    )

    def __post_init__(self) -> None:
        check_types(self)
        require(self, lambda v: 0 < v <= 1, "a share above 0 and up to 1", "layer_decay", "probe_rate", "average")
        require(self, lambda v: 0 < v < 1, "a probability between 0 and 1", "threshold")
        require(self, lambda v: 0 <= v < 1, "a share from 0 to below 1, or none", "smoothing")
        require_shares(self, "drop_path", "holdout")
        if self.start == "probe" and self.from_scratch:
            raise UserError(
                "start=probe with from_scratch",
                hint=f"Random weights have no features to probe: say {setting('start', 'zero')}.",
            )
        if self.batch < 1 or min(self.mixup, self.cutmix) < 0:
            raise UserError(
                f"batch={self.batch}, mixup={self.mixup}, cutmix={self.cutmix}",
                hint="Expected batch >= 1, the others >= 0.",
            )
        if self.store == "memory":
            refuse_unread(self, ["store_folder"])
        require(self, lambda v: 0 < v[0] <= v[1] <= 1, "low,high with 0 < low <= high <= 1", "crop")


with_overrides = functools.partial(apply_run_overrides, without=UNREAD)
"""Replace settings by key; keys of `train` may be given bare."""
