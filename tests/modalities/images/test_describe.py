"""`describe` of pictures: what wants a decision is found before a run, and runs say what matters of it."""

import io
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import unmask
from commands import run
from picture_files import dicom_slice, ramp
from tiny_images import TINY, bars
from unmask.modalities.images import recipes
from unmask.modalities.images.reading.copies import copies, fingerprints, near_pairs, shrunk
from unmask.modalities.images.reading.layout import group_notes, masks_among, name_group
from unmask.modalities.images.reading.lazy import PictureStore
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.reading.split import held_out_pictures


def scene(seed: int, size: tuple[int, int] = (48, 48)) -> np.ndarray:
    """(height, width, 3) uint8: smooth waves with blocks on them, no two alike."""
    rng = np.random.default_rng(seed)
    out = ramp(3, *size, seed=seed).transpose(1, 2, 0).copy()
    for _ in range(6):
        y, x = rng.integers(0, size[0] - 8), rng.integers(0, size[1] - 8)
        out[y : y + 8, x : x + rng.integers(3, 12)] = rng.integers(0, 255, 3)
    return out


def fingerprint(pixels: np.ndarray, missing=None) -> np.ndarray:
    return fingerprints(shrunk(pixels, missing)[None])[0]


def save(path, pixels, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **how)
    return path


def encoded(pixels: np.ndarray, quality: int, scale: float = 1.0) -> np.ndarray:
    image = Image.fromarray(pixels)
    image = image.resize([round(side * scale) for side in image.size])
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return np.asarray(Image.open(content))


