"""What is judged was not learnt from: parts of data sets, groups, and exact copies."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import unmask
from commands import run
from tiny_images import TINY, bars
from unmask.errors import UserError
from unmask.modalities.images import recipes
from unmask.modalities.images.classify.probe_start import folded
from unmask.modalities.images.reading.account import check_fit, describe
from unmask.modalities.images.reading.arrays import from_array
from unmask.modalities.images.reading.copies import copy_notes
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.reading.split import (
    held_out_by_class,
    held_out_pictures,
    kept_together,
    notes_across,
)


def picture(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8), np.uint8)).save(path)


@pytest.fixture
def parts(tmp_path):
    for k, place in enumerate(f"{p}/{c}/{i}" for p in ("train", "val", "test") for c in "ab" for i in range(3)):
        picture(tmp_path / f"{place}.png", k)
    return tmp_path


@pytest.mark.parametrize("beside", ["annotations/m.png", "__MACOSX/x.txt", "model/config.json", "model/pictures/1.png"])
def test_names_of_parts_are_never_classes(parts, beside):
    if beside.endswith("png"):
        picture(parts / beside, 99)
    else:
        (parts / beside).parent.mkdir()
        (parts / beside).write_text("x")
    found = read_images(parts)
    assert found.classes == ["a", "b"]
    assert [len(found.part(name)) for name in ("train", "validation", "test")] == [6, 6, 6]
    notes = "; ".join(found.notes)
    assert "held apart from training: test (6), val (6)" in notes
    assert (f"left out, beside the parts of the data set: {beside.split('/')[0]} (1 pictures)" in notes) == (
        beside.endswith("png")
    )


@pytest.mark.parametrize(
    "train", ["train2017", "seg_train", "my train", "training_set/training_set", "a_train/a_train"]
)
def test_parts_are_known_by_the_names_that_data_sets_give_them(tmp_path, train):
    for number, one in enumerate(f"{c}/{i}.png" for c in "ab" for i in range(3)):
        picture(tmp_path / train / one, number)
        (tmp_path / train.split("/")[0] / ".DS_Store").write_text("x")
        picture(tmp_path / train.replace("training", "test").replace("train", "val") / one, 9 + number)
    found = read_images(tmp_path)
    assert found.classes == ["a", "b"]
    assert len(found.part("train")) == 6


@pytest.mark.parametrize("classes", [("bus", "freight_train"), ("post_test", "pre_test"), ("train/bus", "train/train")])
def test_classes_that_end_as_parts_do_stay_classes(tmp_path, classes):
    for number, one in enumerate(f"{c}/{i}.png" for c in classes for i in range(3)):
        picture(tmp_path / one, number)
    assert read_images(tmp_path).classes == [c.removeprefix("train/") for c in classes]


def test_one_part_beside_other_folders_of_pictures_is_a_question(tmp_path):
    picture(tmp_path / "test" / "1.png", 1)
    picture(tmp_path / "control" / "1.png", 2)
    with pytest.raises(UserError, match=r"test is the name of a part of a data set, and beside it is control \(1"):
        read_images(tmp_path)
    (tmp_path / "control" / "1.png").unlink()
    assert len(read_images(tmp_path)) == 1


def images(count=40, copied=(), groups=None):
    pixels = np.random.default_rng(0).integers(0, 255, (count, 6, 6), np.uint8)
    for a, b in copied:
        pixels[b] = pixels[a]
    found = from_array(pixels, np.arange(count) % 2)
    return dataclasses.replace(found, groups=None if groups is None else np.unique(groups, return_inverse=True)[1])


@pytest.mark.parametrize("seed", range(5))
def test_copies_and_what_they_join_stay_on_one_side(seed):
    found = images(copied=[(0, 2), (2, 4), (10, 21)], groups=[f"p{i // 2}" for i in range(40)])
    together = kept_together(found)
    assert len(np.unique(together)) == 20 - 3
    assert len({together[i] for i in (0, 1, 2, 3, 4, 5)}) == 1, "three patients with one picture"
    for held in (held_out_pictures(found, 0.3, seed), held_out_by_class(found, 0.3, seed)):
        assert 0 < held.sum() < 40
        for number in np.unique(together):
            assert len(set(held[together == number])) == 1
    assert copy_notes(found)[0] == "3 pictures are exact copies of others: kept on one side of every split"


def scenes(count: int) -> np.ndarray:
    """(2 * count, 32, 32) pictures: each twice, the second time brighter."""
    each = np.random.default_rng(0).integers(0, 200, (count, 32, 32), np.uint8)
    return np.repeat(each, 2, 0) + np.tile(np.array([0, 30], np.uint8), count)[:, None, None]


@pytest.mark.parametrize("seed", range(3))
def test_near_copies_stay_on_one_side_where_no_groups_are_given(seed):
    found = from_array(scenes(20), np.repeat(np.arange(20) % 2, 2))
    held = held_out_by_class(found, 0.3, seed)
    assert held.sum() == 12
    assert (held[::2] == held[1::2]).all()
    lines = notes_across(found.take(np.flatnonzero(~held)), found.take(np.flatnonzero(held)))
    assert lines[0].startswith("20 pictures are near copies (encoded or scaled anew) of others, all on one side of")
    grouped = dataclasses.replace(found, groups=np.arange(40) % 20)
    np.testing.assert_array_equal(kept_together(grouped, near=True), grouped.groups)


def test_near_copies_that_are_most_of_the_pictures_can_be_judged():
    """One camera and one object: parts of them that differ are what is learnt."""
    pixels = np.tile(scenes(1)[0], (20, 1, 1))
    pixels[:, 5, 5] = np.arange(20)
    found = from_array(pixels, np.arange(20) % 2)
    held = held_out_by_class(found, 0.2, 0)
    assert held.sum() == 4
    lines = notes_across(found.take(np.flatnonzero(~held)), found.take(np.flatnonzero(held)))
    assert lines[0].startswith("warning: 4 of 4 pictures to judge on are near copies")


def test_pictures_of_several_classes_are_named_by_every_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels, labels = bars(24)
    for number, picture in enumerate(pixels):
        for place in (f"photos/{labels[number]}", *([f"photos/{labels[number - 1]}"] if number in (4, 7) else [])):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(tmp_path / place / f"{number:02d}.png")
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 2, "steps": 1})
    unmask.images.pretrain(pixels, tmp_path / "m", settings=settings, console=False)
    line = "2 pictures stand under several labels: 0/04.png and 1/04.png; 0/07.png and 1/07.png"
    for command in (("describe", "photos"), ("evaluate", "m", "photos"), ("finetune", "classify", "m", "photos")):
        code, said, err = run(
            capsys, *command, *(["--out", "c", "--set", "steps=1"] if command[0] == "finetune" else [])
        )
        assert code == 0, err
        assert line in said + err, command
    code, said, _ = run(capsys, "evaluate", "c", "photos")
    assert line in said
    several = dataclasses.replace(read_images(tmp_path / "photos"), labels=np.zeros(26, int))
    assert [line for line in copy_notes(several) if "several labels" in line] == []


def test_splits_without_copies_are_as_before():
    found = images()
    assert kept_together(found) is None
    assert copy_notes(found) == []


def test_folds_keep_groups_whole():
    """Features that name the patient tell the label of other pictures of the patient, and of nobody else."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(24), 8)
    labels = rng.permutation(np.arange(24) % 2)[patient]
    features = np.eye(24, dtype=np.float32)[patient] + rng.normal(0, 0.01, (192, 24)).astype(np.float32)
    right = {
        name: np.mean([(p.argmax(1) == labels).mean() for p in folded(features, labels, 0, groups).values()])
        for name, groups in (("pictures", None), ("patients", patient))
    }
    assert right["pictures"] > 0.95
    assert right["patients"] < 0.7


