"""A table in several files is filled file by file: the same bytes by whoever does it, all of it or nothing."""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import polars as pl
import pytest
from tables import patients

import unmask
from commands import run
from unmask.errors import UserError
from unmask.modalities.table.reading.several_files import drawn_frame, shards_of

RAY = importlib.util.find_spec("ray") is not None
FAST = {"steps": 0, "members": 1}


def shards(folder: Path, count: int = 4) -> Path:
    """Files of 40 patients each, CSV and parquet by turns."""
    folder.mkdir()
    for i in range(count):
        frame = patients(40, seed=i, missing=0.2).assign(site=f"clinic {i % 2}")
        if i % 2:
            pl.from_pandas(frame).write_parquet(folder / f"part-{i}.parquet")
        else:
            frame.to_csv(folder / f"part-{i}.csv", index=False)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def model():
    return unmask.TableModel.fit(
        pd.concat([patients(80, missing=0.2).assign(site=f"clinic {i}") for i in (0, 1)]), **FAST
    )


@pytest.mark.parametrize(
    "how",
    [
        {"workers": 2},
        pytest.param({"workers": 2, "engine": "ray"}, marks=pytest.mark.skipif(not RAY, reason="no ray")),
    ],
)
@pytest.mark.parametrize("draws", [0, 2])
def test_the_bytes_are_the_same_whoever_fills(tmp_path, model, how, draws):
    there = shards(tmp_path / "in")
    done = model.impute_files(there, tmp_path / "one", workers=1, draws=draws, seed=3)
    model.impute_files(sorted(there.iterdir())[::-1], tmp_path / "many", draws=draws, seed=3, **how)
    assert content(tmp_path / "one") == content(tmp_path / "many")
    assert (done.files, done.rows, done.kept) == (4, 160, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "many", "one"]


def test_each_file_is_filled_as_it_would_be_alone_and_keeps_its_format(tmp_path, model):
    there = shards(tmp_path / "in")
    done = model.impute_files(there, tmp_path / "out", workers=1)
    cells = 0
    for path in there.iterdir():
        alone, filled = model.impute(path), tmp_path / "out" / path.name
        assert (pl.read_csv if path.suffix == ".csv" else pl.read_parquet)(filled).equals(alone)
        cells += sum((pl.read_csv if path.suffix == ".csv" else pl.read_parquet)(path).null_count().row(0))
    assert done.cells == cells > 0


def test_files_of_the_same_rows_are_drawn_apart(tmp_path, model):
    (tmp_path / "in").mkdir()
    for name in "ab":
        patients(60, missing=0.4).assign(site="clinic 0").to_csv(tmp_path / "in" / f"{name}.csv", index=False)
    model.impute_files(tmp_path / "in", tmp_path / "out", draws=1, workers=1)
    found = content(tmp_path / "out")
    assert list(found) == ["1/a.csv", "1/b.csv"]
    assert found["1/a.csv"] != found["1/b.csv"]


KILLED = """
import os, sys
import unmask
from unmask.modalities.table.imputation import impute_files as files
write, count = files.write_table, 0

def killing(table, path, **options):
    global count
    count += 1
    if count == 3:
        path.with_name(f".{path.stem}.half.new{path.suffix}").write_text("ag")
        os.kill(os.getpid(), 9)
    return write(table, path, **options)

files.write_table = killing
unmask.load(sys.argv[1]).impute_files(sys.argv[2], sys.argv[3], workers=1)
"""


def test_a_killed_run_goes_on_and_makes_no_finished_file_again(tmp_path, model):
    there, hidden = shards(tmp_path / "in"), tmp_path / ".out.filling"
    model.save(tmp_path / "m")
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "m", there, tmp_path / "out"], capture_output=True)
    assert ended.returncode == -9
    assert not (tmp_path / "out").exists()
    times = {p.name: p.stat().st_mtime_ns for p in hidden.glob("part-*")}
    assert sorted(times) == ["part-0.csv", "part-1.parquet"]
    said: list[str] = []
    loaded = unmask.load(tmp_path / "m")
    done = loaded.impute_files(there, tmp_path / "out", workers=1, say=said.append)
    assert done.kept == 2
    assert said == ["filling 2 of 4 files; 2 are there"]
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in times} == times
    loaded.impute_files(there, tmp_path / "anew", workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "anew")
    assert not hidden.exists()


