"""Table commands as scripts rely on them."""

import json

import numpy as np
import polars as pl
import pytest
from tables import patients

from commands import run
from unmask.cli.table.uses import score_lines

FAST = ["--steps", 3, "--set", "members=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("table")
    patients(120, missing=0.1).to_csv(path / "train.csv", index=False)
    patients(40, seed=1, missing=0.3).to_csv(path / "new.csv", index=False)
    from unmask.modalities.table.pretrain import pretrain
    from unmask.modalities.table.recipes import settings_of

    pretrain(path / "train.csv", path / "m", settings=settings_of(steps=3, members=2), console=False)
    return path


def test_pretrain_writes_a_run_folder(capsys, folder, tmp_path):
    out = tmp_path / "m"
    code, text, _ = run(
        capsys,
        "pretrain",
        "table",
        folder / "train.csv",
        "--out",
        out,
        "--duration",
        "time",
        "--event",
        "event",
        *FAST,
        "--json",
    )
    assert code == 0
    found = json.loads(text)
    assert {"seed", "seconds", "device", "precision", "folder", "held_out_loss"} <= set(found)
    assert {p.name for p in out.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "metrics.jsonl",
        "report.html",
        "unmask.json",
    }
    assert json.loads((out / "unmask.json").read_text())["kind"] == "table"
    code, _, err = run(capsys, "pretrain", "table", folder / "train.csv", "--out", out, *FAST)
    assert code == 2
    assert "already holds a run" in err
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text("{}")
    code, _, err = run(capsys, "pretrain", "table", folder / "train.csv", "--out", folder / "other", *FAST)
    assert code == 2
    assert "already holds a run or a model" in err


def test_a_finished_fit_is_kept_for_the_same_data_and_settings_alone(capsys, folder, tmp_path):
    """Other rows, another outcome, seed and rules were passed over, and the old figures printed as if new."""
    pair = ["--duration", "time", "--event", "event"]
    words = ["pretrain", "table", folder / "train.csv", "--out", tmp_path / "m", *FAST]
    assert run(capsys, *words, *pair)[0] == 0
    code, text, _ = run(capsys, *words, *pair, "--resume")
    assert code == 0
    assert "kept as it was" in text
    (tmp_path / "t.csv").write_text((folder / "train.csv").read_text().replace("II,", "I,", 1))
    for other, says in [
        ([*pair, "--seed", 5], "seed=5, was 0"),
        ([*pair, "--constraint", "age < sbp"], "constraints: not the same"),
        (["--duration", "age", "--event", "event"], "duration=age, was time"),
    ]:
        code, _, errors = run(capsys, *words, *other, "--resume")
        assert code == 2
        assert says in errors
    words[2] = tmp_path / "t.csv"
    assert "rows: not the same" in run(capsys, *words, *pair, "--resume")[2]


def test_impute_changes_empty_cells_only(capsys, folder, tmp_path):
    code, text, _ = run(
        capsys,
        "impute",
        folder / "m",
        folder / "new.csv",
        "--out",
        tmp_path / "o.csv",
        "--intervals",
        tmp_path / "i.csv",
        "--json",
    )
    assert code == 0
    before = [line.split(",") for line in (folder / "new.csv").read_text().splitlines()]
    after = [line.split(",") for line in (tmp_path / "o.csv").read_text().splitlines()]
    empty = 0
    for a, b in zip(before, after, strict=True):
        for x, y in zip(a, b, strict=True):
            empty += x == ""
            assert y == x if x else y
    assert json.loads(text)["cells"] == empty == pl.read_csv(tmp_path / "i.csv").height


def test_a_coverage_of_no_intervals_is_refused(capsys, folder, tmp_path):
    for more in ([], ["--proper", 2]):
        code, _, errors = run(
            capsys, "impute", folder / "m", folder / "new.csv", "--out", tmp_path / "o.csv", "--coverage", 0.5, *more
        )
        assert code == 2
        assert "--coverage" in errors
    assert not (tmp_path / "o.csv").exists()


def test_draws(capsys, folder, tmp_path):
    run(capsys, "impute", folder / "m", folder / "new.csv", "--out", tmp_path / "o.parquet", "--draws", 2)
    assert pl.read_parquet(tmp_path / "o-2.parquet").null_count().sum_horizontal().item() == 0


def test_synthesize_augment_evaluate_score_embed_inspect(capsys, folder, tmp_path):
    code, text, _ = run(
        capsys,
        "synthesize",
        folder / "m",
        "--rows",
        70,
        "--out",
        tmp_path / "s.csv",
        "--where",
        "sex == 'F'",
        "--where",
        "age >= 60",
        "--json",
    )
    assert code == 0
    assert json.loads(text)["rows"] == 70
    made = pl.read_csv(tmp_path / "s.csv")
    assert set(made["sex"]) == {"F"}
    assert made["age"].min() >= 60
    code, text, _ = run(
        capsys,
        "augment",
        folder / "m",
        folder / "train.csv",
        "--where",
        "stage == 'II'",
        "--rows",
        9,
        "--out",
        tmp_path / "a.csv",
        "--json",
    )
    assert json.loads(text)["added"] == 9
    code, text, _ = run(
        capsys,
        "evaluate",
        folder / "m",
        folder / "new.csv",
        folder / "train.csv",
        "--report",
        tmp_path / "r.html",
        "--json",
    )
    found = json.loads(text)
    assert {"km_area", "mean_log_hr_difference", "two_sample_auc", "privacy", "ceiling", "floor"} <= set(found)
    assert "Kaplan-Meier" in (tmp_path / "r.html").read_text()
    code, text, _ = run(capsys, "score", folder / "m", folder / "new.csv", "--json")
    assert len(json.loads(text)["results"]) == 40
    assert run(capsys, "embed", folder / "m", folder / "new.csv", "--out", tmp_path / "e.npy")[0] == 0
    assert run(capsys, "inspect", folder / "m", "--json")[0] == 0
    assert run(capsys, "fill", folder / "m", folder / "new.csv", "--out", tmp_path / "f.csv")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["synthesize", "m", "--rows", 5, "--out", "x.csv", "--where", "agee > 3"], "Did you mean 'age'"),
        (["synthesize", "m", "--rows", 0, "--out", "x.csv"], "at least 1"),
        (["synthesize", "m", "--rows", 5, "--out", "x.xls"], "unknown kind of file"),
        (["synthesize", "m", "--rows", 5, "--out", "no/x.csv"], "does not exist"),
        (["impute", "m", "ragged.csv", "--out", "x.csv"], "ragged.csv:3: 1 cells"),
        (["impute", "m", "nowhere.csv", "--out", "x.csv"], "no such file"),
        (["impute", "train.csv", "new.csv", "--out", "x.csv"], "train.csv: a file, not the folder of a model"),
        (["impute", "nosuch.csv", "new.csv", "--out", "x.csv"], "nosuch.csv: no such file or folder"),
        (["impute", "m", "unseen.csv", "--out", "x.csv"], "--unseen missing"),
        (["impute", "m", "new.csv", "--out", "x.csv", "--constraint", "age < 0"], "low = 0 or high = 0"),
        (["impute", "m", "new.csv", "--out", "x.csv", "--constraint", "-5 <= age"], "bounds one by a constant"),
        (["impute", "m", "blanks.csv", "--out", "x.csv"], "Is 'age ' meant for 'age'? Rename it: only blanks differ"),
        (["impute", "m", "blanks.csv", "--proper", 2, "--out", "x.csv"], "'age ' differs in its blanks alone"),
        (["pretrain", "table", "short.csv", "--out", "m2"], "R's write.table"),
        (["pretrain", "table", "ragged.csv", "--out", "m2"], "ragged.csv:3"),
        (
            ["pretrain", "table", "train.csv", "--out", "m2", "--duration", "tim", "--event", "event"],
            "Did you mean 'time'",
        ),
        (["pretrain", "table", "train.csv", "--out", "m2", "--recipe", "mcmm"], "Did you mean 'mcm'"),
    ],
)
def test_mistakes_end_with_code_2_and_write_nothing(capsys, folder, tmp_path, monkeypatch, arguments, says):
    for name in ("m", "train.csv", "new.csv"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "short.csv").write_text("a,b\nr1,1,2\nr2,1,3\n")
    new = (folder / "new.csv").read_text()
    (tmp_path / "blanks.csv").write_text(new.replace("age", "age ", 1))
    (tmp_path / "unseen.csv").write_text(new.replace(",F,", ",other,"))
    monkeypatch.chdir(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert says in err
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_whole_numbers_and_categories_are_written_as_the_file_spells_them(capsys, tmp_path):
    """pandas writes a column of 0 and 1 with holes as 0.0 and 1.0."""
    rng = np.random.default_rng(1)
    table = patients(80, seed=1)
    table["smokes"], table["grade"] = rng.integers(0, 2, 80), rng.integers(1, 4, 80)
    for name in ("age", "smokes", "grade", "stage"):
        table.loc[rng.random(80) < 0.3, name] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "s.toml").write_text('[columns.grade]\nkind = "ordinal"\ncategories = ["1", "2", "3"]\n')
    m, filled, new = tmp_path / "m", tmp_path / "filled.csv", tmp_path / "new.csv"
    assert (
        run(capsys, "pretrain", "table", tmp_path / "t.csv", "--out", m, "--schema", tmp_path / "s.toml", *FAST)[0] == 0
    )
    assert run(capsys, "impute", m, tmp_path / "t.csv", "--out", filled)[0] == 0
    assert run(capsys, "synthesize", m, "--rows", 60, "--out", new)[0] == 0
    for file in (filled, new):
        out = pl.read_csv(file, infer_schema=False)
        assert set(out["smokes"]) == {"0.0", "1.0"}
        assert set(out["grade"]) == {"1.0", "2.0", "3.0"}
        assert out["age"].str.contains(r"^\d+\.0$").all()
        assert set(out["event"]) == {"0", "1"}  # no holes, no points
        assert set(out["stage"]) == {"I", "II", "III"}


