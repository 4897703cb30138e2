"""Every setting of pictures does something, or is refused by name where nothing reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from PIL import Image

from picture_files import imagej, nifti_volume, ramp
from tiny_images import TINY, bars
from unmask.errors import UserError
from unmask.modalities.images.classify.classifier_settings import UNREAD, ClassifierSettings
from unmask.modalities.images.classify.classifier_settings import with_overrides as classifier_settings
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.recipes import ImageSettings, with_overrides
from unmask.modalities.images.uses.finetune import finetune_classify
from unmask.modalities.images.uses.model import load
from unmask.modalities.images.uses.pretrain import pretrain
from unmask.training.settings import TrainSettings

pytest.importorskip("tifffile")
pytest.importorskip("nibabel")

SMALL = {k: v for k, v in TINY.items() if not k.startswith("decoder")}
SMALL |= {"steps": 3, "batch": 8, "device": "cpu", "patch": 3, "holdout": 0.4, "workers": 1}
PATHS = {
    "mae": {},
    "simmim": {"architecture": "in_place", "hide": "unit", "unit": 6, "norm_targets": False, "loss": "l1"},
    "views": {"target": "views", "pixel_weight": 1.0},
    "contrast": {"target": "contrast", "pixel_weight": 1.0},
    "latents": {"target": "latents", "pixel_weight": 1.0},
}
OTHER = {
    "architecture": "in_place",
    "width": 48,
    "layers": 3,
    "heads": 1,
    "decoder_width": 24,
    "decoder_layers": 1,
    "decoder_heads": 1,
    "image_size": 18,
    "patch": 4,
    "channels": 3,
    "ratio": 0.4,
    "hide": "block",
    "select": "unmask.core.corruption:Spans",
    "unit": 3,
    "norm_targets": False,
    "loss": "l1",
    "statistics": 0.3,
    "target": "views",
    "pixel_weight": 0.5,
    "views": 3,
    "regulariser": 0.3,
    "temperature": 0.7,
    "projector": 64,
    "projection": 16,
    "jitter": 0.2,
    "positions": "learned",
    "gradients": True,
    "class_token": False,
    "view": "tile",
    "overlap": 3,
    "planes": "max",
    "alpha": "missing",
    "nodata": 220,
    "slice": "coronal",
    "group": "folder",
    "crop": (0.4, 0.7),
    "flip": False,
    "turn": True,
    "batch": 6,
    "holdout": 0.2,
    "store_size": 15,
    "store": "disk",
    "store_folder": "kept",
    "strict": True,
    "examples": True,
    "column": "other",
    "label_column": "size",
    "probe": False,
    "probe_every": 2.0,
}
"""`workers` says how fast, not what; `train` is tested where it is."""
TOGETHER = {
    "hide": {"unit": None},
    "select": {"hide": "patch", "unit": None},
    "view": {"image_size": 12},
    "overlap": {"view": "tile", "image_size": 12},
    "store_folder": {"store": "disk"},
}
TABLE = ("column", "label_column")
REFUSED: dict[str, tuple[str, ...]] = {
    "mae": ("pixel_weight", "views", "regulariser", "temperature", "projector", "projection"),
    "simmim": (
        *("decoder_width", "decoder_layers", "decoder_heads", "statistics", "target"),
        *("pixel_weight", "views", "regulariser", "temperature", "projector", "projection"),
    ),
    "views": ("temperature", "architecture"),
    "contrast": ("regulariser", "architecture"),
    "latents": ("temperature", "architecture"),
}
LEARNT = (
    *("architecture", "decoder_width", "decoder_layers", "decoder_heads", "ratio", "hide", "unit", "norm_targets"),
    *("loss", "statistics", "target", "pixel_weight", "views", "regulariser", "temperature", "projector"),
    *("projection", "jitter", "select"),
)
"""What is predicted, and of what: by target and architecture. All else is read alike on every path."""
NEEDS = {"unit": {"hide": "unit"}}
"""Refused without these, by every path that does not have them."""


def _png(value):
    buffer = io.BytesIO()
    Image.fromarray(value).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    pixels, labels = bars(48, (15, 15))
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = place / "pictures" / ("across", "down", "square")[label] / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number:02}.png")
    inner = place / "pictures" / "down" / "0"
    for number in range(6):
        share = np.where(np.arange(15) < 8, 0, pixels[number + 1]).astype(np.uint8)
        Image.fromarray(np.stack([pixels[number], share], -1), "LA").save(inner / f"clear{number}.png")
    imagej(inner / "stack.tif", ramp(3, 15, 15), "ZYX")
    for number in range(3):
        nifti_volume(inner / f"volume{number}.nii", ramp(15, 15, 15, seed=4 + number))
    (inner / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    encoded = [_png(p) for p in pixels]
    size = np.where(np.arange(48) % 5 == 0, "small", "large")
    rows = {"image": encoded, "other": encoded[::-1], "label": labels, "size": size}
    pl.DataFrame(rows).write_parquet(place / "table.parquet")
    return place


def outcome(corpus, place, name=None, **more):
    """What a run leaves: the model, what was read and measured, what the report shows, what was stored."""
    data, small = corpus / ("table.parquet" if name in TABLE else "pictures"), SMALL | {"image_size": 12}
    if name in LEARNT:
        data, small = bars(24)[0], small | {"steps": 2, "warmup": 0.0, "probe": False}
    pretrain(data, place, settings=with_overrides(ImageSettings(), small | more), console=False)
    about = json.loads((place / "unmask.json").read_text())
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return (
        hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest(),
        about["classes"],
        sorted({key for line in lines for key in line}),
        sum("validation_loss" in line for line in lines),
        re.findall("<h2[^>]*>(.*?)</h2>", (place / "report.html").read_text()),
        sorted(str(p.relative_to(place.parent)) for p in place.parent.rglob("*.bin")),
    )


@pytest.fixture(scope="module")
def usual(corpus, tmp_path_factory):
    found = {}

    def of(path, name):
        key = (path, name in TABLE, name in LEARNT)
        if key not in found:
            found[key] = outcome(corpus, tmp_path_factory.mktemp("usual") / "run", name, **PATHS[path])
        return found[key]

    return of


def test_every_setting_has_another_value_here():
    assert set(OTHER) == {f.name for f in dataclasses.fields(ImageSettings)} - {"train", "workers"}


def read_by(path, name):
    return PATHS[path].get(name) != OTHER[name] and (path == "mae" or name in LEARNT)


@pytest.mark.parametrize(("path", "name"), [(p, n) for p in PATHS for n in OTHER if read_by(p, n)])
def test_a_setting_of_pretraining_changes_the_run_or_is_refused(name, path, corpus, usual, tmp_path):
    more = PATHS[path] | TOGETHER.get(name, {}) | {name: OTHER[name]}
    if name == "store_folder":
        more["store_folder"] = str(tmp_path / "kept")
    refused = name in REFUSED[path] or name == "strict" or any(more.get(k) != v for k, v in NEEDS.get(name, {}).items())
    if refused:
        with pytest.raises(UserError, match="broken.png" if name == "strict" else name):
            outcome(corpus, tmp_path / "run", name, **more)
    else:
        assert outcome(corpus, tmp_path / "run", name, **more) != usual(path, name)


SMALL_TUNE = {
    "start": "zero",
    "epochs": 2,
    "batch": 8,
    "precision": "fp32",
    "device": "cpu",
    "holdout": 0.3,
    "learning_rate": 0.02,
    "label_column": "label",
    "column": "file",
    "pooling": "mean",
    "gradients": False,
    "keep_best": False,
}


TUNED = {
    "pooling": "grid",
    "gradients": True,
    "start": "probe",
    "probe_rate": 0.9,
    "average": 0.9,
    "layer_decay": 0.5,
    "drop_path": 0.5,
    "problem": "regression",
    "threshold": 0.3,
    "mixup": 0.5,
    "cutmix": 0.5,
    "smoothing": 0.3,
    "crop": (0.3, 0.5),
    "flip": False,
    "batch": 7,
    "group": "site",
    "pictures": "mirrored",
    "column": "other",
    "label_column": "size",
    "holdout": 0.5,
    "keep_best": True,
    "from_scratch": True,
    "store": "disk",
    "store_folder": "kept",
}
COURSE = {
    "epochs": 3,
    "steps": 5,
    "learning_rate": 0.01,
    "beta1": 0.5,
    "beta2": 0.8,
    "epsilon": 0.1,
    "weight_decay": 0.5,
    "clip": 0.01,
    "schedule": "constant",
    "warmup": 0.5,
    "decay": 0.5,
    "minimum_rate": 0.5,
    "seed": 5,
    "log_every": 1,
    "precision": "bf16",
}
"""Of `train`; `minutes`, `memory`, `device`, `checkpoint_seconds` and `nan_limit` say how long and where, not what."""
ALSO = {
    "probe_rate": {"start": "probe"},
    "average": {"start": "probe"},
    "decay": {"schedule": "wsd"},
    "store_folder": {"store": "disk"},
    "keep_best": {"epochs": 6},
    "steps": {"epochs": None},
}


@pytest.fixture(scope="module")
def labelled(corpus, tmp_path_factory):
    """(a model, a table of files and labels): the same files in another folder are mirrored."""
    place = tmp_path_factory.mktemp("labelled")
    pixels, labels = bars(36)
    for folder, turned in (("straight", pixels), ("mirrored", pixels[:, ::-1])):
        (place / folder).mkdir()
        for number, picture in enumerate(turned):
            Image.fromarray(picture).save(place / folder / f"{number:02}.png")
    names = [f"{n:02}.png" for n in range(36)]
    rows = {"file": names, "other": names[1:] + names[:1], "label": labels, "size": np.arange(36) % 2}
    pl.DataFrame(rows | {"site": np.arange(36) // 4}).write_csv(place / "table.csv")
    given = with_overrides(ImageSettings(), TINY | {"patch": 3, "steps": 3, "batch": 8})
    pretrain(pixels, place / "model", settings=given, console=False)
    return place


def tuned(labelled, place, **more):
    given = SMALL_TUNE | {"pictures": str(labelled / "straight")} | more
    if given["pictures"] == "mirrored":
        given["pictures"] = str(labelled / "mirrored")
    settings = classifier_settings(ClassifierSettings(), given)
    data = labelled / "table.csv"
    figures = finetune_classify(labelled / "model", data, place, settings=settings, console=False).figures
    lines = (place / "metrics.jsonl").read_text().splitlines()
    stored = sorted(str(p.relative_to(place.parent)) for p in place.parent.rglob("*.bin"))
    kept = {k: figures[k] for k in ("precision", "problem", "kept_step", "validation_pictures")}
    return hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest(), len(lines), stored, kept


@pytest.fixture(scope="module")
def usually_tuned(labelled, tmp_path_factory):
    found = {}

    def of(**more):
        if (key := repr(more)) not in found:
            found[key] = tuned(labelled, tmp_path_factory.mktemp("usual") / "run", **more)
        return found[key]

    return of


def test_every_setting_of_finetuning_has_another_value_here():
    own = {f.name for f in dataclasses.fields(ClassifierSettings)} - {"train"}
    schedule = {f.name for f in dataclasses.fields(TrainSettings)} - set(UNREAD)
    assert set(TUNED) == own
    assert set(COURSE) == schedule - {"minutes", "memory", "device", "checkpoint_seconds", "nan_limit"}


@pytest.mark.parametrize("name", [*TUNED, *COURSE])
def test_a_setting_of_finetuning_changes_the_model_or_is_refused(name, labelled, usually_tuned, tmp_path):
    more = ALSO.get(name, {})
    other = str(tmp_path / "kept") if name == "store_folder" else (TUNED | COURSE)[name]
    if name == "threshold":
        with pytest.raises(UserError, match=name):
            tuned(labelled, tmp_path / "run", threshold=other)
    else:
        assert tuned(labelled, tmp_path / "run", **more, **{name: other}) != usually_tuned(**more)


def test_what_the_start_of_the_head_or_given_pictures_make_idle_is_refused(labelled, tmp_path):
    for given in ({"start": "zero", "probe_rate": 0.9}, {"from_scratch": True, "average": 0.9}):
        with pytest.raises(UserError, match=f"{list(given)[-1]}=.*nothing reads"):
            tuned(labelled, tmp_path / "run", **given)
    given = {**SMALL_TUNE, "pictures": str(labelled / "straight"), "holdout": 0.5}
    settings, table = classifier_settings(ClassifierSettings(), given), labelled / "table.csv"
    with pytest.raises(UserError, match=r"holdout=0\.5.*nothing reads"):
        finetune_classify(labelled / "model", table, tmp_path / "run", validation=table, settings=settings)
    with pytest.raises(UserError, match="matrix_rate"):
        classifier_settings(ClassifierSettings(), {"matrix_rate": 2.0})


def test_the_threshold_of_several_labels_is_kept_and_read(labelled, tmp_path):
    given = {"column": "file", "label_column": "size,label", "steps": 1, "precision": "fp32", "problem": "multi"}
    pl.read_csv(labelled / "table.csv").with_columns(pl.col("label") // 2).write_csv(labelled / "two.csv")
    for threshold in (0.1, 0.9):
        chosen = given | {"threshold": threshold, "pictures": str(labelled / "straight")}
        settings, out = classifier_settings(ClassifierSettings(), chosen), tmp_path / str(threshold)
        finetune_classify(labelled / "model", labelled / "two.csv", out, settings=settings, console=False)
    said = [[r["labels"] for r in load(tmp_path / t).predict(bars(6)[0])] for t in ("0.1", "0.9")]
    assert said[0] != said[1]


PIXELS, NUMBERS = bars(6)


@pytest.mark.parametrize("name", ["planes", "alpha", "slice", "group", "column", "label_column", "pictures"])
@pytest.mark.parametrize(
    "data",
    [
        PIXELS,
        list(PIXELS),
        (PIXELS, NUMBERS),
        pd.DataFrame({"image": list(PIXELS)}),
        ImageSet(pixels=PIXELS[..., None]),
    ],
    ids=["array", "arrays", "pair", "frame", "read"],
)
def test_what_is_said_of_files_is_refused_for_pictures_in_memory(name, data):
    value = {"planes": "max", "alpha": "band", "slice": "coronal"}.get(name, "x")
    if isinstance(data, list | pd.DataFrame) and name == "alpha":
        return  # Pillow's pictures in lists have one
    with pytest.raises(UserError, match=f"{name}|no column"):
        read_images(data, **{name: value})
    if name in ("planes", "alpha", "slice"):
        assert len(read_images(data, **{name: value}, usual={name: value})) == 6


def test_columns_of_a_table_are_refused_for_folders_and_labels_where_they_are_not_read(labelled):
    for name in ("column", "label_column", "pictures"):
        with pytest.raises(UserError, match=f"{name}=.*nothing reads"):
            read_images(labelled / "straight", **{name: "x"})
        with pytest.raises(UserError, match=f"{name}=.*nothing reads"):
            read_images([str(labelled / "straight" / "00.png")], **{name: "x"})
    with pytest.raises(UserError, match=r"label_column=.*nothing reads"):
        read_images(labelled / "table.csv", problem="none", pictures=str(labelled / "straight"), label_column="size")


def test_a_frame_of_arrays_has_its_labels_and_groups():
    frame = pd.DataFrame({"image": list(PIXELS), "label": list("abcabc"), "site": [1, 1, 2, 2, 3, 3]})
    found = read_images(frame, group="site")
    assert found.classes == ["a", "b", "c"]
    assert found.groups.tolist() == ["1", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize("kind", ["LA", "RGBA", "P", "L", "deep"])
def test_alpha_is_read_of_every_kind_of_file(kind, tmp_path):
    """Only TIFFs had it."""
    share, grey = ramp(16, 20, seed=3), ramp(16, 20)
    share[:4] = 0
    if kind == "deep":
        pytest.importorskip("imagecodecs")
        import imagecodecs

        wide = np.stack(
            [ramp(16, 20, dtype="uint16", high=65535, seed=k) for k in range(3)] + [share * np.uint16(257)], -1
        )
        (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(wide))
        colour, opacity = wide[..., :3], wide[..., 3]
    elif kind in ("P", "L"):  # one number is transparent
        grey = grey // 8 if kind == "P" else grey
        image = Image.fromarray(grey)
        if kind == "P":
            image.putpalette([v for k in range(256) for v in (k, k, 255 - k)])
        image.save(tmp_path / "a.png", transparency=int(grey[5, 5]))
        opacity = np.where(grey == grey[5, 5], 0, 255)
        colour = np.stack([grey, grey, 255 - grey], -1) if kind == "P" else grey[..., None]
    else:
        colour = np.stack([grey] * (1 if kind == "LA" else 3), -1)
        opacity = share
        Image.fromarray(np.concatenate([colour, share[..., None]], -1), kind).save(tmp_path / "a.png")
    for source in (tmp_path / "a.png", [Image.open(tmp_path / "a.png")]):
        if kind == "deep" and isinstance(source, list):
            continue  # Pillow has 8 bits of it
        band = read_images(source, alpha="band")
        np.testing.assert_array_equal(band.pixels[0], np.concatenate([colour, opacity[..., None]], -1))
    gone = read_images(tmp_path / "a.png", alpha="missing")
    np.testing.assert_array_equal(gone.missing[0], opacity == 0)
    np.testing.assert_array_equal(gone.pixels[0], np.where(opacity[..., None] == 0, 0, colour))
    with pytest.raises(UserError, match=r"alpha='missing' of a picture in memory|of which 8 would be kept"):
        read_images([Image.open(tmp_path / "a.png")], alpha="missing")
