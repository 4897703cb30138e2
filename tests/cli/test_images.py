"""The image commands as scripts rely on them."""

import contextlib
import json
import re

import numpy as np
import polars as pl
import pytest
from PIL import Image

from commands import run
from tiny_images import bars, class_folder
from unmask.cli import main


def good(capsys, *arguments) -> dict:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert {"seed", "seconds", "device", "precision"} <= set(found)
    return found


def bad(capsys, *arguments) -> str:
    code, out, err = run(capsys, *arguments)
    assert code == 2, (out, err)
    assert "Traceback" not in err
    return err


SMALL = [
    part
    for s in (
        "width=32",
        "layers=2",
        "heads=2",
        "decoder_width=16",
        "decoder_layers=1",
        "decoder_heads=1",
        "batch=32",
        "image_size=12",
    )
    for part in ("--set", s)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    class_folder(root / "data", 90)
    (root / "data" / "across" / "broken.png").write_bytes(b"")
    arguments = [
        "pretrain",
        "images",
        root / "data",
        "--out",
        root / "model",
        "--steps",
        4,
        "--precision",
        "fp32",
        *SMALL,
    ]
    with contextlib.suppress(SystemExit):
        main([str(a) for a in arguments])
    return root


def test_pretrain_names_what_it_skipped_and_writes_the_run(capsys, folders, tmp_path):
    code, out, err = run(
        capsys, "pretrain", "images", folders / "data", "--out", tmp_path / "m", "--steps", 2, *SMALL, "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["data"]["skipped"] == 1
    assert found["steps"] == 2
    assert "across/broken.png: empty (0 bytes)" in err
    names = {p.name for p in (tmp_path / "m").iterdir()}
    assert {"config.json", "model.safetensors", "metrics.jsonl", "report.html", "unmask.json"} <= names
    assert "broken.png" in bad(capsys, "pretrain", "images", folders / "data", "--out", tmp_path / "n", "--strict")
    assert "already holds a run" in bad(capsys, "pretrain", "images", folders / "data", "--out", tmp_path / "m", *SMALL)


def test_evaluate_embed_fill_inspect(capsys, folders, tmp_path):
    found = good(capsys, "evaluate", folders / "model", folders / "data")
    assert 0 <= found["knn_accuracy"] <= 1
    assert 0 <= found["probe_accuracy"] <= 1
    assert good(capsys, "embed", folders / "model", folders / "data", "--out", tmp_path / "e.npy")["shape"] == [90, 32]
    assert np.load(tmp_path / "e.npy").shape == (90, 32)
    found = good(capsys, "embed", folders / "model", folders / "data", "--out", tmp_path / "e.parquet")
    table = pl.read_parquet(tmp_path / "e.parquet")
    paths = sorted(
        str(p.relative_to(folders / "data")) for p in (folders / "data").rglob("*.png") if p.name != "broken.png"
    )
    assert table["path"].to_list() == found["names"] == paths
    np.testing.assert_array_equal(np.stack(table["vector"].to_list()), np.load(tmp_path / "e.npy"))
    one = folders / "data" / "down" / "001.png"
    found = good(capsys, "fill", folders / "model", one, "--box", "2,2,5,5", "--out", tmp_path / "f.png")
    assert 0 < found["hidden_share"] < 1
    assert Image.open(tmp_path / "f.png").size == (3 * 96 + 8, 96)
    good(capsys, "fill", folders / "model", folders / "data", "--ratio", "0.5", "--out", tmp_path / "f.npy")
    assert np.load(tmp_path / "f.npy").shape == (90, 12, 12, 1)
    said = ("fill", folders / "model", folders / "data", "--ratio", "0.5", "--out", tmp_path / "g.png")
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in said])
    assert "g.png: 36 of 90 pictures" in capsys.readouterr().out
    assert good(capsys, "inspect", folders / "model")["kind"] == "images"
    assert "Expected mean, first, max" in bad(
        capsys, "embed", folders / "model", one, "--out", tmp_path / "x.npy", "--pooling", "middle"
    )


