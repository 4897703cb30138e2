"""What is judged was not learnt from: parts of data sets, groups, and exact copies."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

import unmask
from tiny_images import TINY, bars
from unmask.errors import UserError
from unmask.modalities.images import recipes
from unmask.modalities.images.account import check_fit
from unmask.modalities.images.arrays import from_array
from unmask.modalities.images.probe_start import folded
from unmask.modalities.images.sources import read_images
from unmask.modalities.images.split import copies_said, held_out_by_class, held_out_pictures, kept_together


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
    assert found.test.sum() == 12
    notes = "; ".join(found.notes)
    assert "held apart from training: test (6), val (6)" in notes
    assert (f"left out, beside the parts of the data set: {beside.split('/')[0]} (1 pictures)" in notes) == (
        beside.endswith("png")
    )


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
    assert copies_said(found) == ["3 pictures are exact copies of others: kept on one side of every split"]


def test_splits_without_copies_are_as_before():
    found = images()
    assert kept_together(found) is None
    assert copies_said(found) == []


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


def test_pictures_of_another_scale_are_refused():
    hounsfield = from_array(np.linspace(-1000, 2000, 64, dtype=np.float32).reshape(1, 8, 8), None)
    bytes_, unit = images(4), from_array(np.random.default_rng(0).random((4, 8, 8), np.float32), None)
    check_fit(hounsfield, "float32", (-1000.0, 2000.0))
    check_fit(bytes_, "float32", (0.0, 1.0))
    for other in (bytes_, unit, from_array(np.full((2, 8, 8), 300, np.uint16), None)):
        with pytest.raises(UserError, match="for a model"):
            check_fit(other, "float32", (-1000.0, 2000.0))