def test_new_patients_are_imputed_without_their_outcome(capsys, folder, tmp_path):
    new = pl.read_csv(folder / "new.csv").drop("time", "event").with_columns(note=pl.lit("x"))
    new.write_csv(tmp_path / "new.csv")
    code, text, _ = run(capsys, "impute", folder / "m", tmp_path / "new.csv", "--out", tmp_path / "f.csv", "--json")
    assert code == 0
    assert json.loads(text)["absent"] == ["time", "event"]
    written = pl.read_csv(tmp_path / "f.csv")
    assert written.columns == new.columns
    assert not sum(written.null_count().row(0))
    assert run(capsys, "score", folder / "m", tmp_path / "new.csv")[0] == 0
    new.drop("age").write_csv(tmp_path / "short.csv")
    short = ["impute", folder / "m", tmp_path / "short.csv", "--out", tmp_path / "g.csv"]
    code, _, err = run(capsys, *short)
    assert (code, "no column 'age'" in err, (tmp_path / "g.csv").exists()) == (2, True, False)
    assert run(capsys, *short, "--absent", "age", "--add-absent")[0] == 0
    assert pl.read_csv(tmp_path / "g.csv").columns == ["sex", "dbp", "sbp", "stage", "note", "age", "time", "event"]


def test_rules_hold_on_the_command_line(capsys, folder, tmp_path):
    m, rule = tmp_path / "m", ["--constraint", "dbp < sbp"]
    assert run(capsys, "pretrain", "table", folder / "train.csv", "--out", m, *rule, "--steps", 0)[0] == 0
    new = pl.read_csv(folder / "new.csv").with_columns(
        dbp=pl.when(pl.col("sbp") < 125).then(None).otherwise(pl.col("dbp"))
    )
    new.with_columns(sbp=pl.col("sbp") - 60).write_csv(tmp_path / "t.csv")
    code, text, _ = run(capsys, "impute", m, tmp_path / "t.csv", "--out", tmp_path / "f.csv", "--json")
    assert code == 0
    recorded = new.filter(pl.col("dbp") >= pl.col("sbp") - 60).height
    filled = pl.read_csv(tmp_path / "f.csv")
    assert filled.filter(pl.col("dbp") >= pl.col("sbp")).height == recorded > 0
    assert any("broken as recorded in rows" in note for note in json.loads(text)["notes"])
    code, _, err = run(
        capsys, "impute", folder / "m", tmp_path / "t.csv", "--out", tmp_path / "g.csv", "--constraint", "dbp < spb"
    )
    assert (code, "no column 'spb'" in err) == (2, True)
    assert (
        run(capsys, "synthesize", m, "--rows", 50, "--out", tmp_path / "s.csv", "--ids", "new", "--rare", "keep")[0]
        == 0
    )
    made = pl.read_csv(tmp_path / "s.csv")
    assert made.filter(pl.col("dbp") >= pl.col("sbp")).is_empty()