def test_classes_copies_and_what_is_not_held_out_are_said(tmp_path, capsys):
    pixels, labels = bars()
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 2, "steps": 1})
    unmask.images.pretrain((pixels, labels), tmp_path / "m", settings=settings, console=False)
    unmask.images.finetune(tmp_path / "m", (pixels, labels), tmp_path / "c", validation=(pixels[:4], labels[:4]))
    said = capsys.readouterr().err
    assert "classes: " in said
    assert "4 of 4 pictures to judge on are exact copies of training ones" in said
    for part, kept in (("train", 20), ("test", 3)):
        for number in range(kept):
            path = tmp_path / "parts" / part / str(labels[number]) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[number]).save(path)
    unmask.images.finetune(tmp_path / "m", tmp_path / "parts", tmp_path / "d")
    said = capsys.readouterr().err
    assert "held apart from training: test (3)" in said
    assert "3 of 3 pictures to judge on are exact copies of training ones" in said
    notes = unmask.load(tmp_path / "m").evaluate(tmp_path / "parts")["notes"]
    assert len(notes) == 1
    assert "3 of 3 pictures to judge on are exact copies of training ones: figures flatter the model (" in notes[0]
    twice, both = (
        np.concatenate([pixels[:4]] * 2),
        np.concatenate([labels[:4], np.where(labels[:4] == labels[0], labels[-1], labels[0])]),
    )
    notes = unmask.load(tmp_path / "c").evaluate((twice, both))["notes"]
    assert notes[0].startswith("warning: 4 pictures stand under several labels")


