"""What is guessed of a table is a warning with its line, and an outcome that says nothing is refused."""

import numpy as np
import pandas as pd
import pytest

from unmask.errors import UserError
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.imputer import MaskedImputer
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.schema.describe import describe

FAST = {"steps": 0, "members": 2}


@pytest.mark.parametrize("name", ["hospital", "site", "school", "center_id", "Klinik-Nr", "PLZ", "code_hopital"])
@pytest.mark.parametrize("levels", [25, 60, 100])
def test_numbers_of_units_are_never_a_quantity_in_silence(name, levels):
    unit = np.repeat(np.arange(1, levels + 1), 12)
    found = describe(pd.DataFrame({name: unit, "y": np.random.default_rng(0).normal(size=len(unit)).round(2)}))
    assert [f.column for f in found.findings if f.code == "codes"] == [name]


@pytest.mark.parametrize("name", ["days in hospital", "distance_to_hospital", "units"])
def test_quantities_about_units_are_quantities(name):
    found = describe(pd.DataFrame({name: np.repeat(np.arange(2, 52), 12), "y": np.arange(600) / 7}))
    assert not [f for f in found.findings if f.code == "codes"]


def test_a_value_that_one_centre_lacks_is_warned_of_and_imputed_on_request():
    rng = np.random.default_rng(0)
    centre = rng.choice(["A", "B", "C"], 300)
    table = pd.DataFrame(
        {"centre": centre, "age": rng.normal(60, 9, 300).round(), "bnp": rng.normal(9, 2, 300).round(1)}
    )
    table.loc[centre == "C", "bnp"] = np.nan
    (found,) = [f for f in describe(table).findings if f.code == "structural"]
    assert (found.severity, found.column) == ("warning", "bnp")
    assert "[columns.bnp] structural = false" in found.add
    schema = {"columns": {"bnp": {"structural": False}}}
    assert TableModel.fit(table, schema=schema, **FAST).impute(table)["bnp"].notna().all()


@pytest.mark.parametrize("fit", [lambda t: TableModel.fit(t, **FAST), lambda t: MaskedImputer(**FAST).fit(t)])
def test_what_the_command_prints_as_a_warning_is_a_warning_in_python(fit):
    # `facts["notes"]` alone had it.
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"crp": rng.gamma(2, 9, 200).round(1), "age": rng.normal(60, 9, 200).round()})
    table.loc[[5, 9], "crp"] = -9
    with pytest.warns(UserWarning, match=r"'crp' holds -9 \(2 cells\)") as caught:
        fit(table)
    assert len(caught) == 1


@pytest.mark.parametrize("lacking", ["Alive", "Dead"])
def test_follow_up_that_is_empty_by_the_event_is_refused(lacking):
    rng = np.random.default_rng(0)
    status = np.where(rng.random(200) < 0.4, "Dead", "Alive")
    days = np.where(status == lacking, np.nan, rng.exponential(500, 200).round() + 1)
    table = pd.DataFrame({"days": days, "vital_status": status, "x": rng.normal(size=200).round(2)})
    with pytest.raises(UserError, match="'days' is empty in every row that"):
        TableModel.fit(table, duration="days", event="vital_status", **FAST)
    by_name = table.rename(columns={"days": "time"}).assign(event=(status == "Dead") * 1).drop(columns="vital_status")
    found = describe(by_name)
    assert found.schema.duration is None
    assert any("NO survival pair" in f.text for f in found.findings if f.severity == "warning")


def copied(table):
    return [f.text for f in describe(table).findings if f.code == "duplicate_rows"]


@pytest.mark.parametrize("times", [2, 3])
def test_a_file_that_stands_there_several_times_is_said_by_describe_and_by_imputation(times):
    rng = np.random.default_rng(0)
    once = pd.DataFrame({"age": rng.integers(20, 90, 120), "sbp": rng.normal(130, 9, 120), "crp": rng.random(120)})
    once.loc[::9, "sbp"] = np.nan
    table = pd.concat([once] * times, ignore_index=True)
    extra = 120 * (times - 1)
    for data, copies in ((table, extra), (table[1:], extra - 1), (pd.concat([table, once[:5] + 0.123]), extra)):
        (said,) = copied(data)
        assert said.startswith(f"{copies} rows are copies of others")
        assert f"{times} times" in said
    assert copied(once) == []
    with pytest.warns(UserWarning, match="rows are copies of others"):
        MultipleImputation(2, rounds=1).fit(table)


