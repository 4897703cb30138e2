"""`unmask impute --proper`: completed tables for Rubin's rules, with a model folder or without."""

import json

import polars as pl
import pytest
from tables import patients

from commands import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from unmask.modalities.table.pretrain import pretrain
    from unmask.modalities.table.recipes import settings_of

    path = tmp_path_factory.mktemp("table")
    patients(80, missing=0.1).to_csv(path / "train.csv", index=False)
    patients(40, seed=1, missing=0.3).to_csv(path / "new.csv", index=False)
    pretrain(path / "train.csv", path / "m", settings=settings_of(steps=0, members=1), console=False)
    return path


SCHEMA = ["--duration", "time", "--event", "event"]


@pytest.fixture
def csv(tmp_path):
    patients(60, seed=1, missing=0.2).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_a_table_alone_is_completed_and_what_was_done_is_said(capsys, csv, tmp_path):
    code, text, _ = run(
        capsys,
        "impute",
        csv,
        "--proper",
        3,
        "--out",
        tmp_path / "f.csv",
        *SCHEMA,
        "--method",
        "age=norm",
        "--report",
        tmp_path / "r.html",
        "--json",
    )
    assert code == 0
    found = json.loads(text)
    assert [p.name for p in sorted(tmp_path.glob("f-*.csv"))] == ["f-1.csv", "f-2.csv", "f-3.csv"]
    assert found["methods"]["age"] == "norm"
    assert found["formula"].startswith("Surv(time, event) ~")
    assert (tmp_path / "r.html").is_file()
    before, after = (pl.read_csv(p, infer_schema=False) for p in (csv, tmp_path / "f-1.csv"))
    assert sum(after.null_count().row(0)) == 0
    for name in before.columns:
        seen = before[name].is_not_null()
        assert (before[name] == after[name]).filter(seen).all()


def test_shifts_of_groups(capsys, csv, tmp_path):
    means = {}
    for name, extra in (("a", []), ("b", ["--shift", "dbp[sex == 'F']=50"])):
        assert run(capsys, "impute", csv, "--proper", 2, "--out", tmp_path / f"{name}.csv", *SCHEMA, *extra)[0] == 0
        means[name] = pl.read_csv(tmp_path / f"{name}-1.csv")
    moved = (means["b"]["dbp"] - means["a"]["dbp"]).to_numpy()
    assert set(moved.round(3)) == {0.0, 50.0}
    assert (means["a"]["sex"].to_numpy()[moved > 0] == "F").all()


