"""Six deliberately awful files: `describe` says what is wrong, and `impute` then does the right thing or refuses."""

import functools
import json
import tomllib

import numpy as np
import polars as pl
import pytest

import commands
import unmask

FAST = ["--steps", 0]
ROWS = 60


@pytest.fixture
def run(capsys):
    return functools.partial(commands.run, capsys)


@pytest.fixture
def described(run):
    def described(path, *more) -> tuple[dict, dict]:
        """The columns by name, and the findings by (column, code)."""
        code, out, err = run("describe", path, "--json", *more)
        assert code == 0, err
        found = json.loads(out)
        return {c["name"]: c for c in found["columns"]}, {(f["column"], f["code"]): f for f in found["findings"]}

    return described


def written(path, columns: dict, delimiter: str = ",", encoding: str = "utf-8"):
    lines = [delimiter.join(columns), *(delimiter.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_bytes("\r\n".join(lines).encode(encoding) + b"\r\n")
    return path


def cells(path, encoding: str = "utf-8", delimiter: str = ",") -> list[list[str]]:
    return [line.split(delimiter) for line in path.read_bytes().decode(encoding).splitlines()]


def comma(values, digits: int) -> list[str]:
    return [f"{v:.{digits}f}".replace(".", ",") for v in values]


def test_a_german_export(run, described, tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "Größe": comma(rng.normal(170, 9, ROWS), 1),
        "Kreatinin": comma(rng.gamma(3, 0.4, ROWS), 2),
        "Leukozyten": [f"{v // 1000}.{v % 1000:03}" for v in rng.integers(4000, 11000, ROWS)],
        "Stadium": rng.choice(["früh", "spät"], ROWS).tolist(),
    }
    columns["Leukozyten"][0] = "12.345,0"
    columns["Kreatinin"][3] = columns["Größe"][4] = ""
    path = written(tmp_path / "t.csv", columns, ";", "cp1252")
    code, _, err = run("describe", path)
    assert code == 2
    assert "t.csv:1: not UTF-8" in err
    assert "cp1252 reads 'Größe'" in err
    found, findings = described(path, "--encoding", "cp1252")
    assert [c["kind"] for c in found.values()] == ["numeric", "numeric", "integer", "binary"]
    assert "decimals after ','" in findings["Kreatinin", "marks"]["text"]
    assert float(found["Leukozyten"]["low"].replace(".", "").replace(",", ".")) > 3000
    flags = ["--encoding", "cp1252"]
    assert run("pretrain", "table", path, "--out", tmp_path / "m", *FAST, *flags)[0] == 0
    code, out, _ = run("impute", tmp_path / "m", path, "--out", tmp_path / "o.csv", *flags)
    assert code == 0
    assert "2 cells filled" in out
    before, after = cells(path, "cp1252", ";"), cells(tmp_path / "o.csv", "cp1252", ";")
    changed = [(i, j) for i, row in enumerate(before) for j, v in enumerate(row) if v != after[i][j]]
    assert changed == [(4, 1), (5, 0)]
    assert 140 < float(after[5][0].replace(",", ".")) < 200
    assert "," in after[4][1]


def test_codes_for_no_value(run, described, tmp_path):
    rng = np.random.default_rng(1)
    columns = {
        "crp": np.round(rng.gamma(2, 10, ROWS), 1).tolist(),
        "glucose": rng.integers(60, 300, ROWS).tolist(),
        "smoker": rng.choice(["yes", "no", "Unknown"], ROWS).tolist(),
    }
    columns["crp"][5] = columns["crp"][9] = -9
    columns["glucose"][7] = columns["glucose"][8] = 999
    path = written(tmp_path / "t.csv", columns)
    found, findings = described(path)
    assert "-9 (2 cells)" in findings["crp", "sentinel"]["text"]
    assert "999 (2 cells)" in findings["glucose", "sentinel"]["text"]
    assert "'Unknown'" in findings["smoker", "unknown_category"]["text"]
    assert found["crp"]["missing"] == 0  # never converted unasked
    (tmp_path / "s.toml").write_text(
        "[columns.crp]\nmissing = [-9]\n[columns.glucose]\nmissing = [999]\n[columns.smoker]\nmissing = ['Unknown']\n"
    )
    _, out, _ = run("pretrain", "table", path, "--out", tmp_path / "m0", *FAST)
    assert "warning: 'crp' holds -9" in out  # the warnings that matter are printed by a fit too
    run("pretrain", "table", path, "--out", tmp_path / "m", "--schema", tmp_path / "s.toml", *FAST)
    _, out, _ = run("impute", tmp_path / "m", path, "--out", tmp_path / "o.csv")
    filled = pl.read_csv(tmp_path / "o.csv")
    assert filled["crp"].min() >= 0
    assert filled["glucose"].max() < 301
    assert set(filled["smoker"]) == {"yes", "no"}


def test_none_and_na_as_values(run, described, tmp_path):
    rng = np.random.default_rng(2)
    columns = {
        "complication": rng.choice(["None", "Bleeding", "Infection"], ROWS).tolist(),
        "ion": rng.choice(["Na", "K", "Ca"], ROWS).tolist(),
        "level": np.round(rng.normal(5, 1, ROWS), 1).tolist(),
    }
    columns["level"][2], columns["complication"][3] = "None", ""
    path = written(tmp_path / "t.csv", columns)
    found, findings = described(path)
    assert set(found["complication"]["levels"]) == {"None", "Bleeding", "Infection"}
    assert found["complication"]["missing"] == 1
    assert findings["ion", "none_as_value"]["severity"] == "warning"
    assert findings["level", "missing_spelling"]["text"] == "'level': taken for missing: 'None' (1 cells)"
    run("pretrain", "table", path, "--out", tmp_path / "m", *FAST)
    _, out, _ = run("impute", tmp_path / "m", path, "--out", tmp_path / "o.csv", "--json")
    assert json.loads(out)["cells"] == 2
    before, after = cells(path), cells(tmp_path / "o.csv")
    assert [row[1] for row in before] == [row[1] for row in after]
    assert sum(a != b for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True)) == 2


def test_two_rows_per_patient(run, described, tmp_path):
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(ROWS // 2), 2)
    columns = {
        "MRN": [str(40017 + 31 * w) for w in who],
        "surname": [f"Meyer-{w}" for w in who],
        "note": [f"visit {i}: stable and no new complaints today" for i in range(ROWS)],
        "sbp": rng.integers(100, 180, ROWS).tolist(),
        "dbp": rng.integers(50, 100, ROWS).tolist(),
    }
    columns["surname"][4] = columns["sbp"][6] = ""
    path = written(tmp_path / "t.csv", columns)
    found, findings = described(path)
    assert [c["kind"] for c in found.values()] == ["id", "id", "text", "integer", "integer"]
    assert "names 30 individuals in 60 rows" in findings["MRN", "repeated_ids"]["text"]
    assert not any("Meyer" in json.dumps(c) or "40017" in json.dumps(c) for c in found.values())
    run("pretrain", "table", path, "--out", tmp_path / "m", *FAST)
    assert "Meyer" not in "".join(p.read_text() for p in (tmp_path / "m").iterdir() if p.suffix != ".safetensors")
    code, out, _ = run("impute", tmp_path / "m", path, "--out", tmp_path / "o.csv")
    assert code == 0
    assert "1 cells filled" in out
    assert "1 empty cells of 'surname' stay empty: an identifier is not imputed" in out


def test_codes_as_whole_numbers(run, described, tmp_path):
    rng = np.random.default_rng(4)
    grade = rng.integers(1, 10, 4 * ROWS)
    columns = {"grade": grade.tolist(), "x": np.round(rng.normal(size=4 * ROWS), 2).tolist()}
    columns["grade"][11] = ""
    path = written(tmp_path / "t.csv", columns)
    _, findings = described(path, "--schema-out", tmp_path / "s.toml")
    assert "9 whole numbers 1..9" in findings["grade", "codes"]["text"]
    text = (tmp_path / "s.toml").read_text()
    (tmp_path / "s.toml").write_text(text.replace('kind = "integer"', 'kind = "nominal"'))
    _, out, _ = run("pretrain", "table", path, "--out", tmp_path / "m", "--schema", tmp_path / "s.toml", *FAST)
    assert "codes of categories" not in out
    run("impute", tmp_path / "m", path, "--out", tmp_path / "o.csv")
    assert cells(tmp_path / "o.csv")[12][0] in map(str, range(1, 10))


def test_mixed_dates(run, described, tmp_path):
    rng = np.random.default_rng(5)
    day = [f"{d:02}/{m:02}/2020" for d, m in zip(rng.integers(1, 29, ROWS), rng.integers(1, 13, ROWS), strict=True)]
    columns = {
        "admitted": day,
        "unclear": [f"{v[0]:02}/{v[1]:02}/2021" for v in rng.integers(1, 13, (ROWS, 2))],
        "x": np.round(rng.normal(size=ROWS), 2).tolist(),
    }
    columns["admitted"][7], columns["admitted"][9] = "12/31/2020", "30/02/2020"
    path = written(tmp_path / "t.csv", columns)
    _, findings = described(path)
    assert {c["value"] for c in findings["admitted", "date_mixed"]["cells"]} == {"12/31/2020", "30/02/2020"}
    assert "day or month first" in findings["unclear", "date_unclear"]["text"]
    code, _, err = run("pretrain", "table", path, "--out", tmp_path / "m", *FAST)
    assert code == 2
    for said in (
        "row 9: '12/31/2020'",
        "row 11: '30/02/2020'",
        "day or month first",
        '[columns.unclear] format = "%d/%m/%Y"',
    ):
        assert said in err
    assert not (tmp_path / "m").exists()
    columns["admitted"][7] = columns["admitted"][9] = ""
    path = written(tmp_path / "t.csv", columns)
    (tmp_path / "s.toml").write_text('[columns.unclear]\nkind = "datetime"\nformat = "%m/%d/%Y"\n')
    run("pretrain", "table", path, "--out", tmp_path / "m", "--schema", tmp_path / "s.toml", *FAST)
    run("impute", tmp_path / "m", path, "--out", tmp_path / "o.csv")
    filled = pl.read_csv(tmp_path / "o.csv")["admitted"].str.to_date("%d/%m/%Y")
    assert filled.null_count() == 0


def test_the_schema_written_is_taken_as_it_is(run, described, tmp_path):
    rng = np.random.default_rng(6)
    columns = {
        "pid": range(1000, 1000 + ROWS),
        "age": rng.integers(30, 90, ROWS),
        "K+ (mmol/l)": np.round(rng.normal(4, 1, ROWS), 1),
        "sex": rng.choice(["F", "M"], ROWS),
        "seen": [f"2020-01-{d:02}" for d in rng.integers(1, 29, ROWS)],
        "time": rng.integers(1, 900, ROWS),
        "event": rng.integers(0, 2, ROWS),
        "site": rng.integers(1, 5, ROWS),
    }
    path = written(tmp_path / "t.csv", {k: list(v) for k, v in columns.items()})
    before, _ = described(path, "--schema-out", tmp_path / "s.toml", "--out", tmp_path / "r.html")
    told = tomllib.loads((tmp_path / "s.toml").read_text(encoding="utf-8"))
    assert (told["duration"], told["event"]) == ("time", "event")
    after, findings = described(path, "--schema", tmp_path / "s.toml")
    assert {n: c["kind"] for n, c in after.items()} == {n: c["kind"] for n, c in before.items()}
    assert not any(f["severity"] == "error" for f in findings.values())
    code, _, err = run("pretrain", "table", path, "--out", tmp_path / "m", "--schema", tmp_path / "s.toml", *FAST)
    assert code == 0, err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "K+ (mmol/l)" in page


def test_copies_and_constants(described, tmp_path):
    x = [*range(20), *range(20)]
    path = written(
        tmp_path / "t.csv",
        {"a": [v % 7 + 0.5 for v in x], "b": [v % 7 + 0.5 for v in x], "one": ["same"] * 40, "c": [0.5, *range(39)]},
    )
    _, findings = described(path)
    assert "'b' holds what 'a' holds" in findings["b", "duplicate_column"]["text"]
    assert ("one", "constant") in findings


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--encoding", "cp1253x"], "--encoding cp1253x"),
        (["--decimal", ";"], "--decimal ';'"),
        (["--sheet", "a"], "--sheet a: not read for .csv files"),
        (["--schema-out", "no/s.toml"], "does not exist"),
    ],
)
def test_mistakes_end_with_code_2(run, tmp_path, monkeypatch, flags, says):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "t.csv", {"a": [1.5, 2.5], "b": ["x", "y"]})
    code, _, err = run("describe", path, *flags)
    assert code == 2
    assert says in err
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_a_survival_pair_and_rules_are_described_and_go_into_the_schema(run, tmp_path):
    rng = np.random.default_rng(0)
    stop = rng.integers(20, 90, ROWS)
    table = written(
        tmp_path / "t.csv",
        {
            "start": stop - rng.integers(1, 20, ROWS),
            "stop": stop,
            "end": rng.choice(["lost", "relapse", "death"], ROWS),
            "dbp": rng.integers(50, 80, ROWS),
            "sbp": rng.integers(90, 150, ROWS),
        },
    )
    (tmp_path / "s.toml").write_text('constraints = ["dbp < sbp"]\n')
    levels = ["--event-level", "relapse", "--event-level", "death"]
    code, out, err = run(
        "describe",
        table,
        "--schema",
        tmp_path / "s.toml",
        "--duration",
        "stop",
        "--event",
        "end",
        *levels,
        "--entry",
        "start",
        "--schema-out",
        tmp_path / "o.toml",
    )
    assert code == 0, err
    assert "censored where it is 'lost'; causes are 'relapse', 'death'" in out
    found = tomllib.loads((tmp_path / "o.toml").read_text())
    assert (found["constraints"], found["entry"]) == (["dbp < sbp"], "start")
    code, _, err = run("pretrain", "table", table, "--out", tmp_path / "m", "--schema", tmp_path / "o.toml", *FAST)
    assert code == 0, err
    schema = unmask.load(tmp_path / "m").schema
    assert (schema.entry, schema.causes, schema.constraints) == ("start", ("relapse", "death"), ("dbp < sbp",))


def test_a_table_parted_by_blanks_is_not_taken_for_one_column_without_a_word(described, tmp_path):
    """R's write.table: 'every cell can be read', and a column of free text."""
    table = written(tmp_path / "t.txt", {n: range(40) for n in ("id", "age", "sex")}, delimiter=" ")
    assert (None, "one_column") in described(table)[1]
    assert (None, "one_column") not in described(written(tmp_path / "n.csv", {"free text": range(40)}))[1]