def test_a_few_copies_are_a_warning_of_describe_and_a_note_of_a_fit():
    rng = np.random.default_rng(0)
    once = pd.DataFrame(rng.normal(size=(60, 3)).round(3), columns=list("abc"))
    table = pd.concat([once, once[:10]], ignore_index=True)
    (found,) = [f for f in describe(table).findings if f.code == "duplicate_rows"]
    assert (found.severity, found.text) == ("warning", "10 rows are copies of others, in every column")
    table.loc[30:35, "a"] = np.nan
    assert found.text in MultipleImputation(2, rounds=1).fit(table).notes_


def test_rows_of_a_few_categories_repeat_of_themselves():
    rng = np.random.default_rng(0)
    assert copied(pd.DataFrame({c: rng.choice(list("abcd"), 400) for c in "xyz"})) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Z\u00fcrich", "Zu\u0308rich"),
        ("Crohn's", "Crohn\u2019s"),
        ("type-1", "type\u20131"),
        ("ax", "a\u200bx"),
        ("B", "\uff22"),
    ],
)
def test_spellings_that_look_alike_are_warned_of(a, b):
    table = pd.DataFrame({"c": [a, b, "other"] * 20, "y": np.arange(60) / 7})
    (said,) = [f.text for f in describe(table).findings if f.code == "spelt_alike"]
    assert "(20 cells) and " in said
    assert (
        len(set(said.split(": ")[1].split(". ")[0].replace(" (20 cells)", "").replace(" (20)", "").split(" and "))) == 2
    )


def test_a_file_without_a_line_of_names_is_warned_of():
    rng = np.random.default_rng(0)
    rows = [[rng.integers(20, 90), round(rng.normal(130, 9), 1), rng.choice(["ctl", "trt"])] for _ in range(120)]
    rows[0] = [50, 130.5, "ctl"]

    def said(names, rows):
        return [f.code for f in describe(pd.DataFrame(rows, columns=names)).findings if f.code == "no_header"]

    assert said([str(v) for v in rows[0]], rows[1:]) == ["no_header"]
    assert said(["age", "130.5", "ctl"], rows[1:]) == []
    assert said(["2019", "2020"], rng.normal(size=(50, 2)).round(3)) == []
    assert said([0, 1], rng.normal(size=(50, 2)).round(3)) == []
    with pytest.warns(UserWarning, match="first line looks like a row"):
        TableModel.fit(pd.DataFrame(rows[1:], columns=[str(v) for v in rows[0]]), **FAST)


@pytest.mark.parametrize(("first", "second", "between"), [(110, 70, "/"), (30, 0, "+"), (110, 70, " / ")])
def test_two_numbers_in_one_cell_are_warned_of(first, second, between):
    """Blood pressures and weeks of a pregnancy became levels without a word; bands of ages are some."""
    pairs = [f"{first + k % 40}{between}{second + k % 7}" for k in range(300)]
    bands = [f"{5 * (k % 18)}-{5 * (k % 18) + 4}" for k in range(300)]
    found = describe(pd.DataFrame({"bp": pairs, "band": bands, "y": np.arange(300) / 7}))
    assert [f.column for f in found.findings if f.code == "two_numbers"] == ["bp"]


def test_quantities_among_words_are_warned_of_and_names_are_not():
    """Ages in years and months were left out as identifiers."""
    k = np.arange(300)
    texts = {
        "age": [f"{30 + i % 60} years" if i % 5 else f"{1 + i % 11} months" for i in k],
        "short": [f"{30 + i % 60}y" if i % 5 else f"{1 + i % 11}m" for i in k],
        "weight": [f"~{40 + i / 4:.2f}" if i % 3 else f"{40 + i / 4:.2f} kg" for i in k],
        "crp": [f"{i / 4:.2f} (0.1-5)" for i in k],
        "site": [f"{1000 + i} {'LON' if i % 3 else 'PAR'}" for i in k],
        "icd": [f"I{10 + i % 80}.{i % 9}" for i in k],
        "room": [f"{i}{'AB'[i % 2]}" for i in k],
        "band": [f"{5 * (i % 18)} to {5 * (i % 18) + 4}" for i in k],
        "y": k / 7,
    }
    found = describe(pd.DataFrame(texts))
    assert [f.column for f in found.findings if f.code == "quantities_among_words"] == [*texts][:4]


