"""Vectors of pictures as files that say what each row is of, and nearest neighbours beside those by raw pixels."""

import dataclasses
import json

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from PIL import Image

import unmask
from commands import run
from picture_files import dicom_slice, nifti_volume, ramp
from tiny_images import TINY, bars, class_folder
from unmask.errors import UserError
from unmask.modalities.images import recipes
from unmask.modalities.images.network import features
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.uses.neighbours import nearest, neighbours_of, picture_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    where = tmp_path_factory.mktemp("model")
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 2, "steps": 2})
    unmask.images.pretrain(bars(), where / "m", settings=settings, console=False)
    return where / "m"


def test_nearest_is_exact_and_leaves_groups_out():
    vectors = np.random.default_rng(0).normal(size=(700, 5))
    groups = np.arange(700) // 3
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -np.inf)
    near, cosines = nearest(vectors, np.arange(700), 4)
    assert (near == np.argsort(-alike, 1)[:, :4]).all()
    np.testing.assert_allclose(cosines, -np.sort(-alike, 1)[:, :4], rtol=1e-5)
    near, _ = nearest(vectors, np.arange(700), 4, groups)
    assert (groups[near] != groups[:, None]).all()
    near, cosines = nearest(vectors[:4], np.arange(4), 3, np.array(["a", "a", "a", "b"]))
    assert near[0].tolist() == [3, -1, -1]
    assert np.isneginf(cosines[0, 1])


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npy"])
def test_every_row_says_what_it_is_of(model, tmp_path, capsys, suffix):
    class_folder(tmp_path / "photos", 9)
    out = tmp_path / f"v{suffix}"
    code, said, err = run(capsys, "embed", model, tmp_path / "photos", "--out", out, "--json")
    assert code == 0, err
    found = json.loads(said)
    vectors = unmask.load(model).embed(tmp_path / "photos")
    rows = pl.read_csv(out) if suffix == ".csv" else pl.read_parquet(found["ids"])
    paths = sorted(p.relative_to(tmp_path / "photos").as_posix() for p in (tmp_path / "photos").rglob("*.png"))
    assert rows["path"].to_list() == found["names"] == paths
    assert rows["frame"].null_count() == rows["group"].null_count() == 9
    if suffix == ".parquet":
        assert str(pq.read_schema(out).field("vector").type) == f"fixed_size_list<element: float>[{vectors.shape[1]}]"
        np.testing.assert_allclose(rows["vector"].to_numpy(), vectors, atol=1e-5)
    elif suffix == ".csv":
        np.testing.assert_allclose(rows.select("^v.*$").to_numpy(), vectors, atol=1e-4)
    else:
        assert found["ids"] == str(tmp_path / "v.ids.parquet")
        np.testing.assert_allclose(np.load(out), vectors, atol=1e-5)


def test_frames_and_patients_are_named(tmp_path):
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 4, "steps": 1, "image_size": 16})
    for n in range(6):
        (tmp_path / "ct").mkdir(exist_ok=True)
        place = {"patient": f"P{n % 2}", "place": -n, "series": f"1.{n % 2}", "instance": n + 1}
        dicom_slice(tmp_path / "ct" / f"{n}.dcm", ramp(16, 16, seed=n, dtype="uint16", high=4000), **place)
    (tmp_path / "mr").mkdir()
    nifti_volume(tmp_path / "mr" / "a.nii.gz", ramp(3, 16, 16, high=4000, dtype="uint16").T)
    unmask.images.pretrain(tmp_path / "ct", tmp_path / "m", settings=settings, console=False)
    from unmask.modalities.images.uses.vectors import rows_of

    loaded = unmask.load(tmp_path / "m")
    rows = rows_of(loaded.read(tmp_path / "ct"))
    assert {path: group[:2] for path, group in zip(rows["path"], rows["group"], strict=True)} == {
        f"{n}.dcm": f"P{n % 2}" for n in range(6)
    }
    rows = rows_of(read_images(tmp_path / "mr"))
    assert rows["path"] == ["a.nii.gz"] * 3
    assert len(set(rows["frame"])) == 3


