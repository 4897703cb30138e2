"""Several labels and numbers of pictures: read from a table or refused with every bad row; learnt; saved; measured."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score, r2_score, roc_auc_score

import unmask
from commands import run
from tiny_images import TINY
from unmask.errors import UserError
from unmask.evaluation.labels import label_figures, label_table
from unmask.evaluation.values import value_chart, value_figures
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
from unmask.modalities.images.classify.objectives import OneClass, OneNumber, SeveralLabels, strata
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.network.folder import save_folder
from unmask.modalities.images.reading.account import class_notes
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.reading.targets import Targets, parse_cells
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.recipes import with_overrides as image_with
from unmask.modalities.images.uses.finetune import finetune_classify

FAST = {
    "epochs": 12,
    "learning_rate": 3e-3,
    "precision": "fp32",
    "batch": 32,
    "crop": "1,1",
    "flip": False,
    "layer_decay": 1.0,
    "drop_path": 0.0,
}

ONCE = {"steps": 1, "precision": "fp32", "batch": 32}


def planted(count: int = 160, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(pictures, (n, 3) labels: bright on the left, on the right, at the top; how bright they are in all, 50 to 80 or
    so)."""
    rng = np.random.default_rng(seed)
    labels = rng.random((count, 3)) < [0.5, 0.3, 0.4]
    pixels = rng.integers(0, 40, (count, 12, 12))
    level = rng.integers(0, 100, count)
    for picture, (left, right, top), more in zip(pixels, labels, level, strict=True):
        picture[4:, :4] += 150 * left
        picture[4:, 8:] += 150 * right
        picture[:4] += 150 * top
        picture[4:, 4:8] = more * 2
    return pixels.astype(np.uint8), labels.astype(float), 50 + level * 0.3


def base(where) -> str:
    made = image_with(ImageSettings(), TINY | {"patch": 4})
    save_folder(where, new_model(made, codec_config(made, (12, 12), 1, (0.2,), (0.3,))))
    return where


def written(where, pixels) -> list[str]:
    where.mkdir(parents=True, exist_ok=True)
    names = [f"{n:03d}.png" for n in range(len(pixels))]
    for name, picture in zip(names, pixels, strict=True):
        Image.fromarray(picture).save(where / name)
    return names


def rows(path, header: str, lines) -> str:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


NAMES = ["left", "right", "top"]


def cells(labels) -> list[str]:
    return ["|".join(n for n, y in zip(NAMES, row, strict=True) if y) or "|" for row in labels]


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_labels_are_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    truth = rng.random((300, 3)) < [0.5, 0.2, 0.05]
    p = np.round(1 / (1 + np.exp(-rng.normal(size=(300, 3)) - 2 * truth + 1)), 2)  # with ties
    found = label_figures(truth, p, ["a", "<b>", "c"])
    for c, row in enumerate(found["by_label"]):
        assert row["auroc"]["value"] == pytest.approx(roc_auc_score(truth[:, c], p[:, c]))
        assert row["auprc"]["value"] == pytest.approx(average_precision_score(truth[:, c], p[:, c]))
        assert row["f1"]["value"] == pytest.approx(f1_score(truth[:, c], p[:, c] >= 0.5))
        for name in ("auroc", "auprc", "precision", "recall", "f1"):
            low, high = row[name]["interval"]
            few = name == "auprc" and truth[:, c].sum() < 10  # a bootstrap of few says nothing
            assert low is None if few else low <= row[name]["value"] <= high
        always = f1_score(truth[:, c], np.ones(300))
        assert row["rule"] == {"auroc": 0.5, "auprc": pytest.approx(truth[:, c].mean()), "f1": pytest.approx(always)}
    for how in ("macro", "micro"):
        assert found[f"{how}_auroc"] == pytest.approx(roc_auc_score(truth, p, average=how))
        assert found[f"{how}_auprc"] == pytest.approx(average_precision_score(truth, p, average=how))
        assert found[f"{how}_f1"] == pytest.approx(f1_score(truth, p >= 0.5, average=how))
        assert found["rule"][f"{how}_auprc"] < found[f"{how}_auprc"]
    assert found["rule"]["macro_auroc"] == 0.5
    json.dumps(found, allow_nan=False)
    assert "<b>" not in label_table(found)