def test_a_run_of_other_options_begins_anew(tmp_path, model):
    there, hidden = shards(tmp_path / "in"), tmp_path / ".out.filling"
    model.save(tmp_path / "m")
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "m", there, tmp_path / "out"], capture_output=True)
    assert hidden.exists()
    (there / "part-0.csv").unlink()
    said: list[str] = []
    done = unmask.load(tmp_path / "m").impute_files(there, tmp_path / "out", workers=1, say=said.append)
    assert (done.files, done.kept) == (3, 0)
    assert "it is begun anew" in said[0]
    assert sorted(content(tmp_path / "out")) == ["part-1.parquet", "part-2.csv", "part-3.parquet"]


def test_files_that_differ_are_refused_all_at_once_and_nothing_is_written(tmp_path, model, capsys):
    there = shards(tmp_path / "in", 7)
    frames = {n: patients(20, seed=n).assign(site="clinic 0") for n in range(7)}
    frames[1].rename(columns={"sbp": "SBP"}).to_csv(there / "q1.csv", index=False)
    frames[2].assign(weight=70).to_csv(there / "q2.csv", index=False)
    pl.from_pandas(frames[3].astype({"age": str})).write_parquet(there / "q3.parquet")
    frames[4].assign(stage=["I"] * 19 + ["IV"]).to_csv(there / "q4.csv", index=False)
    frames[5].assign(age=["about 60", *frames[5].age[1:]]).to_csv(there / "q5.csv", index=False)
    pl.from_pandas(frames[6].assign(age=60)).with_columns(pl.lit(None).alias("dbp")).write_parquet(there / "zz.parquet")
    model.save(tmp_path / "m")
    code, _, error = run(capsys, "impute", tmp_path / "m", there, "--out", tmp_path / "out", "--workers", 1)
    assert code == 2
    for text in (
        "q1.csv: no column 'sbp'",
        "Is 'SBP' meant for 'sbp'?",
        "q2.csv: column 'weight', which",
        "q3.parquet: column 'age' holds texts, and numbers in most files",
        "q4.csv, column 'stage', row 21: category 'IV' was not seen in training",
        "q5.csv, column 'age', row 2: 'about 60' is not a finite number",
        "5 of 13 files do not fit, and nothing was written",
    ):
        assert text in error
    assert "zz.parquet" not in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "m"]
    with pytest.raises(UserError, match=r"q2.csv: column 'weight', which .*part-0.csv does not have"):
        unmask.TableModel.fit(there)


def test_categories_unseen_in_the_sample_go_by_the_rule_for_them(tmp_path, model):
    there = shards(tmp_path / "in")
    rows = patients(20).assign(site="clinic 7")
    rows.to_csv(there / "z.csv", index=False)
    with pytest.raises(UserError, match=r"z.csv, column 'site', row 2: category 'clinic 7' was not seen"):
        model.impute_files(there, tmp_path / "out", workers=1)
    model.impute_files(there, tmp_path / "out", unseen="missing", workers=1)
    assert set(pl.read_csv(tmp_path / "out" / "z.csv")["site"]) <= {"clinic 0", "clinic 1"}