def test_a_model_gives_its_schema(capsys, folder, tmp_path):
    code, text, _ = run(
        capsys, "impute", folder / "m", folder / "new.csv", "--proper", 2, "--out", tmp_path / "f.csv", "--json"
    )
    assert code == 0
    assert len(json.loads(text)["out"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", 2], "--proper"),
        (["--proper", 2, "--draws", 2], "--draws"),
        (["--proper", 1], "two completed"),
        (["--proper", 2, "--shift", "dbp=much"], "COLUMN=NUMBER"),
        (["--proper", 2, "--formula", "y ~"], "formula"),
        (["--proper", 2, "--method", "nope=pmm"], "nope"),
        (["--proper", 2, "--unseen", "missing"], "--unseen"),
        (["--entry", "a"], "entry"),
        (["--proper", 2, "--shift", "dbp[sx == 1]=3"], "sx"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(capsys, csv, tmp_path, arguments, message):
    code, _, error = run(capsys, "impute", csv, "--out", tmp_path / "f.csv", *arguments)
    assert code == 2
    assert message in error
    assert not list(tmp_path.glob("f*.csv"))


def test_options_of_multiple_imputation_ask_for_it(capsys, csv, folder, tmp_path):
    code, _, error = run(capsys, "impute", folder / "m", csv, "--out", tmp_path / "f.csv", "--formula", "age ~ sex")
    assert code == 2
    assert "--proper" in error


def read_as(kind: str, csv, folder) -> tuple[object, list]:
    """A table whose file wants to be told how it is read, and the options that tell it."""
    frame = pl.read_csv(csv, infer_schema=False)
    if kind == "missing":
        target = folder / "odd.csv"
        frame.with_columns(pl.col("age").fill_null("-9")).write_csv(target)
        return target, ["--missing", "-9"]
    if kind == "decimal":
        target = folder / "odd.tsv"
        age = (
            pl.col("age").cast(float).map_elements(lambda v: f"{v / 10:.3f}".replace(".", ","), return_dtype=pl.String)
        )
        frame.with_columns(pl.all().str.strip_suffix(".0")).with_columns(age).write_csv(target, separator="\t")
        return target, ["--decimal", ","]
    target = folder / "odd.csv"
    target.write_bytes(frame.with_columns(sex=pl.col("sex").replace("F", "é")).write_csv().encode("cp1252"))
    return target, ["--encoding", "cp1252"]


@pytest.mark.parametrize("kind", ["missing", "decimal", "encoding"])
def test_a_table_alone_is_read_as_told(capsys, csv, tmp_path, kind):
    target, options = read_as(kind, csv, tmp_path)
    out = tmp_path / f"f{target.suffix}"
    code, _, error = run(
        capsys, "impute", target, "--proper", 2, "--out", out, *SCHEMA, *options, "--method", "age=pmm"
    )
    assert code == 0, error
    whole = (tmp_path / f"f-1{target.suffix}").read_text(encoding="cp1252" if kind == "encoding" else "utf-8")
    done = pl.read_csv(whole.encode(), infer_schema=False, separator="\t" if kind == "decimal" else ",")
    ages = done["age"].str.replace(",", ".").cast(float)
    assert ages.null_count() == 0
    assert ages.min() > 0
    if kind == "decimal":
        assert ages.max() < 20  # 6,340 is six and a third
    if kind == "encoding":
        assert set(done["sex"]) == {"é", "M"}


def test_a_table_beside_a_model_is_read_as_told(capsys, folder, csv, tmp_path):
    target, options = read_as("missing", csv, tmp_path)
    code, _, error = run(capsys, "impute", folder / "m", target, "--proper", 2, "--out", tmp_path / "f.csv", *options)
    assert code == 0, error
    assert pl.read_csv(tmp_path / "f-1.csv")["age"].min() > 0


def test_a_sheet_is_refused_where_there_is_none(capsys, csv, tmp_path):
    code, _, error = run(capsys, "impute", csv, "--proper", 2, "--out", tmp_path / "f.csv", "--sheet", "a")
    assert code == 2
    assert "--sheet a" in error


def test_event_levels_and_entry_of_a_table_alone(capsys, csv, tmp_path):
    frame = pl.read_csv(csv).drop_nulls(["time", "event"])
    state = pl.when(pl.col("event") == 1).then(pl.lit("relapse")).otherwise(pl.lit("lost"))
    frame.with_columns(event=state, entered=pl.col("time") / 2).write_csv(tmp_path / "odd.csv")
    start = ["impute", tmp_path / "odd.csv", "--proper", 2, "--out", tmp_path / "f.csv", *SCHEMA]
    code, _, error = run(capsys, *start)
    assert code == 2
    assert "--event-level" in error
    code, _, error = run(capsys, *start, "--event-level", "relapse")
    assert code == 0, error
    code, text, error = run(capsys, *start, "--event-level", "relapse", "--entry", "entered", "--json")
    assert code == 0, error
    found = json.loads(text)
    assert not any("not drawn to agree" in note for note in found["notes"] + found["warnings"]), found


@pytest.mark.parametrize("extra", [[], ["--proper", 2]])
def test_every_spelling_taken_for_missing_is_said(capsys, folder, tmp_path, extra):
    frame = pl.read_csv(folder / "new.csv", infer_schema=False).with_columns(pl.col("age").fill_null("."))
    frame = frame.with_columns(pl.col("sex").fill_null("NULL"), pl.col("dbp").fill_null("-9"))
    frame.write_csv(tmp_path / "t.csv")
    dots, nulls = (frame["age"] == ".").sum(), (frame["sex"] == "NULL").sum()
    start = ["impute", folder / "m", tmp_path / "t.csv", "--out", tmp_path / "f.csv", "--missing", "-9", *extra]
    code, text, error = run(capsys, *start)
    assert code == 0, error
    assert (text + error).count(f"'age': taken for missing: '.' ({dots} cells)") == 1
    _, text, _ = run(capsys, *start, "--json")
    notes = json.loads(text)["notes"] + json.loads(text)["warnings"]
    assert f"'sex': taken for missing: 'NULL' ({nulls} cells)" in notes
    assert any(note.startswith("'dbp': taken for missing: '-9'") for note in notes)
    assert sum(note.startswith("'age': taken") for note in notes) == 1


def test_columns_of_one_name_are_refused(capsys, csv, folder, tmp_path):
    lines = csv.read_text().splitlines()
    twice = [f"{line},{line.split(',')[0]}" for line in lines]
    (tmp_path / "twice.csv").write_text("\n".join(twice) + "\n")
    end = ["--out", tmp_path / "f.csv"]
    for command in (
        ["pretrain", "table", tmp_path / "twice.csv", "--steps", 0],
        ["impute", tmp_path / "twice.csv", "--proper", 2],
        ["impute", folder / "m", tmp_path / "twice.csv"],
    ):
        code, _, error = run(capsys, *command, *end)
        assert code == 2
        assert "columns 1 and 8 are called 'age'" in error
    code, text, _ = run(capsys, "describe", tmp_path / "twice.csv", "--json")
    assert code == 0
    found = [f for f in json.loads(text)["findings"] if f["code"] == "duplicate_name"]
    assert [f["severity"] for f in found] == ["error"]


def test_a_guess_that_leaves_cells_empty_is_a_warning(capsys, tmp_path):
    rows = [f"{'ABC'[k % 3]},{k * 7 % 50},{'' if k % 3 == 2 else k * 11 % 37}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["centre,age,lab", *rows]) + "\n")
    code, text, errors = run(capsys, "impute", tmp_path / "t.csv", "--proper", 2, "--out", tmp_path / "f.csv", "--json")
    assert code == 0
    assert errors.startswith("warning: 'lab' is empty where 'centre' is 'C'")
    found = json.loads(text)
    assert len(found["warnings"]) == 1
    assert not any("'lab'" in note for note in found["notes"])


def test_a_cause_that_never_occurs_ends_with_2_and_nothing_written(capsys, tmp_path):
    table = patients(60, seed=1, missing=0.2)
    table.assign(event=table["event"].map({0: "none", 1: "relapse"})).to_csv(tmp_path / "t.csv", index=False)
    asked = ["impute", tmp_path / "t.csv", "--proper", 2, "--out", tmp_path / "f.csv", *SCHEMA]
    asked += ["--event-level", "relapse"]
    code, _, text = run(capsys, *asked, "--event-level", "death")
    assert code == 2
    assert "no level 'death'" in text
    assert "none, relapse" in text
    code, _, text = run(capsys, *asked, "--family", "fine-gray")
    assert code == 2
    assert "--cause" in text
    assert not list(tmp_path.glob("f*.csv"))
    code, _, _ = run(capsys, *asked, "--family", "fine-gray", "--cause", "relapse", "--rounds", 1)
    assert code == 0
    assert len(list(tmp_path.glob("f-*.csv"))) == 2