def test_names_are_those_of_the_rows_where_a_file_breaks_on_the_way(model, tmp_path, capsys, monkeypatch):

    class_folder(tmp_path / "photos", 9)
    monkeypatch.setattr(features, "PASSING", dataclasses.replace(features.PASSING, most=0))
    file = next(iter(sorted((tmp_path / "photos").rglob("*.png"))))
    content = file.read_bytes()
    file.write_bytes(content[:-30])
    out = tmp_path / "v.parquet"
    code, said, err = run(capsys, "embed", model, tmp_path / "photos", "--out", out, "--json")
    assert code == 0, err
    found = json.loads(said)
    assert found["skipped"] == 1
    assert found["rows"] == len(found["names"]) == len(pl.read_parquet(out)) == 8
    assert file.name not in "".join(found["names"])


def test_neighbours_stand_beside_those_by_raw_pixels(model, tmp_path, capsys):
    class_folder(tmp_path / "photos", 30)
    page = tmp_path / "near.html"
    words = ("embed", model, tmp_path / "photos", "--out", tmp_path / "v.npy", "--report", page, "--json")
    code, said, err = run(capsys, *words)
    assert code == 0, err
    found = json.loads(said)
    assert len(found["neighbours"]) == 12
    first = found["neighbours"][0]
    assert len(first["neighbours"]) == len(first["by_raw_pixels"]) == 6
    assert first["picture"] not in [n["picture"] for n in first["neighbours"]]
    assert found["chance"] == pytest.approx(9 / 29, abs=1e-3)
    assert 0 < found["raw_same_class"] <= 1
    assert page.read_text().count("data:image/png") == 12 * 2 * 7
    near = unmask.images.neighbours(unmask.load(model), tmp_path / "photos", queries=3, count=2)
    assert [len(near.near), near.near.shape[1]] == [3, 2]
    assert "by raw pixels" in str(near)
    with pytest.raises(UserError, match="29 vectors of 30 pictures"):
        unmask.images.neighbours(model, tmp_path / "photos", vectors=np.ones((29, 4)))


def test_shares_are_those_of_the_vectors(tmp_path):
    pixels, labels = bars(60)
    images = read_images((pixels, np.array(["a", "b", "c"])[labels]), problem="auto")
    perfect = np.eye(3)[labels] + np.random.default_rng(0).normal(0, 0.01, (60, 3))
    assert neighbours_of(images, perfect).shares["same_class"] == 1.0
    grouped = dataclasses.replace(images, groups=np.array([f"g{n}" for n in labels]))
    alone = neighbours_of(grouped, perfect)
    assert "same_class" not in alone.shares, "all of a class are one patient: no other can be near"
    assert alone.groups
    halves = dataclasses.replace(images, groups=np.arange(60) // 3 % 2)  # two patients, each with all classes
    assert neighbours_of(halves, perfect).shares["chance"] == pytest.approx(10 / 30)
    for groups in (np.repeat("one", 60), np.arange(60)):  # one volume, and each file for itself
        found = neighbours_of(dataclasses.replace(images, groups=groups), perfect)
        assert len(found.to_dict()["neighbours"][0]["neighbours"]) == 6
        assert not found.groups


def test_tiles_are_one_row_per_picture(model, tmp_path):
    for n, picture in enumerate(bars(4, (24, 24))[0]):
        Image.fromarray(picture).save(tmp_path / f"{n}.png")
    near = unmask.images.neighbours(model, tmp_path, view="tile", count=2)
    assert near.names == ["0.png", "1.png", "2.png", "3.png"]
    pixels, missing = picture_of(near.images, 2)  # the whole is drawn
    np.testing.assert_array_equal(pixels[..., 0], bars(4, (24, 24))[0][2])
    assert missing is None
    assert near.write_report(tmp_path / "near.html").exists()