def test_a_place_that_is_taken_or_read_is_refused(tmp_path, model):
    there = shards(tmp_path / "in")
    before = content(tmp_path)
    for out, what in (("in", "exists"), ("in/out", "inside .*, which is read")):
        with pytest.raises(UserError, match=what):
            model.impute_files(there, tmp_path / out, workers=1)
    with pytest.raises(UserError, match="named twice"):
        model.impute_files([there, there / "part-0.csv"], tmp_path / "out", workers=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no table in this folder"):
        model.impute_files(tmp_path / "empty", tmp_path / "out", workers=1)
    (there / "part-0.txt").write_bytes((there / "part-0.csv").read_bytes())
    with pytest.raises(UserError, match=r"part-0.csv: two files would become it"):
        model.impute_files(there, tmp_path / "out", workers=1)
    (there / "part-0.txt").unlink()
    assert content(tmp_path) == before


def test_files_keep_their_place_below_a_common_folder(tmp_path, model):
    for year in ("2023", "2024"):
        (tmp_path / "in" / f"year={year}").mkdir(parents=True)
        rows = patients(20, seed=int(year), missing=0.2).assign(site="clinic 0")
        rows.to_csv(tmp_path / "in" / f"year={year}" / "part.csv", index=False)
    model.impute_files(str(tmp_path / "in" / "*" / "*.csv"), tmp_path / "out", workers=1)
    assert list(content(tmp_path / "out")) == ["year=2023/part.csv", "year=2024/part.csv"]


def test_a_fit_takes_rows_drawn_from_all_files(tmp_path):
    there = shards(tmp_path / "in", 6)
    drawn, again, other = (drawn_frame(there, rows=60, seed=seed) for seed in (1, 1, 2))
    assert 40 < len(drawn) < 80
    names = [drawn.row_name(i) for i in range(len(drawn))]
    assert names == [again.row_name(i) for i in range(len(again))]
    assert names != [other.row_name(i) for i in range(len(other))]
    assert {name.partition(":")[0] for name in names} == {shard.name for shard in shards_of(there)}
    in_first = [int(name.partition(":")[2]) for name in names if name.startswith("part-0.csv")]
    assert max(in_first) > 20  # no head of the file
    assert drawn.notes == (f"fitted to {len(drawn)} of 240 rows, drawn from all 6 files",)
    whole = drawn_frame(there)
    assert len(whole) == 240
    assert whole.row_name(41) == "part-1.parquet:1"
    ages = [float(v) for v in whole.columns[0] if v not in ("", None) and v == v]
    read = [pl.read_csv(p) if p.suffix == ".csv" else pl.read_parquet(p) for p in sorted(there.iterdir())]
    assert ages == [v for frame in read for v in frame["age"] if v is not None]


def test_a_row_of_many_files_is_named_with_its_file(tmp_path):
    there = shards(tmp_path / "in", 2)
    bad = patients(30).assign(site="clinic 0")
    bad["age"] = ["n. b.", *bad.age.astype(str)[1:]]
    bad.to_csv(there / "z.csv", index=False)
    with pytest.raises(UserError, match=r"3 files, column 'age', row z.csv:2: 'n. b.'"):
        unmask.TableModel.fit(there)


def test_rows_of_parquet_alone_keep_their_types(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(3):
        frame = pl.from_pandas(patients(30, seed=i)).with_columns(pl.lit(dt.date(2020, 1, 13)).alias("day"))
        frame.write_parquet(tmp_path / "in" / f"{i}.parquet")
    model = unmask.TableModel.fit(str(tmp_path / "in" / "*.parquet"), **FAST)
    assert model.facts["rows"] == 90
    assert model.synthesize(3).schema["day"] == pl.Date


def test_one_command_fits_to_all_files_fills_them_and_keeps_the_model(tmp_path, capsys, monkeypatch):
    shards(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    words = ["impute", *(f"in/{p.name}" for p in sorted(Path("in").iterdir())), "--workers", 1, "--out"]
    code, out, _ = run(capsys, *words, "filled/", "--model", "m")
    assert code == 0
    assert "cells of 160 rows in 4 files filled" in out
    assert "note: fitted to all 160 rows of 4 files" in out
    assert "model: m" in out
    assert (Path("m") / "report.html").exists()
    Path("again").mkdir()  # empty: as good as new
    assert run(capsys, "impute", "m", "in", "--out", "again", "--workers", 1)[0] == 0
    assert content(Path("filled")) == content(Path("again"))
    for given, what in (
        ([*words, "o", "--model", "m"], "m: exists"),
        (["impute", "in", "--out", "f.csv"], "--out f.csv for several files"),
        (["impute", "in", "--out", "o", "--proper", "3"], "--proper of several files"),
        (["impute", "in", "--out", "o", "--intervals", "c.csv"], "--intervals of several files"),
        (["impute", "in/part-0.csv", "--out", "f.csv", "--workers", "2"], "--workers or --engine for one table"),
        (["impute", "m", "in", "--out", "o", "--model", "n"], "--model n with a model"),
        (["impute", "in/part-0.csv", "--out", "f.csv", "--proper", "2", "--model", "n"], "--model with --proper"),
    ):
        code, _, error = run(capsys, *given)
        assert (code, what in error) == (2, True), error
    assert sorted(os.listdir()) == ["again", "filled", "in", "m"]


def test_a_model_is_kept_of_one_table_too(tmp_path, capsys):
    patients(60, missing=0.2).to_csv(tmp_path / "t.csv", index=False)
    words = ["impute", tmp_path / "t.csv", "--model", tmp_path / "m", "--out"]
    code, out, _ = run(capsys, *words, tmp_path / "a.csv")
    assert code == 0
    assert f"model: {tmp_path / 'm'}" in out
    assert run(capsys, "impute", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "b.csv")[0] == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    code, _, error = run(capsys, *words, tmp_path / "c.csv")
    assert code == 2
    assert "m: exists" in error
    assert not (tmp_path / "c.csv").exists()


def test_pretrain_takes_the_files_of_one_table(tmp_path, capsys):
    words = ["pretrain", "table", shards(tmp_path / "in"), "--out", tmp_path / "m", "--steps", 0]
    assert "note: fitted to all 160 rows of 4 files" in run(capsys, *words)[1]
    assert "kept as it was" in run(capsys, *words, "--resume")[1]