SCALES = {
    "Hounsfield units": lambda x: x * 3000 - 1000,
    "0 to 255 as floats": lambda x: x * 255,
    "0 to 1": lambda x: x,
    "8 bits": lambda x: (x * 255).astype(np.uint8),
    "labels in 8 bits": lambda x: (x * 3).astype(np.uint8),
    "16 bits": lambda x: (x * 65535).astype(np.uint16),
    "12 bits in 16": lambda x: (x * 4095).astype(np.uint16),
    "8 bits in 16": lambda x: (x * 255).astype(np.uint16),
}
TOGETHER = [{"0 to 1", "8 bits"}, {"0 to 1", "16 bits"}]
"""Whole numbers are read as their share of the full range."""


def scaled(scale, count=6, seed=0, contrast=1.0):
    drawn = np.random.default_rng(seed).random((count, 8, 8), np.float32)
    return from_array(SCALES[scale](drawn * contrast), None)


def fit_of(model, given):
    about = describe(model)
    return check_fit(given, model.depth, tuple(about["range"]), tuple(about["typical"]))


@pytest.mark.parametrize("model", SCALES)
@pytest.mark.parametrize("given", SCALES)
def test_a_model_of_one_scale_refuses_another(model, given):
    if model == given or {model, given} in TOGETHER:
        assert fit_of(scaled(model), scaled(given, seed=1)) == []
    else:
        with pytest.raises(UserError, match="for a model"):
            fit_of(scaled(model), scaled(given, seed=1))


def test_dark_blank_and_odd_pictures_are_of_the_same_scale():
    model = scaled("8 bits")
    assert fit_of(model, scaled("8 bits", contrast=0.2)) == []
    assert fit_of(model, from_array(np.zeros((2, 8, 8), np.uint8), None)) == []
    odd = scaled("Hounsfield units")
    odd.pixels[0, 0, 0] = 1e6  # does not make room for other scales
    with pytest.raises(UserError, match="for a model"):
        fit_of(odd, scaled("0 to 255 as floats"))


def test_a_published_model_of_8_bits_takes_their_whole_range_as_its_own():
    """Such a folder does not say what range it was trained on."""
    assert check_fit(scaled("8 bits"), "uint8", None) == []
    assert check_fit(scaled("0 to 1"), "uint8", None) == []
    for wrong in (scaled("0 to 1").pixels / 255, scaled("labels in 8 bits").pixels):
        with pytest.raises(UserError, match="for a model trained on 0 to 255"):
            check_fit(from_array(wrong, None), "uint8", None)


def test_floats_elsewhere_on_the_scale_are_warned_of(tmp_path):
    pixels = scaled("Hounsfield units", 20).pixels
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 2, "steps": 1})
    unmask.images.pretrain(pixels, tmp_path / "m", settings=settings, console=False)
    model = unmask.load(tmp_path / "m")
    with pytest.warns(UserWarning, match="are they on one scale"):
        model.embed(pixels[:3] + 2000)