def test_a_label_that_never_holds_has_no_made_up_scores():
    found = label_figures(np.array([[1, 0], [0, 0]]), np.array([[0.9, 0.1], [0.2, 0.1]]), ["a", "b"])
    a, b = found["by_label"]
    assert (b["auroc"], b["auprc"], b["recall"], b["f1"], b["rule"]) == (None,) * 5
    assert found["macro_auroc"] == a["auroc"]["value"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_numbers_are_scikit_learns_and_their_intervals_take_whole_groups(seed):
    rng = np.random.default_rng(seed)
    y = 1e6 + rng.normal(size=200)
    said = y + rng.normal(size=200) * 0.5
    found = value_figures(y, said, mean=1e6 + 0.1)
    assert found["r2"] == pytest.approx(r2_score(y, said))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - said) ** 2)))
    assert found["mean_rule"]["r2"] == pytest.approx(r2_score(y, np.full(200, 1e6 + 0.1)), abs=1e-9)
    low, high = found["intervals"]["mae"]
    assert low < found["mae"] < high
    copies = value_figures(np.tile(y, 9), np.tile(said, 9), mean=1e6, groups=np.tile(np.arange(200), 9), seed=seed)
    assert np.diff(copies["intervals"]["mae"]) == pytest.approx(high - low, rel=0.25)
    assert value_figures(np.ones(4), np.ones(4), mean=1.0)["r2"] is None
    page = value_chart(found, "<age>")
    assert page.count("<circle") == 200
    assert 'class="diagonal"' in page
    assert "<age>" not in page


def test_labels_are_told_apart_or_asked_about():
    assert parse_cells(["a|b", "|", "c"], "x", "auto").targets.values.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert parse_cells(["1.5", "2", "3"], "x", "auto").targets.problem == "regression"
    whole = parse_cells(["1", "2", "1", "2"], "x", "auto")
    assert whole.classes == ["1", "2", "1", "2"]
    assert "problem='regression'" in whole.notes[0]
    assert parse_cells(["1", "2"], "x", "regression").targets.values.ravel().tolist() == [1, 2]
    assert parse_cells(["1.5", "n/a", "inf"], "x", "auto").bad.keys() == {1, 2}
    shared = parse_cells(["disc;round", "ring; round", "bar"], "x", "auto").notes
    assert shared[1:] == [
        "warning: round stands in several classes, between ; or |: several labels per picture are parted by |, with "
        "problem='multi'"
    ]
    assert len(parse_cells(["a;b", "c;d", "e;"], "x", "auto").notes) == 1
    assert len(parse_cells(["disc;round", "round"], "x", "single").notes) == 1
    with pytest.raises(
        UserError, match=r"row 1: label '1\.1', and column 'x', row 3: '1\.10': two classes, or one number"
    ):
        parse_cells(["1.1", "2.3", "1.10"] * 2, "x", "auto")
    assert parse_cells(["1.1", "1.10", "2.3"], "x", "auto").targets is not None  # too many for classes
    with pytest.raises(UserError, match="9 different labels in 9 rows"):
        parse_cells([str(n) for n in range(9)], "x", "auto")
    with pytest.raises(UserError, match="two ways"):
        parse_cells(["1", "1.0", "1", "2"], "x", "auto")


def test_a_table_is_read_with_its_columns_groups_and_what_it_leaves_out(tmp_path):
    pixels, labels, value = planted(6)
    written(tmp_path / "photos", pixels)
    lines = [f"{n:03d}.png,{v},p{n // 2}" for n, v in enumerate(value[:5])]
    rows(tmp_path / "t.csv", "file,age,patient", lines[::-1])
    how = {"problem": "auto", "pictures": str(tmp_path / "photos"), "group": "patient"}
    found = read_images(tmp_path / "t.csv", **how)
    assert found.names[0] == "004.png"
    np.testing.assert_allclose(found.targets.values[:, 0], value[4::-1])
    np.testing.assert_array_equal(found.pixels[..., 0], pixels[4::-1])
    assert found.groups.tolist() == ["p2", "p1", "p1", "p0", "p0"]
    assert any("1 pictures beside them have no row" in note for note in found.notes)
    assert found.targets.names == ["age"]
    flags = [f"{n:03d}.png\t" + "\t".join(str(int(y)) for y in row) for n, row in enumerate(labels)]
    rows(tmp_path / "photos" / "t.tsv", "path\t" + "\t".join(NAMES), flags)
    both = read_images(tmp_path / "photos" / "t.tsv", problem="auto")
    np.testing.assert_array_equal(both.targets.values, labels)
    assert not both.targets.listed
    tiles = read_images(tmp_path / "photos" / "t.tsv", problem="multi", size=6, view="tile")
    np.testing.assert_array_equal(tiles.targets.values, np.repeat(labels, 4, 0))
    with pytest.raises(UserError, match="several columns may be the labels: age, patient"):
        read_images(tmp_path / "t.csv", problem="auto", pictures=str(tmp_path / "photos"))
    with pytest.raises(UserError, match="Tables are for fine-tuning"):
        read_images(tmp_path / "t.csv")