@pytest.fixture
def messy(tmp_path):
    """A data set as people have them: parts, copies, odd files."""
    root = tmp_path / "photos"
    for k in range(24):
        part, name = ("train", "train", "test")[k % 3], ("cat", "dog")[k // 12]
        save(root / part / name / f"{chr(97 + k)}.png", scene(k, (48, 64) if k % 2 else (48, 48)))
    shutil.copy(root / "train/cat/a.png", root / "test/cat/same.png")
    shutil.copy(root / "train/cat/b.png", root / "train/dog/other_label.png")
    save(root / "test/dog/again.jpg", encoded(scene(12), 80, 0.75))
    save(root / "train/cat/grey.png", scene(50)[..., 0])
    save(root / "train/cat/dark.png", scene(51) // 40)
    save(root / "train/cat/blank.png", np.full((48, 48, 3), 7, np.uint8))
    save(root / "test/bird/new.png", scene(52))
    (root / "train/cat/empty.png").write_bytes(b"")
    (root / "train/cat/cut.jpg").write_bytes(save(tmp_path / "x.jpg", scene(60)).read_bytes()[:600])
    return root


def test_a_messy_folder_is_told_whole(messy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(messy.parent)
    code, out, err = run(capsys, "describe", "photos", "--json", "--out", "look.html")
    assert code == 0, err
    found = json.loads(out)
    by_code = {f["code"]: f for f in found["findings"]}
    assert found["parts"] == {"train": 20, "test": 11}
    assert {c["name"]: c["parts"]["test"] for c in found["classes"]} == {"bird": 1, "cat": 5, "dog": 5}
    assert [name for name, _ in found["skipped_files"]] == ["train/cat/cut.jpg", "train/cat/empty.png"]
    assert by_code["unreadable"]["pictures"] == ["train/cat/cut.jpg", "train/cat/empty.png"]
    pairs = {frozenset(pair) for pair in found["exact_copies"]}
    assert pairs == {
        frozenset(["test/cat/same.png", "train/cat/a.png"]),
        frozenset(["train/cat/b.png", "train/dog/other_label.png"]),
    }
    assert {frozenset(p) for p in found["near_copies"]} == {frozenset(["test/dog/again.jpg", "train/dog/m.png"])}
    assert by_code["scale"]["pictures"] == ["train/cat/dark.png"]
    assert by_code["kinds"]["pictures"] == ["train/cat/grey.png"]
    assert by_code["blank"]["pictures"] == ["train/cat/blank.png"]
    assert by_code["classes"]["text"] == "classes without a training picture: bird"
    assert by_code["cut"]["severity"] == "warning"
    assert "25% of each cut off to make them 48 x 48" in by_code["cut"]["text"]
    texts = "\n".join(f["text"] for f in found["findings"])
    assert "1 of 11 pictures to judge on are exact copies of training ones" in texts
    assert "1 of 11 pictures to judge on are near copies" in texts
    assert "stand under several labels: train/cat/b.png and train/dog/other_label.png" in texts
    order = [("error", "warning", "note").index(f["severity"]) for f in found["findings"]]
    assert order == sorted(order)
    page = (messy.parent / "look.html").read_text()
    for said in (
        "exact copies in two parts",
        "near copies in two parts",
        "exact copies of two classes",
        "empty (0 bytes)",
    ):
        assert said in page
    assert page.count("data:image/png;base64,") > 20
    _, out, _ = run(capsys, "describe", "photos")
    assert "warning: 2 files cannot be read" in out
    assert "cat" in unmask.images.describe(messy)._repr_html_()


def test_what_a_run_would_refuse_is_an_error_here(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((20, 20, 4), np.float32) + np.arange(20)[:, None, None])
    np.save(tmp_path / "b.npy", np.zeros((20, 20, 2), np.float32) + np.arange(20)[:, None, None])
    found = unmask.images.describe(tmp_path)
    (error,) = [f for f in found.findings if f.severity == "error"]
    assert "channels differ" in error.text
    assert len(found.kinds) == 2
    assert found.write_report(tmp_path / "r.html").exists()


def test_files_of_which_none_can_be_read_are_told_too(tmp_path, capsys):
    import tifffile

    tifffile.imwrite(tmp_path / "a.tif", np.stack([scene(n)[..., 0] for n in range(5)]))
    (tmp_path / "b.png").write_bytes(b"")
    code, out, err = run(capsys, "describe", tmp_path, "--json", "--out", tmp_path / "r.html")
    assert code == 0, err
    found = json.loads(out)
    by_code = {f["code"]: f for f in found["findings"]}
    assert found["pictures"] == 0
    assert by_code["unclear"]["severity"] == "error"
    assert "--set planes=channels" in by_code["unclear"]["text"]
    assert by_code["unreadable"]["pictures"] == ["b.png"]
    assert "b.png" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("size", [(48, 48), (90, 64)])
def test_near_copies_are_those_encoded_or_scaled_anew(size):
    scenes = [scene(n, size) for n in range(120)]
    prints = np.stack([fingerprint(p) for p in scenes])
    assert len(near_pairs(prints)) == 0, "no two scenes are one"
    for changed in (
        lambda p: encoded(p, 60),
        lambda p: encoded(p, 90, 0.75),
        lambda p: np.clip(p * 0.8 + 9, 0, 255).astype(np.uint8),
        lambda p: (p * 256.0).astype(np.uint16),
    ):
        pairs = near_pairs(np.concatenate([prints, [fingerprint(changed(p)) for p in scenes[:40]]]))
        assert sum((b - a == 120) for a, b in pairs) >= 36
        assert all(b - a == 120 for a, b in pairs)


def test_small_and_blank_pictures_are_near_copies_of_none():
    assert not fingerprint(bars()[0][0][..., None]).any()
    flat = np.full((32, 32, 1), 100, np.uint8)
    flat[3, 3] = 101
    assert not fingerprint(np.full((32, 32, 1), 7, np.float32)).any()
    assert not fingerprint(scene(0), np.ones((48, 48), bool)).any()
    pixels = np.stack([flat * 0, flat * 0])
    assert len(set(copies(read_images(pixels)))) == 2


def test_copies_on_disk_are_those_in_memory(tmp_path):
    for n in range(12):
        save(tmp_path / "p" / f"{n:02d}.png", scene(n % 9) if n < 11 else scene(0) * 0)
    inside = read_images(tmp_path / "p")
    stored = read_images(tmp_path / "p", store=PictureStore(folder=tmp_path / "s", most=0))
    assert not isinstance(stored.pixels, np.ndarray)
    assert copies(inside).tolist() == copies(stored).tolist()
    assert len(set(copies(inside, stored))) == 9 + 2, "blank ones are like no other"


@pytest.mark.parametrize(
    ("names", "group"),
    [
        ([f"patient{n // 3:02d}_{n}.png" for n in range(9)], "name"),
        ([f"sub-{n // 2:02d}_ses-{n}.nii.gz" for n in range(8)], "name"),
        ([f"{n // 2}_{'ab'[n % 2]}.png" for n in range(8)], "name"),
        ([f"patient{n // 3}/{n}.png" for n in range(9)], "folder"),
        ([f"{n:03d}.png" for n in range(9)], None),
        ([f"IMG_{n}.jpg" for n in range(9)], None),
        ([f"{'abc'[n % 3]}/{n // 3:03d}.png" for n in range(9)], "folder"),
        (["3f2a9c.png", "3e2a9c.png", "3d11aa.png"], None),
    ],
)
def test_groups_that_names_tell(names, group):
    lines = group_notes(names)
    assert len(lines) == (group is not None)
    if group:
        assert f"group={group!r}" in lines[0]
        assert lines[0].startswith("warning") == ("patient" in names[0] or "sub" in names[0])


def test_other_names_of_classes_are_no_groups():
    names = [f"{'abc'[n % 3]}/{n // 3:03d}.png" for n in range(9)]
    assert group_notes(names, [name[0] for name in names]) == []
    assert (
        group_notes([f"cat1_{n}.png" for n in range(4)] + [f"dog2_{n}.png" for n in range(4)], [0] * 4 + [1] * 4) == []
    )


def test_groups_by_name_are_kept_whole_and_said_by_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels, labels = bars(24)
    for n, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        save(tmp_path / "photos" / "abc"[label] / f"patient{n // 6}_{n:02d}.png", picture)
    found = read_images(tmp_path / "photos", group="name")
    assert len(np.unique(found.groups)) == 4
    held = held_out_pictures(found, 0.3, 0)
    assert all(len(set(held[found.groups == g])) == 1 for g in np.unique(found.groups))
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 2, "steps": 1})
    line = "names begin alike in 24 pictures of 4 groups, such as patient0"
    unmask.images.pretrain("photos", "m", settings=settings)
    assert line in capsys.readouterr().err
    code, _, err = run(capsys, "finetune", "classify", "m", "photos", "--out", "c", "--set", "steps=1")
    assert code == 0, err
    assert line in err
    assert line in run(capsys, "describe", "photos")[1]
    code, _, err = run(
        capsys, "finetune", "classify", "m", "photos", "--out", "d", "--set", "steps=1", "--set", "group=name"
    )
    assert code == 0, err
    assert line not in err


def test_groups_across_parts_are_counted(tmp_path):
    for n in range(12):
        save(tmp_path / ("train", "test")[n % 2] / f"patient{n // 4}_{n}.png", scene(n))
    (line,) = [f.text for f in unmask.images.describe(tmp_path).findings if "begin alike" in f.text]
    assert "(3 of them with pictures in training and among those to judge on)" in line


def test_masks_among_pictures_are_told(tmp_path):
    for n in range(4):
        save(tmp_path / "a/image" / f"{n}.png", scene(n))
        save(tmp_path / "a/label" / f"{n}.png", (scene(n)[..., 0] > 120).astype(np.uint8))
        save(tmp_path / "b/in" / f"{n}.png", scene(n))
        save(tmp_path / "b/out" / f"{n}.png", (scene(n)[..., 0] > 120).astype(np.uint8) * 255)
        save(tmp_path / "c/ill" / f"{n}.png", scene(n))
        save(tmp_path / "c/ill" / f"{n}_mask.png", (scene(n)[..., 0] > 120).astype(np.uint8) * 255)
        save(tmp_path / "d/cat" / f"{n}.png", scene(n))
        save(tmp_path / "d/dog" / f"{n}.png", scene(n + 20))

    def told(name):
        return [f.text for f in unmask.images.describe(tmp_path / name).findings if "masks" in f.text]

    assert "label/ (4)" in told("a")[0]
    assert told("b") == ["out/ may hold masks of in/: the same names, and few values in each picture"]
    assert "*_mask (4)" in told("c")[0]
    assert told("d") == []
    assert any("label/ (4)" in note for note in read_images(tmp_path / "a").notes)
    assert masks_among(["mask/1.png", "mask/2.png", "mask/3.png"]) == {}


def test_arrays_tables_volumes_and_tiles_are_described(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels, labels = bars(12)
    found = unmask.images.describe((pixels, np.array(["x", "y", "z"])[labels]))
    assert [name for name, _ in found.class_counts()] == ["x", "y", "z"]
    assert found.to_dict()["shape"] == [12, 12, 1]
    assert found.write_report(tmp_path / "arrays.html").exists()
    for n in range(6):
        save(tmp_path / f"{n}.png", scene(n))
    pd.DataFrame({"file": [f"{n}.png" for n in range(6)], "label": list("aabbcc"), "who": list("aabbcc")}).to_csv(
        "labels.csv", index=False
    )
    code, out, err = run(capsys, "describe", "labels.csv", "--set", "label_column=label", "--set", "image_size=24")
    assert code == 0, err
    assert "classes: a (2), b (2), c (2)" in out
    pd.DataFrame({"file": ["a.txt"], "age": [3]}).to_csv("plain.csv", index=False)
    assert "1 rows x 2 columns" in run(capsys, "describe", "plain.csv")[1]
    tiled = unmask.images.describe([tmp_path / f"{n}.png" for n in range(6)], view="tile", image_size=24)
    assert any(f.text == "24 tiles of 24 x 24 pixels" for f in tiled.findings)
    for n in range(4):
        (tmp_path / "ct").mkdir(exist_ok=True)
        dicom_slice(tmp_path / "ct" / f"{n}.dcm", ramp(16, 16, seed=n, dtype="uint16"), patient=f"P{n // 2}", place=n)
    assert unmask.images.describe(tmp_path / "ct").to_dict()["groups"] == 2


def test_mistakes_are_refused(tmp_path, capsys):
    save(tmp_path / "a.png", scene(0))
    assert run(capsys, "describe", tmp_path, "--set", "rescale=true")[0] == 2
    code, _, err = run(capsys, "describe", tmp_path, "--out", tmp_path / "a.png")
    assert code == 2, err
    (tmp_path / "none").mkdir()
    assert run(capsys, "describe", tmp_path / "none")[0] == 2
    assert name_group("a/patient07_03.png") == "patient07"