def test_what_is_cut_and_scaled_is_said(tmp_path):
    wide = np.random.default_rng(0).integers(0, 255, (6, 24, 96), np.uint8)
    (tmp_path / "files").mkdir()
    for number, one in enumerate(wide):
        Image.fromarray(one).save(tmp_path / "files" / f"{number}.png")
    for source in (wide, list(wide), tmp_path / "files"):
        assert read_images(source, size=24).notes == ["were 96 x 24 pixels: 75% of each cut off"]
        assert read_images(source, size=(48, 192)).notes == ["were 96 x 24 pixels: enlarged 2 times"]
        assert read_images(source).notes == []
    assert read_images(tmp_path / "files", size=24, view="tile").notes == []


def test_that_pictures_are_mirrored_is_said(tmp_path, capsys):
    given = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 2, "steps": 1})
    for flip in (True, False):
        settings = recipes.with_overrides(given, {"flip": flip})
        unmask.images.pretrain(bars(), tmp_path / f"m{flip}", settings=settings)
        assert ("mirrors" in capsys.readouterr().err) == flip
        chosen = unmask.images.FinetuneSettings(
            flip=flip, train=dataclasses.replace(unmask.images.FinetuneSettings().train, epochs=None, steps=1)
        )
        unmask.images.finetune(tmp_path / f"m{flip}", bars(), tmp_path / f"c{flip}", settings=chosen)
        assert ("mirrors" in capsys.readouterr().err) == flip


def test_pictures_are_described_before_there_is_a_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        folder = tmp_path / "photos" / ("train", "test")[number % 2] / ("cat", "dog")[number // 4]
        folder.mkdir(parents=True, exist_ok=True)
        side = 12 + number // 2 * 4
        Image.fromarray(np.random.default_rng(number // 2).integers(0, 255, (side, 40), np.uint8)).save(
            folder / f"{number}.png"
        )
    code, said, _ = run(capsys, "describe", "photos")
    assert code == 0
    for line in ("were 40 x 12 to 40 x 24 pixels", "classes: cat (4), dog (4)", "held apart from training: test (4)"):
        assert line in said
    assert "4 of 4 pictures to judge on are exact copies of training ones" in said
    assert "one side" not in said
    assert "of each cut off" in said
    _, said, _ = run(capsys, "describe", "photos", "--set", "image_size=12", "--json")
    assert json.loads(said)["shape"] == [12, 12, 1]
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    assert run(capsys, "describe", "t.csv")[0] == 0
    assert run(capsys, "describe", "photos", "--event", "x")[0] == 2


def test_a_column_of_patients_that_nothing_reads_is_named(tmp_path):
    for i in range(8):
        picture(tmp_path / f"{i}.png", i)
    columns = {"file": [f"{i}.png" for i in range(8)], "label": list("aabb" * 2), "patient": [i // 2 for i in range(8)]}
    pd.DataFrame(columns).to_csv(tmp_path / "labels.csv", index=False)
    cells = {"image": [(tmp_path / name).read_bytes() for name in columns["file"]]}
    arrays = {"image": [np.eye(8, dtype=np.uint8) * (i + 1) for i in range(8)]}
    others = {name: columns[name] for name in ("label", "patient")}
    for data in (tmp_path / "labels.csv", cells | others, arrays | others):
        line = read_images(data, size=8, problem="auto").notes[-1]
        assert "'patient' names 4 individuals in 8 rows, and nothing reads it" in line
        grouped = read_images(data, size=8, problem="auto", group="patient")
        assert not [note for note in grouped.notes if "individuals" in note]


def test_groups_that_differ_in_spelling_alone_are_told():
    found = dataclasses.replace(images(4), groups=np.array(["PAT03", "PAT03", "pat03 ", "p4"]))
    assert "'PAT03' and 'pat03 '" in copy_notes(found)[0]
    parts = [found.take(np.array(k)) for k in ([0, 1], [2, 3])]
    assert "'PAT03' and 'pat03 '" in notes_across(*parts)[1]
