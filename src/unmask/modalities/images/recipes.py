"""Published image settings as data, and the one settings class of `unmask pretrain images`.

No torch import: settings can be read and checked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.errors import UserError, setting, suggest
from unmask.training.settings import (
    TrainSettings,
    apply_run_overrides,
    check_types,
    refuse_unread,
    require,
    require_counts,
    require_shares,
)

UNREAD = (
    "batch_slots",
    "accumulate",
    "optimiser",
    "matrix_rate",
    "shard",
    "compile",
    "validate_every",
    "patience",
    "checkpoint_every",
    "keep",
)
"""Settings of a run that fine-tuning pictures has no use for."""

SIZES: dict[str, tuple[int, int, int]] = {
    "nano": (128, 4, 4),
    "micro": (128, 6, 4),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}
"""Name -> (width, layers, heads): ViT (Dosovitskiy et al. 2021, table 1) and DeiT (Touvron et al. 2021); `nano` and
`micro` are ours."""

DECODERS: dict[str, tuple[int, int, int]] = {"mae": (512, 8, 16), "small": (192, 4, 3), "light": (64, 2, 2)}
"""Name -> (width, layers, heads): MAE's for every encoder (He et al. 2022, table 1), and lighter ones."""


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """What is trained on images. `train` says how long and how fast.

    Attributes:
        architecture: 'visible_only' (MAE) or 'in_place' (SimMIM).
        width, layers, heads: of the encoder; `size` is a name for the three (nano, micro, tiny, small, base,
            large, huge).
        decoder_width, decoder_layers, decoder_heads: of the visible-only decoder; `decoder` names the three (mae,
            small, light).
        image_size: side, or height,width, that pictures are brought to (the shorter side is scaled, the longer cut to
            the middle); none takes them as they are, if all have one size of at most 128 pixels, and else shrinks them
            to 128, of several sizes as squares. What is cut or shrunk is said.
        patch: side of a patch in pixels; none picks the largest of 16, 8, 4, 2 that leaves at least 49 patches, with
            target=views and contrast the largest of 16, 8, 7, 4, 2 that leaves at least 16.
        channels: none takes what the files have; 1 or 3 turn grey into colours and back. For arrays with more than four
            it says which axis the channels are.
        ratio: share of the patches to hide.
        hide: 'patch', 'unit' (squares of `unit` pixels) or 'block' (rectangles, BEiT).
        select: 'package.module:name' of a selector of your own, instead of `hide`; see CONTRIBUTING.md.
        unit: side of a mask unit in pixels, for hide=unit.
        norm_targets: predict patches normalised by their own mean and deviation.
        loss: 'mse' or 'l1'.
        target: what is predicted: 'pixels' of hidden patches; 'views', representations of other views of the picture
            (LeJEPA: the views' mean, with SIGReg against collapse); 'contrast', which of the batch's pictures another
            view is of (SimCLR: NT-Xent); 'latents', the encoder's own representations of hidden patches (I-JEPA, with
            SIGReg in place of a teacher). All but pixels compare the pictures of a batch with each other: a step then
            runs in one process without micro-batches, and the loss depends on the batch's size.
        pixel_weight: with another target, weight of also predicting hidden pixels; 0 leaves the decoder out, and
            the model embeds but does not fill.
        views: of each picture in a step, with another target than pixels; none is 4 for views, 2 for contrast, 1 for
            latents.
        regulariser: share of SIGReg in the loss of target=views, its weight in that of latents; 0 lets the
            representations collapse.
        temperature: of target=contrast.
        projector, projection: width inside and behind the projector, where views are compared.
        jitter: each view's brightness and contrast are changed, channel by channel, by factors up to e^jitter and
            shifts up to jitter deviations; 0 leaves them.
        statistics: weight of also predicting a patch's mean and deviation, so that hidden patches can be drawn in
            pixels; with norm_targets only. 0 is the published loss.
        positions: 'sincos' (fixed, 2-D) or 'learned'.
        gradients: the encoder reads the oriented gradients (HOG, within the patch) of each patch besides its pixels, so
            that edges need not be learnt first. transformers cannot load such a model as a ViTMAE.
        class_token: a learned slot in front of the patches.
        view: 'shrink' brings whole pictures to image_size. 'tile' cuts them into pieces of image_size at their own
            resolution, each an example; 'crop' into pieces of store_size (default twice image_size), of which every
            epoch sees a random window of image_size. Pieces of one picture stay on one side of the split.
        overlap: pixels that neighbouring tiles share, at least.
        planes: of the planes of a stack: all (each a picture), max, mean, a number, or channels; none takes all where
            the file says what its planes are, and asks where it does not.
        alpha: what a band marked as transparency is: white (laid on it), missing (where it is 0) or band (one more
            channel).
        nodata: value of pixels that were not measured, where files do not say; NaN always are.
        slice: how volumes (NIfTI) are cut: axial, coronal or sagittal.
        group: what must not be split between training and held-out pictures: folder, a folder level (1 is the first
            below the folder given), name (of a file, up to its first number: patient07 of patient07_03.png), file, or a
            column of a table; none takes the patient of DICOM files and the file elsewhere.
        crop: random resized crops of this share of the area, low,high; 1,1 for none. None is 0.6,1 with view=shrink,
            else 1,1; where views are compared (target=views, contrast) 0.3,1, except with view=crop.
        flip: mirror half of the pictures.
        turn: turn pictures by quarters, where up means nothing (cells, tissue, scenes from above).
        batch: images in one optimiser step.
        holdout: share of the pictures held out for validation.
        store_size: side that decoded pictures are kept at while training; none is image_size. Larger gives sharper
            crops.
        store: 'memory' keeps decoded pictures there, 'disk' in shards that are read as they are needed; auto takes the
            disk for more than a quarter of the free memory, or 2 GB.
        store_folder: where shards go; none is the folder `pictures` of the run.
        workers: processes that decode files; none is the number of cores, at most 8.
        strict: a file that cannot be decoded ends the run instead of being skipped.
        examples: show pictures of the data in report.html: filled ones, attention, neighbours, a map.
        column, label_column: of parquet and dataset inputs.
        probe: k-nearest-neighbour and linear accuracy at every validation, where the pictures have classes.
        probe_every: epochs between validations (and so probes); none is 20 times over the run.
    """

    architecture: Literal["visible_only", "in_place"] = "visible_only"
    width: int = 128
    layers: int = 4
    heads: int = 4
    decoder_width: int = 64
    decoder_layers: int = 2
    decoder_heads: int = 2
    image_size: int | tuple[int, int] | None = None
    patch: int | None = None
    channels: int | None = None
    ratio: float = 0.375
    hide: Literal["patch", "unit", "block"] = "patch"
    select: str | None = None
    unit: int | None = None
    norm_targets: bool = True
    loss: Literal["mse", "l1"] = "mse"
    statistics: float = 0.1
    target: Literal["pixels", "views", "contrast", "latents"] = "contrast"
    pixel_weight: float = 1.0
    views: int | None = None
    regulariser: float = 0.05
    temperature: float = 0.2
    projector: int = 512
    projection: int = 64
    jitter: float = 0.4
    positions: Literal["sincos", "learned"] = "sincos"
    gradients: bool = True
    class_token: bool = True
    view: Literal["shrink", "tile", "crop"] = "shrink"
    overlap: int = 0
    planes: str | None = None
    alpha: Literal["white", "missing", "band"] | None = None
    nodata: float | None = None
    slice: Literal["axial", "coronal", "sagittal"] = "axial"
    group: str | None = None
    crop: tuple[float, float] | None = None
    flip: bool = True
    turn: bool = False
    batch: int = 128
    holdout: float = 0.05
    store_size: int | tuple[int, int] | None = None
    store: Literal["auto", "memory", "disk"] = "auto"
    store_folder: str | None = None
    workers: int | None = None
    strict: bool = False
    examples: bool = False
    column: str | None = None
    label_column: str | None = None
    probe: bool = True
    probe_every: float | None = None
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            optimiser="muon",
            learning_rate=4e-3,
            beta2=0.95,
            epsilon=1e-8,
            weight_decay=0.05,
            schedule="cosine",
            warmup=0.08,
        )
    )

    def __post_init__(self) -> None:
        check_types(self)
        require_counts(self, "width", "layers", "heads", "decoder_width", "decoder_layers", "decoder_heads", "batch")
        require_counts(self, "projector", "projection")
        require(self, lambda v: v >= 1, "a whole number, 1 or more, or none", "patch", "channels", "unit", "workers")
        self._check_target()
        for name in ("width", "decoder_width"):
            if self.positions == "sincos" and getattr(self, name) % 4:
                raise UserError(
                    f"{name}={getattr(self, name)} is not a multiple of 4",
                    hint=f"2-D sine-cosine positions need it; or use {setting('positions', 'learned')}.",
                )
        require(self, lambda v: 0 < v < 1, "a share between 0 and 1", "ratio")
        require_shares(self, "holdout")
        require(self, lambda v: 0 < v[0] <= v[1] <= 1, "low,high with 0 < low <= high <= 1", "crop")
        self._check_views()
        require(self, lambda v: v >= 0, "a number, 0 or more", "statistics")
        require(self, lambda v: v > 0, "epochs, above 0, or none", "probe_every")
        require(self, lambda v: min(sides(v)) >= 1, "pixels: a side, or height,width", "image_size", "store_size")
        self._check_idle()

    def _check_idle(self) -> None:
        decodes = self.architecture == "visible_only" and (self.predicts_pixels or self.target == "latents")
        decoder = dict.fromkeys(("decoder_width", "decoder_layers", "decoder_heads"), decodes)
        projector = dict.fromkeys(("projector", "projection"), self.target != "pixels")
        read = decoder | projector
        read |= dict.fromkeys(("loss", "norm_targets"), self.predicts_pixels)
        read["statistics"] = not self.statistics or (self.predicts_pixels and self.norm_targets)
        read["regulariser"] = self.target in ("views", "latents")
        read["temperature"] = self.target == "contrast"
        read["hide"] = self.select is None
        read["unit"] = self.hide == "unit" and self.select is None
        read["store_folder"] = self.store != "memory"
        refuse_unread(self, [name for name, does in read.items() if not does])

    def _check_target(self) -> None:
        require(self, lambda v: v >= 0, "a number, 0 or more", "pixel_weight", "jitter")
        require(self, lambda v: 0 <= v <= 1, "a share, 0 to 1", "regulariser")
        require(self, lambda v: v > 0, "a number above 0", "temperature")
        least = 1 if self.target in ("pixels", "latents") else 2
        if self.views is not None and self.views < least:
            raise UserError(
                f"views={self.views} with target={self.target}", hint=f"Views are compared: {least} or more."
            )
        if self.target == "pixels":
            for name in ("views", "pixel_weight"):
                if getattr(self, name):
                    raise UserError(
                        f"{name}={getattr(self, name)} with target=pixels",
                        hint=f"Say what is learnt beside pixels: {setting('target', 'views')}, contrast or latents.",
                    )
        elif self.architecture == "in_place":
            raise UserError(
                f"target={self.target} with architecture=in_place",
                hint=f"Views are encoded from their visible patches: {setting('architecture', 'visible_only')}.",
            )

    def _check_views(self) -> None:
        known, expected = ("all", "max", "mean", "channels"), "all, max, mean, channels or a number from 0"
        require(self, lambda v: v in known or v.isdigit(), expected, "planes")
        require(self, lambda v: v >= 0, "pixels, 0 or more", "overlap")
        if self.view == "shrink":
            if self.overlap:
                raise UserError(
                    f"overlap={self.overlap} with view=shrink",
                    hint=f"Tiles overlap: say {setting('view', 'tile')} or crop.",
                )
            return
        if self.image_size is None:
            raise UserError(
                f"view={self.view} without image_size", hint=f"Say how large: {setting('image_size', 224)}."
            )
        if self.view == "crop" and self.crop not in (None, (1.0, 1.0)):
            raise UserError(
                f"crop={self.crop[0]},{self.crop[1]} with view=crop" if self.crop else "",
                hint=f"Resized crops are not at native resolution: leave crop out ({setting('crop', None)}), or say "
                f"{setting('view', 'tile')}.",
            )
        kept = sides(self.kept_size or self.image_size)
        if self.view == "tile" and kept != sides(self.image_size):
            raise UserError(
                f"store_size={self.store_size} with view=tile",
                hint=f"Tiles are of image_size; or say {setting('view', 'crop')}.",
            )
        if min(k - i for k, i in zip(kept, sides(self.image_size), strict=True)) < 0:
            raise UserError(f"store_size={self.store_size} below image_size={self.image_size}", hint="Make it larger.")

    @property
    def shown_views(self) -> int:
        """Views of each picture in a step."""
        return self.views or {"views": 4, "contrast": 2}.get(self.target, 1)

    @property
    def compares(self) -> bool:
        """Whether views of pictures are compared as wholes."""
        return self.target in ("views", "contrast")

    @property
    def predicts_pixels(self) -> bool:
        """Whether hidden patches are predicted in pixels."""
        return self.target == "pixels" or self.pixel_weight > 0

    @property
    def kept_size(self) -> int | tuple[int, int] | None:
        """What pictures are brought to, or cut into, when they are read."""
        if self.view == "crop" and self.store_size is None and self.image_size is not None:
            height, width = sides(self.image_size)
            return (2 * height, 2 * width)
        return self.store_size or self.image_size

    @property
    def scale(self) -> tuple[float, float]:
        """Share of the area that random resized crops cover."""
        if self.crop is not None:
            return self.crop
        if self.compares and self.view != "crop":
            return (0.3, 1.0)
        return (0.6, 1.0) if self.view == "shrink" else (1.0, 1.0)

    @property
    def reading(self) -> dict[str, Any]:
        """How files are read, in training and in use: arguments of `sources.read_images`."""
        return {
            "planes": self.planes,
            "alpha": self.alpha,
            "nodata": self.nodata,
            "slice": self.slice,
            "view": "shrink" if self.view == "shrink" else "tile",
            "overlap": self.overlap,
        }

    @property
    def size(self) -> str:
        """Name of the encoder's size, 'own' where it has none."""
        return next((k for k, v in SIZES.items() if v == (self.width, self.layers, self.heads)), "own")


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size setting.

    >>> sides(32), sides((28, 20))
    ((32, 32), (28, 20))
    """
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


PIXELS: dict[str, Any] = {
    "target": "pixels",
    "pixel_weight": 0.0,
    "jitter": 0.0,
    "gradients": False,
    "size": "micro",
    "ratio": 0.75,
    "batch": 256,
    "optimiser": "adamw",
    "learning_rate": 2e-3,
}
"""A masked autoencoder for small pictures, small data and a CPU; what the recipes below do not say is as here."""

MAE: dict[str, Any] = {
    "size": "base",
    "decoder": "mae",
    "image_size": 224,
    "patch": 16,
    "ratio": 0.75,
    "crop": (0.2, 1.0),
    "flip": True,
    "norm_targets": True,
    "statistics": 0.0,
    "positions": "sincos",
    "batch": 4096,
    "learning_rate": 2.4e-3,
    "weight_decay": 0.05,
    "beta2": 0.95,
    "schedule": "cosine",
    "warmup": 0.05,
    "clip": None,
}
"""He et al. 2022, appendix A.1, table 8: rate 1.5e-4 x batch / 256, 40 of 800 epochs warm-up."""

SIMMIM: dict[str, Any] = {
    "architecture": "in_place",
    "size": "base",
    "image_size": 224,
    "patch": 16,
    "hide": "unit",
    "unit": 32,
    "ratio": 0.6,
    "norm_targets": False,
    "statistics": 0.0,
    "loss": "l1",
    "positions": "learned",
    "crop": (0.67, 1.0),
    "flip": True,
    "batch": 2048,
    "learning_rate": 4e-4,
    "weight_decay": 0.05,
    "beta2": 0.999,
    "schedule": "wsd",
    "warmup": 0.0125,
    "decay": 0.125,
    "minimum_rate": 0.1,
    "clip": 5.0,
}
"""Xie et al. 2022, section 4.1 and appendix A: mask units of 32 pixels, 60 %, L1, rate 1e-4 x batch / 512. The step
decay at 7/8 of the run is a linear one here; learned absolute positions stand for the relative bias of their ViT."""

_VIEWS: dict[str, Any] = {"ratio": 0.5, "jitter": 0.4}
"""Views of small pictures on a CPU: half of the patches are seen, so that a view costs half."""

LEJEPA: dict[str, Any] = {**_VIEWS, "target": "views", "views": 4, "regulariser": 0.05, "weight_decay": 0.05}
"""Balestriero and LeCun 2025: views predict their mean, SIGReg at the paper's weight of 0.05. In the paper views are
large and small crops of large pictures; here they are as large as the picture, with patches hidden."""

SIMCLR: dict[str, Any] = {
    **_VIEWS,
    "target": "contrast",
    "temperature": 0.2,
    "ratio": 0.375,
    "gradients": True,
    "size": "nano",
    "batch": 128,
    "optimiser": "muon",
    "learning_rate": 4e-3,
}
"""Chen et al. 2020: two views, NT-Xent. The paper has temperature 0.1 to 0.5, batches of 4096, LARS and colours that
are distorted; here Muon, small batches and few layers (for more steps per minute), oriented gradients beside
pixels, brightness and contrast, and patches are hidden."""

IJEPA: dict[str, Any] = {"target": "latents", "hide": "block", "ratio": 0.6, "crop": (0.6, 1.0), "regulariser": 0.05}
"""After Assran et al. 2023 (I-JEPA): blocks of patches are predicted as representations by a narrow predictor. Their
targets come from a moving average of the encoder; here from the encoder itself, kept from collapse by SIGReg."""

SEGMENT: dict[str, Any] = {
    "view": "crop",
    "image_size": 128,
    "patch": 8,
    "ratio": 0.4,
    "norm_targets": False,
    "statistics": 0.0,
    "turn": True,
    "batch": 16,
    "holdout": 0.1,
    "optimiser": "muon",
    "learning_rate": 4e-3,
}
"""For `finetune segment`: crops at the pictures' own resolution, small patches, Muon and small batches (for more steps
per minute: with AdamW and 64 crops a step nothing was learnt of noisy micrographs in 600 steps)."""

RECIPES: dict[str, Mapping[str, Any]] = {
    "small": {},
    "pixels": PIXELS,
    "mae": PIXELS | MAE,
    "simmim": PIXELS | SIMMIM,
    "lejepa": PIXELS | LEJEPA,
    "simclr": PIXELS | SIMCLR,
    "ijepa": PIXELS | IJEPA,
    "segment": PIXELS | SEGMENT,
}
"""`small` is the settings as they stand: `simclr`, with the pixels of hidden patches predicted beside, so that the
model fills and scores too (what each is worth: docs/explanation/measured-images.md)."""

DEFAULT = "small"
"""The recipe of `pretrain images` where none is given."""

ELSEWHERE = {
    "transform": "Settings as keywords: image_size=224, crop=(0.6, 1.0), flip=False, jitter=0.4",
    "pretrained": "A pretrained model is loaded, unmask.load(folder), and fine-tuned, unmask.finetune(model, pictures)",
    "num_classes": "Leave it out: the classes are those of the labels",
}
"""Keyword that other libraries have for pictures -> what to write here."""

ATTRIBUTES = {
    **dict.fromkeys(("forward_*", "get_intermediate_layers", "encode", "transform"), "model.embed(pictures)"),
    "get_preds": "model.predict(pictures)",
    "fine_tune": "model.finetune(pictures, labels)",
    "fill_mask": "model.fill(pictures)",
    "generate": "model.fill(pictures)",
}
"""Attribute of models in other libraries -> our call, beside those of `verbs.Usable`."""

_NAMED = {
    "size": (SIZES, ("width", "layers", "heads")),
    "decoder": (DECODERS, ("decoder_width", "decoder_layers", "decoder_heads")),
}


def with_overrides(settings: ImageSettings, overrides: Mapping[str, Any]) -> ImageSettings:
    """Replace settings by key; `size` and `decoder` stand for three each; keys of `train` may be given bare.

    Raises:
        UserError: for an unknown key or name, with the closest known one.
    """
    named: dict[str, Any] = {}
    for key, (table, names) in _NAMED.items():
        if key in overrides:
            if overrides[key] not in table:
                raise UserError(f"{key}={overrides[key]}", hint=suggest(str(overrides[key]), table))
            named |= dict(zip(names, table[overrides[key]], strict=True))
    rest = {k: v for k, v in overrides.items() if k not in _NAMED}
    # Rows hold one picture each: the batch is counted in pictures.
    return apply_run_overrides(settings, named | rest, also=_NAMED, without=("batch_slots",))