def test_what_is_read_is_not_written_over(capsys, folder, tmp_path):
    """Of impute --proper, --draws, --report and describe --out nobody asked: the table was gone, or a page of HTML."""
    source = tmp_path / "t-1.csv"
    source.write_bytes((folder / "new.csv").read_bytes())
    before = source.read_bytes()
    others = ["--out", tmp_path / "o.csv"]
    for command in (
        ("impute", folder / "m", source, "--out", source),
        ("impute", folder / "m", source, "--draws", 2, "--out", tmp_path / "t.csv"),
        ("impute", folder / "m", source, *others, "--intervals", source),
        ("impute", source, "--proper", 2, "--out", tmp_path / "t.csv"),
        ("impute", source, "--proper", 2, *others, "--report", source),
        ("augment", folder / "m", source, "--where", "age > 60", "--rows", 5, "--out", source),
        ("evaluate", folder / "m", source, "--report", source),
        ("describe", source, "--out", source),
        ("describe", source, "--schema-out", source),
    ):
        code, _, error = run(capsys, *command)
        assert (code, "is a file that is read" in error) == (2, True), command
    assert source.read_bytes() == before
    code, _, error = run(capsys, "impute", folder / "m", source, *others, "--intervals", tmp_path / "o.csv")
    assert (code, "two results in one file" in error) == (2, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t-1.csv"]


def test_every_command_reads_a_table_as_it_is_said_to_be_written(capsys, folder, tmp_path):
    """cp1252, and words for none: score, evaluate and augment take the flags that impute takes."""
    table = patients(40, seed=1)
    table["ort"] = "Köln"
    table["stage"] = table["stage"].where(np.arange(40) > 3, "keine Angabe")
    table.to_csv(tmp_path / "new.csv", index=False, sep=";", encoding="cp1252")
    told = ("--encoding", "cp1252", "--missing", "keine Angabe", "--decimal", ".")
    augment = (
        "augment",
        folder / "m",
        tmp_path / "new.csv",
        "--where",
        "sex == 'F'",
        "--rows",
        3,
        "--out",
        tmp_path / "a.csv",
    )
    for command in (
        ("score", folder / "m", tmp_path / "new.csv"),
        ("evaluate", folder / "m", tmp_path / "new.csv"),
        augment,
    ):
        code, _, err = run(capsys, *command)
        assert (code, "--encoding cp1252" in err) == (2, True)
        assert "keine Angabe" in run(capsys, *command, *told[:2])[2]
        assert run(capsys, *command, *told)[0] == 0


def test_score_shows_the_least_natural_rows_first():
    rows = [
        {"row": str(i), "score": -float(i), "slots": 2, "least_likely": {"column": "age", "log_probability": -1.0}}
        for i in range(300)
    ]
    empty = {"row": "x", "score": 0.0, "slots": 0, "least_likely": None}
    lines = score_lines([*rows, empty])
    assert lines[0].startswith("301 rows; the least natural")
    assert [line.split("row ")[1].split()[0] for line in lines[1:]] == [str(i) for i in range(299, 279, -1)]
    assert "least likely: age (-1.0)" in lines[1]


def test_a_table_is_imputed_without_a_model(capsys, folder, tmp_path):
    given = pl.read_csv(folder / "new.csv")
    out, cells = tmp_path / "filled.csv", tmp_path / "cells.csv"
    code, text, err = run(
        capsys,
        "impute",
        folder / "new.csv",
        "--out",
        out,
        "--intervals",
        cells,
        "--duration",
        "time",
        "--event",
        "event",
    )
    assert code == 0
    assert "fitted to the table itself: 40 rows x 7 columns" in err
    filled = pl.read_csv(out)
    assert filled.columns == given.columns
    assert filled.null_count().sum_horizontal().item() == 0
    assert text.startswith(f"{given.null_count().sum_horizontal().item()} cells filled")
    assert pl.read_csv(cells).columns[0] == "line"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{new}", "--absent", "age"], "--absent without a model"),
        (["{new}", "--formula", "age ~ sex"], "--formula without --proper"),
        (["{m}", "{new}", "--duration", "time"], "--duration with a model"),
        (["{m}"], "unmask impute MODEL TABLE --out F"),
    ],
)
def test_options_that_nothing_reads_are_refused(capsys, folder, tmp_path, words, said):
    given = [word.format(new=folder / "new.csv", m=folder / "m") for word in words]
    code, _, err = run(capsys, "impute", *given, "--out", tmp_path / "f.csv")
    assert code == 2
    assert said in err
    assert not list(tmp_path.iterdir())


def test_a_format_that_is_not_written_is_told_before_the_work(capsys, folder, tmp_path):
    """A fit of seconds came first, and then "unknown kind of file"."""
    t, m = folder / "new.csv", folder / "m"
    where = ["--rows", 3, "--where", "sex == 'F'"]
    for words in (
        ["impute", t],
        ["impute", t, "--proper", 2],
        ["synthesize", m, "--rows", 3],
        ["augment", m, t, *where],
    ):
        code, out, error = run(capsys, *words, "--out", tmp_path / "filled")
        assert (code, out) == (2, "")
        assert error.startswith(f"unmask: {tmp_path / 'filled'}: unknown kind of file ''"), error
    assert list(tmp_path.iterdir()) == []