def test_a_parquet_of_paths_takes_lists(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pixels, _, _ = planted(3)
    names = written(tmp_path, pixels)
    pq.write_table(pa.table({"file": names, "labels": [["a"], [], ["a", "b"]]}), tmp_path / "t.parquet")
    found = read_images(tmp_path / "t.parquet", problem="auto")
    assert found.targets.values.tolist() == [[1, 0], [0, 0], [1, 1]]
    cells = [(tmp_path / name).read_bytes() for name in names]
    pq.write_table(pa.table({"image": cells, "label": [0.5, 1.5, 2.0]}), tmp_path / "bytes.parquet")
    assert read_images(tmp_path / "bytes.parquet", problem="auto").targets.values.ravel().tolist() == [0.5, 1.5, 2.0]


def test_of_states_that_rank_alike_the_one_of_lower_loss_is_kept():
    """The area under the curve is 1 long before a label's probability passes the threshold, and no label was given."""
    objective, truth = SeveralLabels(["a", "b"]), np.array([[1, 0], [0, 1], [1, 1], [0, 0]], float)
    early, late, other = (np.where(truth, *pair).astype(np.float32) for pair in ((0.4, 0.1), (0.9, 0.1), (0.1, 0.2)))
    (name, value, low), (_, same, high), (*_, least) = (objective.watched(truth, a) for a in (early, late, other))
    assert (name, value, same) == ("macro_auprc", 1, 1)
    assert least < low < high


def test_held_out_parts_hold_rare_labels_and_all_sizes_of_numbers():
    values = np.zeros((6, 2))
    values[:, 0], values[3, 1] = 1, 1
    from unmask.modalities.images.reading.arrays import ImageSet

    images = ImageSet(
        pixels=np.zeros((6, 2, 2, 1)), targets=Targets(problem="multi", values=values, names=["often", "rare"])
    )
    assert strata(images).tolist() == [0, 0, 0, 1, 0, 0]
    numbers = Targets(problem="regression", values=np.arange(10.0)[::-1, None], names=["x"])
    assert strata(ImageSet(pixels=np.zeros((10, 2, 2, 1)), targets=numbers)).tolist() == [4, 4, 3, 3, 2, 2, 1, 1, 0, 0]


def test_several_labels_are_learnt_saved_and_measured_from_the_command_line(capsys, tmp_path):
    base(tmp_path / "base")
    pixels, labels, _ = planted()
    names = written(tmp_path / "train", pixels)
    rows(tmp_path / "train" / "t.csv", "file,label", [f"{n},{c}" for n, c in zip(names, cells(labels), strict=True)])
    pixels, labels, _ = planted(60, seed=1)
    names = written(tmp_path / "new", pixels)
    rows(tmp_path / "new.csv", "file,label", [f"{n},{c}" for n, c in zip(names, cells(labels), strict=True)])
    chosen = [part for k, v in (FAST | {"mixup": 0.2}).items() for part in ("--set", f"{k}={v}")]
    code, out, err = run(
        capsys,
        "finetune",
        "classify",
        tmp_path / "base",
        tmp_path / "train" / "t.csv",
        "--out",
        tmp_path / "m",
        *chosen,
        "--json",
    )
    assert code == 0, err
    assert "several per picture, 3 in all (left, right, top)" in err
    found = json.loads(out)
    assert found["problem"] == "multi"
    assert found["kept_by"] == "macro_auprc"
    assert found["validation_macro_auprc"] == pytest.approx(found["validation"]["macro_auprc"])
    where = ["--set", f"pictures={tmp_path / 'new'}"]
    code, out, err = run(
        capsys, "evaluate", tmp_path / "m", tmp_path / "new.csv", "--report", tmp_path / "r.html", *where, "--json"
    )
    assert code == 0, err
    scores = json.loads(out)
    assert scores["macro_auprc"] > scores["rule"]["macro_auprc"] + 0.3
    assert scores["micro_f1"] > scores["rule"]["micro_f1"]
    assert "By label" in (tmp_path / "r.html").read_text()
    code, _, err = run(capsys, "predict", tmp_path / "m", tmp_path / "new", "--out", tmp_path / "p.jsonl")
    assert code == 0, err
    said = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert said[0].keys() == {"name", "labels", "probabilities"}
    given = np.array([[n in row["labels"] for n in NAMES] for row in said])
    assert f1_score(labels, given, average="micro") == pytest.approx(scores["micro_f1"])
    again = unmask.load(tmp_path / "m")
    assert isinstance(again.objective, SeveralLabels)
    assert again.inspect()["threshold"] == 0.5
    # A column that is not there is not a label that does not hold.
    rows(
        tmp_path / "new.csv",
        "file,left,right",
        [f"{n},{int(a)},{int(b)}" for n, (a, b, _) in zip(names, labels, strict=True)],
    )
    code, _, err = run(capsys, "evaluate", tmp_path / "m", tmp_path / "new.csv", *where)
    assert code == 2
    assert "no column of the model's label 'top'" in err
    code, out, err = run(capsys, "evaluate", tmp_path / "m", tmp_path / "new", "--json")
    assert code == 2
    assert "no several labels" in err


def test_numbers_are_learnt_saved_and_measured(capsys, tmp_path):
    pixels, _, value = planted()
    done = finetune_classify(
        base(tmp_path / "base"),
        (pixels, value),
        tmp_path / "m",
        console=False,
        settings=with_overrides(ClassifierSettings(), FAST | {"epochs": 30}),
    )
    assert done.figures["kept_by"] == "rmse"
    pixels, _, value = planted(60, seed=1)
    names = written(tmp_path / "new", pixels)
    rows(tmp_path / "new" / "t.csv", "file,age", [f"{n},{v}" for n, v in zip(names, value, strict=True)])
    again = unmask.load(tmp_path / "m")
    assert isinstance(again.objective, OneNumber)
    scores = again.evaluate(tmp_path / "new" / "t.csv")
    assert scores["rmse"] < 0.6 * scores["mean_rule"]["rmse"], scores
    said = [row["value"] for row in again.predict(pixels)]
    assert r2_score(value, said) == pytest.approx(scores["r2"], abs=1e-6)
    np.testing.assert_allclose(done.model.answers(pixels)[:, 0], said, atol=1e-3)
    code, out, err = run(
        capsys, "evaluate", tmp_path / "m", tmp_path / "new" / "t.csv", "--report", tmp_path / "r.html"
    )
    assert code == 0, err
    assert "RMSE" in out + err
    assert 'class="diagonal"' in (tmp_path / "r.html").read_text()
    assert 'class="diagonal"' in (tmp_path / "m" / "report.html").read_text()
    with pytest.raises(UserError, match="no probabilities"):
        again.probabilities(pixels)


def test_the_scale_is_that_of_the_training_part_alone(tmp_path):
    pixels, _, value = planted(40)
    chosen = with_overrides(ClassifierSettings(), ONCE | {"problem": "regression"})
    whole = np.round(value)
    done = finetune_classify(
        base(tmp_path / "base"),
        (pixels[:20], whole[:20]),
        tmp_path / "m",
        validation=(pixels[20:], whole[20:] + 1000),
        settings=chosen,
        console=False,
    )
    assert done.model.objective.mean == pytest.approx(whole[:20].mean())
    assert done.model.objective.deviation == pytest.approx(whole[:20].std())


def test_bad_rows_are_all_named_and_nothing_is_written(capsys, tmp_path):
    base(tmp_path / "base")
    names = written(tmp_path, planted(8)[0])
    (tmp_path / "notes.txt").write_text("x")
    labels = ["1.5", "", "high", "2.5", "1", "2", "3", "4"]
    lines = [f"{n},{v}" for n, v in zip(names, labels, strict=True)]
    lines += ["gone.png,1", f"{names[0]},2", "notes.txt,3", "a,b,c"]
    table = rows(tmp_path / "t.csv", "file,label", lines)
    code, _, err = run(capsys, "finetune", "classify", tmp_path / "base", table, "--out", tmp_path / "m")
    assert code == 2
    assert "6 of 12 rows cannot be used" in err
    for told in (
        "line 3: label='': not a number",
        "line 4: label='high'",
        "line 10: gone.png: no such file",
        "line 11: 000.png: also in line 2",
        "line 12: notes.txt: not a picture",
        "line 13: 3 cells",
    ):
        assert told in err
    assert "Traceback" not in err
    assert not (tmp_path / "m").exists()


def test_settings_that_numbers_cannot_have_and_labels_that_are_alike_are_refused(tmp_path):
    pixels, labels, value = planted(12)
    where = base(tmp_path / "base")

    def refused(pair, match, **chosen):
        with pytest.raises(UserError, match=match):
            finetune_classify(
                where, pair, tmp_path / "m", console=False, settings=with_overrides(ClassifierSettings(), chosen)
            )
        assert not (tmp_path / "m").exists()

    refused((pixels, value), "cutmix=1.0 with problem=regression", cutmix=1.0)
    refused((pixels, value), "smoothing=0.1", smoothing=0.1)
    refused((pixels, value * 0 + 0.5), "have the number 0.5")
    refused((pixels, labels * 0), "have the same labels")
    refused((pixels, labels + 0.5), "other numbers than 0 and 1")
    refused((pixels, value[:5]), "12 pictures and 5 labels")
    refused((pixels, np.arange(12) % 2), "problem=multi", problem="multi")
    with pytest.raises(UserError, match="threshold"):
        with_overrides(ClassifierSettings(), {"threshold": 1.5})


def test_folders_of_version_0_1_load_as_one_class_per_picture(tmp_path):
    chosen = with_overrides(ClassifierSettings(), ONCE)
    pixels, labels, _ = planted(20)
    finetune_classify(
        base(tmp_path / "base"), (pixels, labels[:, 0].astype(int)), tmp_path / "m", settings=chosen, console=False
    )
    about = json.loads((tmp_path / "m" / "unmask.json").read_text())
    about["classifier"] = {name: about["classifier"][name] for name in ("classes", "pooling")}  # all that they had
    (tmp_path / "m" / "unmask.json").write_text(json.dumps(about))
    loaded = unmask.load(tmp_path / "m")
    assert isinstance(loaded.objective, OneClass)
    np.testing.assert_allclose(loaded.probabilities(pixels).sum(1), 1, rtol=1e-5)


def test_a_report_of_a_classifier_by_evaluate(capsys, tmp_path):
    chosen = with_overrides(ClassifierSettings(), ONCE)
    pixels, labels, _ = planted(20)
    finetune_classify(
        base(tmp_path / "base"), (pixels, labels[:, 0].astype(int)), tmp_path / "m", settings=chosen, console=False
    )
    names = written(tmp_path / "new", pixels)
    table = rows(
        tmp_path / "new" / "t.csv", "file,label", [f"{n},{int(y)}" for n, y in zip(names, labels[:, 0], strict=True)]
    )
    code, _, err = run(capsys, "evaluate", tmp_path / "m", table, "--report", tmp_path / "r.html")
    assert code == 0, err
    assert "What is taken for what" in (tmp_path / "r.html").read_text()
    code, _, err = run(capsys, "evaluate", tmp_path / "base", table, "--report", tmp_path / "b.html")
    assert code == 2
    assert "not fine-tuned" in err
    assert not (tmp_path / "b.html").exists()


def test_labels_of_array_files_with_fractions_are_numbers(tmp_path):
    pixels, _, value = planted(8)
    np.savez(tmp_path / "a.npz", x_train=pixels[:6], y_train=value[:6], x_test=pixels[6:], y_test=value[6:])
    found = read_images(tmp_path / "a.npz", problem="auto")
    assert found.labels is None
    np.testing.assert_array_equal(found.part("test").targets.values[:, 0], value[6:])
    np.savez(tmp_path / "b.npz", x=pixels, y=np.arange(8) % 2)
    assert read_images(tmp_path / "b.npz", problem="auto").classes == ["0", "1"]
    assert read_images(tmp_path / "b.npz", problem="regression").targets.problem == "regression"


def test_the_array_of_labels_is_the_one_called_so(tmp_path):
    """The first that has a value per picture was taken, such as their numbers."""
    pixels = planted(8)[0]
    ids, classes = np.arange(8) + 100, np.arange(8) % 2
    np.savez(tmp_path / "a.npz", images=pixels, ids=ids, labels=classes)
    np.savez(
        tmp_path / "b.npz", x_train=pixels, x_test=pixels, id_train=ids, id_test=ids, y_train=classes, y_test=classes
    )
    for name in ("a", "b"):
        assert read_images(tmp_path / f"{name}.npz", problem="auto").classes == ["0", "1"]
    np.savez(tmp_path / "c.npz", images=pixels, ids=ids, grade=classes)
    with pytest.raises(UserError, match="several arrays may be labels: ids, grade"):
        read_images(tmp_path / "c.npz", problem="auto")
    assert len(read_images(tmp_path / "c.npz", problem="none")) == 8


def test_columns_of_0_and_1_in_arrays_are_several_labels_or_refused(tmp_path):
    """(pictures, labels) were strung into labels of other pictures; in an .npz they were left out unnamed."""
    pixels, labels, _ = planted(8)
    for problem in (None, "single", "regression"):
        with pytest.raises(UserError, match=r"labels of shape \(8, 3\), where each picture has one"):
            read_images((pixels, labels), problem=problem)
    assert read_images((pixels, labels[:, :1]), problem="single").classes == ["0", "1"]
    np.savez(tmp_path / "a.npz", x_train=pixels[:6], y_train=labels[:6], x_test=pixels[6:], y_test=labels[6:])
    found = read_images(tmp_path / "a.npz", problem="auto")
    np.testing.assert_array_equal(found.part("test").targets.values, labels[6:])
    assert read_images(tmp_path / "a.npz").targets is None
    with pytest.raises(UserError, match=r"labels of shape \(8, 3\)"):
        read_images(tmp_path / "a.npz", problem="single")
    np.savez(tmp_path / "b.npz", x=pixels, boxes=labels * 7)
    assert read_images(tmp_path / "b.npz", problem="auto").targets is None


def test_one_column_of_0_and_1_is_no_list_of_labels():
    with pytest.raises(UserError, match="0 and 1 alone"):
        parse_cells(["0", "1", "1"], "tumour", "multi")
    assert parse_cells(["0", "1", "0|1"], "digits", "multi").targets.names == ["0", "1"]


def test_a_broken_picture_takes_its_row_with_it(tmp_path):
    pixels, _, value = planted(4)
    names = written(tmp_path, pixels)
    (tmp_path / names[1]).write_bytes(b"")
    rows(tmp_path / "t.csv", "file,age", [f"{n},{v}" for n, v in zip(names, value, strict=True)])
    found = read_images(tmp_path / "t.csv", problem="auto")
    assert [name for name, _ in found.skipped] == [names[1]]
    np.testing.assert_allclose(found.targets.values[:, 0], np.delete(value, 1))


def test_groups_of_a_table_stay_on_one_side_and_are_no_labels_of_the_validation_table(tmp_path):
    pixels, _, value = planted(24)
    names = written(tmp_path / "photos", pixels)
    lines = [f"{name},{v},p{n // 3}" for n, (name, v) in enumerate(zip(names, value, strict=True))]
    rows(tmp_path / "a.csv", "file,age,patient", lines[:18])
    rows(tmp_path / "b.csv", "file,age,patient", lines[18:])
    chosen = ONCE | {"group": "patient", "pictures": str(tmp_path / "photos")}
    where, settings = base(tmp_path / "base"), with_overrides(ClassifierSettings(), chosen)
    given = finetune_classify(
        where, tmp_path / "a.csv", tmp_path / "m", validation=tmp_path / "b.csv", settings=settings, console=False
    )
    assert given.figures["validation"]["n"] == 6
    assert "6 groups (patients, files, folders) for training, 2 held out whole" in given.figures["data"]["notes"]
    rows(tmp_path / "c.csv", "file,age,patient", [line.replace(",p6", ",p0") for line in lines[18:]])
    leaking = finetune_classify(
        where, tmp_path / "a.csv", tmp_path / "l", validation=tmp_path / "c.csv", settings=settings, console=False
    )
    shared = "3 of 6 pictures to judge on are of groups that have training pictures"
    assert any(shared in note for note in leaking.figures["data"]["notes"])
    in_memory = [pd.read_csv(tmp_path / name) for name in ("a.csv", "c.csv")]
    for frame in in_memory:
        frame["file"] = [Image.open(tmp_path / "photos" / name) for name in frame["file"]]
    plain = with_overrides(ClassifierSettings(), ONCE | {"group": "patient", "column": "file", "label_column": "age"})
    for validation, note in [(in_memory[1], shared), (in_memory[1].drop(columns="patient"), "each counts by itself")]:
        again = finetune_classify(where, in_memory[0], validation=validation, settings=plain, console=False)
        assert any(note in line for line in again.figures["data"]["notes"])
        if note == shared:
            assert again.figures["validation"]["intervals"] == leaking.figures["validation"]["intervals"]
    settings = with_overrides(settings, {"holdout": 0.3})
    drawn = finetune_classify(where, tmp_path / "a.csv", tmp_path / "n", settings=settings, console=False)
    assert drawn.figures["validation"]["n"] % 3 == 0
    assert drawn.figures["pictures"] + drawn.figures["validation"]["n"] == 18


def test_the_column_that_was_trained_on_comes_first_and_another_one_is_warned_of(tmp_path):
    """A file with a column `label` beside it was judged, and chose the epoch, by that."""
    pixels, _, value = planted(24)
    table = pd.DataFrame({"file": written(tmp_path, pixels), "age": value, "label": 0.5 - value, "target": "x"})
    table[["file", "age"]][:18].to_csv(tmp_path / "a.csv", index=False)
    table[["file", "age"]][18:].to_csv(tmp_path / "own.csv", index=False)
    table[["file", "label", "age"]][18:].to_csv(tmp_path / "both.csv", index=False)
    table[["file", "label"]][18:].to_csv(tmp_path / "other.csv", index=False)
    judged = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("own", "both"):
            settings = with_overrides(ClassifierSettings(), ONCE)
            done = finetune_classify(
                base(tmp_path / "base"),
                tmp_path / "a.csv",
                tmp_path / name,
                validation=tmp_path / f"{name}.csv",
                settings=settings,
                console=False,
            )
            judged[name] = done.figures["validation"]["rmse"]
            for source in ("own", "both"):
                assert done.model.evaluate(tmp_path / f"{source}.csv")["rmse"] == judged[name]
        model = unmask.load(tmp_path / "own")
        frame = table[18:].drop(columns="file").assign(image=list(pixels[18:]))
        rmse = [model.evaluate(source)["rmse"] for source in (tmp_path / "both.csv", frame.drop(columns="target"))]
        assert rmse == pytest.approx([judged["own"]] * 2, rel=1e-4)
        model.evaluate(model.read(tmp_path / "other.csv", label_column="label"))
    assert judged["own"] == judged["both"]
    with pytest.warns(UserWarning, match="labels are those of column 'label'; the model was trained on 'age', which"):
        model.evaluate(tmp_path / "other.csv")


def test_columns_of_labels_that_were_trained_on_are_found_among_others(tmp_path):
    pixels, labels, _ = planted(24)
    table = pd.DataFrame(labels.astype(int), columns=["left", "right", "top"])
    table.insert(0, "file", written(tmp_path, pixels))
    table.to_csv(tmp_path / "a.csv", index=False)
    table.assign(sex=1, label="x").to_csv(tmp_path / "b.csv", index=False)
    settings = with_overrides(ClassifierSettings(), ONCE)
    finetune_classify(base(tmp_path / "base"), tmp_path / "a.csv", tmp_path / "m", settings=settings, console=False)
    model = unmask.load(tmp_path / "m")
    assert model.evaluate(tmp_path / "b.csv") == model.evaluate(tmp_path / "a.csv") | {"notes": []}


def test_validation_rows_choose_the_epoch_and_test_rows_are_judged(tmp_path):
    pixels, _, value = planted(24)
    names = written(tmp_path, pixels)
    parts = ["train"] * 14 + ["val"] * 6 + ["test"] * 4
    lines = [f"{name},{v},{part}" for name, v, part in zip(names, value, parts, strict=True)]
    table = rows(tmp_path / "t.csv", "file,age,split", lines)
    settings = with_overrides(ClassifierSettings(), ONCE)
    done = finetune_classify(base(tmp_path / "base"), table, tmp_path / "m", settings=settings, console=False)
    assert (done.figures["pictures"], done.figures["validation"]["n"]) == (14, 6)
    assert "6 validation pictures in the data choose the epoch" in done.figures["data"]["notes"]
    judged = done.model.evaluate(table)
    assert judged["n"] == 4
    assert "judged on the test part: 4 of 24 pictures" in judged["notes"]
    settings = with_overrides(settings, {"holdout": 0.3})
    with pytest.raises(UserError, match="with validation pictures in the data: nothing reads this"):
        finetune_classify(tmp_path / "base", table, tmp_path / "n", settings=settings, console=False)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a", None, "b", "a"], "1 of 4 pictures have no label: row 1"),
        (["a", "", "  ", "b"], "2 of 4 pictures have no label: row 1, row 2"),
        ([None] * 4, "4 of 4 pictures have no label"),
        (pd.Series(["a", np.nan, "b", "a"]), "no label: row 1"),
        (pd.Categorical(["a", None, "b", "a"]), "no label: row 1"),
        (np.array([0, 1, np.nan, 1]), "no label: row 2"),
        ([["a"], ["a", "b"], ["b"], []], "lists of several lengths"),
        (pd.Series([["a"], ["a", "b"], ["b"], []]), r"row 0 has the label \['a'\]"),
    ],
)
@pytest.mark.parametrize("problem", [None, "single"])
def test_labels_in_memory_that_are_none_are_named(labels, said, problem):
    with pytest.raises(UserError, match=said):
        read_images((planted(4)[0], labels), problem=problem)


