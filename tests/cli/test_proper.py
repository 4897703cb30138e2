"""`unmask impute --proper`: completed tables for Rubin's rules, with a model folder or without."""

import json

import polars as pl
import pytest
from tables import patients

from unmask.cli import main


def run(capsys, *arguments) -> tuple[int, str, str]:
    try:
        main([str(a) for a in arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from unmask.table.pretrain import pretrain
    from unmask.table.recipes import settings_of

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
        capsys, "impute", csv, "--proper", 3, "--out", tmp_path / "f.csv", *SCHEMA, "--method", "age=norm",
        "--report", tmp_path / "r.html", "--json",
    )  # fmt: skip
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
    [(["--draws", 2], "--proper"), (["--proper", 2, "--draws", 2], "--draws"), (["--proper", 1], "two completed"),
     (["--proper", 2, "--shift", "dbp=much"], "COLUMN=NUMBER"), (["--proper", 2, "--formula", "y ~"], "formula"),
     (["--proper", 2, "--method", "nope=pmm"], "nope"), (["--proper", 2, "--shift", "dbp[sx == 1]=3"], "sx")],
)  # fmt: skip
def test_mistakes_are_named_and_nothing_is_written(capsys, csv, tmp_path, arguments, message):
    code, _, error = run(capsys, "impute", csv, "--out", tmp_path / "f.csv", *arguments)
    assert code == 2
    assert message in error
    assert not list(tmp_path.glob("f*.csv"))


def test_options_of_multiple_imputation_ask_for_it(capsys, csv, folder, tmp_path):
    code, _, error = run(capsys, "impute", folder / "m", csv, "--out", tmp_path / "f.csv", "--formula", "age ~ sex")
    assert code == 2
    assert "--proper" in error