def test_a_row_of_means_or_sums_below_a_sheet_is_said():
    """It counted as a patient."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({c: rng.normal(m, 5, 80).round(d) for c, m, d in (("age", 60, 0), ("hb", 13, 1), ("k", 4, 2))})

    def said(last):
        whole = pd.concat([table, pd.DataFrame([last])], ignore_index=True)
        return [f.text for f in describe(whole).findings if "summary" in f.code]

    for name, last in (("mean", table.mean()), ("mean", table.mean().round(1)), ("sum", table.sum())):
        assert said(last.to_dict()) == [
            f"row 80, the last, holds the {name} of the others in all 3 columns of numbers."
        ]
    assert said(table.mean().round(1).to_dict() | {"hb": 12.0}) == []
    assert said(table.iloc[3].to_dict()) == []


def test_footnotes_and_statistics_below_a_table_are_said():
    """A footnote in the column of ids, and rows of medians, counts and the like, counted as patients."""
    rng = np.random.default_rng(0)
    whole = {
        "id": [f"UKE-{i:04d}" for i in range(80)],
        "sex": rng.choice(["f", "m"], 80),
        "arm": rng.choice([*"ab"], 80),
    }
    table = pd.DataFrame(whole | {c: rng.normal(60, 9, 80).round(1) for c in ("age", "bmi")})

    def said(*last):
        found = describe(pd.concat([table, pd.DataFrame([*last])], ignore_index=True)).findings
        return [f.text.partition(": the")[0] for f in found if f.code == "below_table"]

    for text in ("* CRP at admission", "n=300", "Source: registry"):
        assert said({"id": text}) == [f"row 80 ('id': {text!r})"]
    for text in ("Mean", "SD", "Median", "Max", "N", "missing %"):
        assert said({"id": text, "age": 61.5, "bmi": 60}) == [f"row 80 ('id': {text!r})"]
    assert said({"id": "Mean", "age": 61, "bmi": 60}, {"id": "SD", "age": 9, "bmi": 9}, {}, {"id": "n=80"}) == [
        "row 80 ('id': 'Mean'), row 81 ('id': 'SD'), row 83 ('id': 'n=80')"
    ]
    for patient in ({"id": "UKE-0301"}, {"id": "B1"}, {"id": "UKE-0301", "age": 60.0}, {"age": 60.0, "bmi": 59.0}):
        assert said(patient) == []
    assert said({"id": "Mean", "sex": "a", "age": 60.0}) == []
    table = table.drop(columns="id").replace({"arm": {"a": "arm a", "b": "arm b"}})
    tail = {"sex": "Mean", "age": 61, "bmi": 60}, {"sex": "SD", "age": 9, "bmi": 9}, {"arm": "note: bmi in kg"}
    assert said(*tail) == ["row 80 ('sex': 'Mean'), row 81 ('sex': 'SD'), row 82 ('arm': 'note: bmi in kg')"]
    for patient in ({"sex": "f", "age": 61.5}, {"arm": "arm c"}, {"sex": "n", "age": 60.0}, {"arm": "arm a"}):
        assert said(patient) == []


def test_what_a_column_was_said_to_be_is_shown_and_kept_in_the_next_command(tmp_path):
    """The next command made a schema that knew nothing of the outcome."""
    table = pd.DataFrame(
        {"days": np.arange(40) ** 2 % 41, "dead": np.arange(40) % 2, "age": 90 - np.arange(40) ** 2 % 43}
    )
    found = describe(table, duration="days", event="dead")
    ends = {line.split()[0]: line.rpartition("[")[2] for line in found.lines()[1:4]}
    assert ends == {"days": "whole numbers, follow-up time]", "dead": "two values, event]", "age": "whole numbers]"}
    assert found.to_frame().set_index("column")["why"]["dead"] == "two values, event"
    assert "--schema-out s.toml --duration days --event dead" in found.write_report(tmp_path / "d.html").read_text()