@pytest.mark.parametrize("labels", [[0.0, 1.0, 1.0, 0.0], ["0 ", "1", "1", "0"], np.array([0, 1, 1, 0.0], object)])
def test_classes_are_spelled_alike(labels):
    assert read_images((planted(4)[0], labels)).classes == ["0", "1"]


def test_classes_that_may_be_none_or_the_same_are_said(tmp_path):
    names = ["left", "Left", "NA", "top", "TOP", "NA", "top", "left"]
    images = read_images((planted(8)[0], names))
    found = class_notes(images.classes, images.labels)
    assert "2 of 8 labels are 'NA', as missing values are written" in found[1]
    assert "count as classes apart: 'Left' and 'left'; 'TOP' and 'top'" in found[2]
    with pytest.raises(UserError, match=r"row 2: '3,1', a number with a decimal comma"):
        parse_cells(["2", "3,1", "4", "2"], "x", "auto")
    assert parse_cells(["2", "3,1", "4", "2"], "x", "single").classes == ["2", "3,1", "4", "2"]


def test_a_column_of_parts_says_what_is_held_apart(tmp_path):
    names = written(tmp_path, planted(8)[0])
    parts = ["Train", "Train", "Train", "Train", "TEST", "TEST", "Validation", "Validation"]
    lines = [f"{n},{'ab'[k % 2]},{part}" for k, (n, part) in enumerate(zip(names, parts, strict=True))]
    found = read_images(rows(tmp_path / "t.csv", "file,label,split", lines), problem="auto")
    assert found.split.tolist() == ["train"] * 4 + ["test"] * 2 + ["validation"] * 2
    assert "held apart from it: TEST (2), Validation (2)" in "; ".join(found.notes)


def test_classes_that_may_be_none_and_codes_among_numbers_are_told(tmp_path, capsys):
    pixels, _, value = planted(24)
    settings = with_overrides(ClassifierSettings(), ONCE)
    for labels, line in [
        (np.arange(24) % 4 - 1, "warning: class -1 (5 times) counts as one"),
        (np.r_[value[:-4], [999] * 4], "warning: labels 999 ("),
    ]:
        finetune_classify(base(tmp_path / "base"), (pixels, labels), tmp_path / line[9:14], settings=settings)
        assert line in "".join(capsys.readouterr())