def test_a_mask_hides_where_it_is_bright(capsys, folders, tmp_path):
    """Not where JPEG leaves traces beside an edge, and of an array of 0 and 1 where it is 1."""
    mask = np.full((12, 12), 3, np.uint8)
    mask[:4, :4] = 250
    Image.fromarray(mask).save(tmp_path / "m.png")
    np.save(tmp_path / "m.npy", (mask[None] == 250).astype(np.uint8))
    one = folders / "data" / "down" / "001.png"
    for name in ("m.png", "m.npy"):
        found = good(
            capsys, "fill", folders / "model", one, "--mask", tmp_path / name, "--out", tmp_path / f"{name}.out.png"
        )
        assert found["hidden_share"] == pytest.approx(1 / 9)
        pixels = np.asarray(Image.open(one).convert("L"), float)
        visible = np.delete(pixels.ravel(), [12 * r + c for r in range(4) for c in range(4)])
        rule = np.sqrt(((pixels[:4, :4] - visible.mean()) ** 2).mean())
        assert found["rmse_of_mean"] == pytest.approx(rule, rel=1e-5)


def test_a_mask_without_a_mark_is_refused_and_what_is_made_of_one_is_said(capsys, folders, tmp_path):
    """It was filled with an rmse of 0; and of several masks the first was laid on every picture."""
    one, out = folders / "data" / "down" / "001.png", ("--out", tmp_path / "f.png")
    Image.fromarray(np.zeros((12, 12), np.uint8)).save(tmp_path / "m.png")
    said = bad(capsys, "fill", folders / "model", one, "--mask", tmp_path / "m.png", *out)
    assert "mask: nothing in it is to be hidden" in said
    np.save(tmp_path / "m.npy", np.eye(12)[None].repeat(3, 0))
    assert "m.npy: 3 pictures" in bad(capsys, "fill", folders / "model", one, "--mask", tmp_path / "m.npy", *out)
    Image.fromarray(np.eye(24, dtype=np.uint8) * 255).save(tmp_path / "m.png")
    code, shown, err = run(capsys, "fill", folders / "model", one, "--mask", tmp_path / "m.png", *out)
    assert (code, err) == (0, "")
    assert f"{tmp_path}/m.png: were 24 x 24 pixels: shrunk" in shown


def test_the_rule_of_fill_sees_no_hidden_pixel(capsys, folders, tmp_path):
    one = folders / "data" / "down" / "001.png"
    found = good(capsys, "fill", folders / "model", one, "--box", "0,0,12,12", "--out", tmp_path / "f.png")
    assert (found["hidden_share"], found["rmse_of_mean"]) == (1.0, None)


def test_accuracies_stand_beside_the_most_frequent_class(capsys, folders, tmp_path):
    """A probe right in 90.3 % and a validation accuracy of 87.5 % were printed of noise, 90.3 % of it one class."""
    rng = np.random.default_rng(0)
    for name, count in (("often", 36), ("seldom", 4)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for n in range(count):
            Image.fromarray(rng.integers(0, 255, (12, 12), np.uint8)).save(tmp_path / "data" / name / f"{n}.png")
    tune = ["finetune", "classify", folders / "model", tmp_path / "data", "--epochs", 1, "--set", "start=zero"]
    code, out, _ = run(capsys, *tune, "--out", tmp_path / "c", "--precision", "fp32")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("validation accuracy")]
    rules = r"always 'often' is right in [\d.]+%, a linear probe of raw pixels in [\d.]+%"
    assert re.fullmatch(rf"validation accuracy [\d.]+% \(\d+ pictures\); {rules}", line)
    ours, often, _ = map(float, re.findall(r"([\d.]+)%", line))
    assert ("no better than always naming" in out) == (ours <= often)
    page = (tmp_path / "c" / "report.html").read_text()
    assert "<dt>Linear probe of raw pixels</dt>" in page
    assert "linear probe of raw pixels" in (tmp_path / "c" / "README.md").read_text()
    code, out, _ = run(capsys, "evaluate", folders / "model", tmp_path / "data")
    assert len(re.findall("the most frequent class 0.[0-9]{4}", out)) == 2


def test_finetune_and_predict(capsys, folders, tmp_path):
    class_folder(tmp_path / "dev", 30, seed=4)
    found = good(
        capsys,
        "finetune",
        "classify",
        folders / "model",
        folders / "data",
        "--validation",
        tmp_path / "dev",
        "--out",
        tmp_path / "c",
        "--epochs",
        2,
        "--precision",
        "fp32",
    )
    assert 0 <= found["validation_accuracy"] <= 1
    assert {"config.json", "model.safetensors", "metrics.jsonl", "report.html", "unmask.json"} <= {
        p.name for p in (tmp_path / "c").iterdir()
    }
    good(capsys, "predict", tmp_path / "c", tmp_path / "dev", "--out", tmp_path / "p.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(rows) == 30
    assert {"label", "probability"} <= set(rows[0])
    assert rows[0]["name"] == "across/000.png"
    assert good(capsys, "evaluate", tmp_path / "c", tmp_path / "dev")["accuracy"] == pytest.approx(
        found["validation_accuracy"]
    )
    assert "fine-tuned, and its encoder" in bad(
        capsys, "fill", tmp_path / "c", tmp_path / "dev", "--ratio", "0.5", "--out", tmp_path / "f.png"
    )
    few = good(capsys, "evaluate", tmp_path / "c", tmp_path / "dev", "--most", "10")
    assert few["pictures"] == 10
    assert "not a task of images" in bad(
        capsys, "finetune", "tag", folders / "model", folders / "data", "--out", tmp_path / "x"
    )
    assert "not a classifier" in bad(capsys, "predict", folders / "model", tmp_path / "dev", "--out", tmp_path / "p")


def test_mistakes_are_named_and_nothing_is_written(capsys, folders, tmp_path):
    out = tmp_path / "m"
    assert "does not divide" in bad(capsys, "pretrain", "images", folders / "data", "--out", out, "--set", "patch=5")
    nan = bars(4)[0].astype(np.float32)
    nan[1, 2, 3] = np.inf
    np.save(tmp_path / "nan.npy", nan)
    assert "picture 1 has inf at row 2, column 3" in bad(
        capsys, "pretrain", "images", tmp_path / "nan.npy", "--out", out
    )
    class_folder(tmp_path / "all", 30)
    one = tmp_path / "one" / "only"
    one.mkdir(parents=True)
    for path in (tmp_path / "all" / "down").iterdir():
        path.rename(one / path.name)
    assert "of one class (only)" in bad(capsys, "evaluate", folders / "model", tmp_path / "one")
    assert "does not lie within" in bad(
        capsys, "fill", folders / "model", one, "--box", "0,0,99,2", "--out", tmp_path / "f.png"
    )
    assert "--out" in bad(capsys, "fill", folders / "model", one)
    assert not out.exists()
    assert not (tmp_path / "f.png").exists()


def test_demo(capsys, tmp_path):
    found = good(capsys, "demo", "images", "--out", tmp_path / "demo", "--minutes", "0.02")
    assert {"probe_accuracy", "raw_probe_accuracy", "knn_accuracy"} <= set(found)
    assert "data:image/png" in (tmp_path / "demo" / "report.html").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    assert "not an earlier demo" in bad(capsys, "demo", "images", "--out", tmp_path / "mine")


def test_segment_from_the_command_line(capsys, folders, tmp_path):
    for path in sorted((folders / "data").rglob("*.png"))[:12]:
        if path.name != "broken.png":
            place = tmp_path / "masks" / path.relative_to(folders / "data")
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.open(path).point(lambda v: 255 * (v > 128)).save(place)
    arguments = ("finetune", "segment", folders / "model", folders / "data", "--masks", tmp_path / "masks")
    found = good(capsys, *arguments, "--out", tmp_path / "s", "--steps", 3, "--precision", "fp32")
    assert found["classes"] == ["0", "255"]
    assert found["validation"]["pictures"] == 2
    assert found["steps"] == 3
    judged = good(
        capsys,
        "evaluate",
        tmp_path / "s",
        folders / "data",
        "--masks",
        tmp_path / "masks",
        "--report",
        tmp_path / "r.html",
    )
    assert judged["pictures"] == 12
    assert "worst first" in (tmp_path / "r.html").read_text()
    rows = good(capsys, "predict", tmp_path / "s", folders / "data" / "down", "--out", tmp_path / "out")["results"]
    assert np.asarray(Image.open(rows[0]["file"])).shape == (12, 12)
    assert "--masks" in bad(capsys, "evaluate", tmp_path / "s", folders / "data")
    assert "--ignore" in bad(capsys, *arguments, "--out", tmp_path / "t", "--ignore", "9")
    assert "not read for classify" in bad(
        capsys,
        "finetune",
        "classify",
        folders / "model",
        folders / "data",
        "--out",
        tmp_path / "t",
        "--masks",
        tmp_path,
    )
