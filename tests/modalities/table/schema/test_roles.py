"""Columns that name people are left out, and said to be."""

import numpy as np
import pandas as pd
import pytest

from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.infer import infer, infer_schema
from unmask.modalities.table.schema.roles import named_like_person


def inferred(**columns):
    frame = read_frame(pd.DataFrame(columns))
    return infer_schema(frame.names, frame.columns)


@pytest.mark.parametrize(
    "name",
    [
        "MRN",
        "patient_id",
        "PatientID",
        "Patient ID",
        "subject_id",
        "Surname",
        "last name",
        "Nachname",
        "Pat.-Nr.",
        "Record Number",
        "USUBJID",
        "case_no",
        "e-mail",
        "Patientennummer",
        "Studiennummer",
        "Probanden-Kürzel",
        "ProbandenID",
        "id",
        "ID",
    ],
)
def test_names_of_people(name):
    assert named_like_person(name)


@pytest.mark.parametrize(
    "name",
    [
        "age",
        "site_id",
        "hospital_id",
        "drug_name",
        "number of visits",
        "visit",
        "study_site",
        "grade",
        "CaseMix",
        "time",
        "nodes",
        "patients",
    ],
)
def test_names_of_other_things(name):
    assert not named_like_person(name)


def test_two_visits_per_patient():
    """Each record number and surname stands twice: identifiers all the same."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(60), 2)
    surnames = np.array([f"Meyer{i}" for i in range(60)])
    schema = inferred(
        mrn=100_000 + 17 * who,
        surname=surnames[who],
        other=surnames[who],
        site_id=rng.integers(1, 5, 120),
        x=rng.normal(size=120),
    )
    assert {c.name: c.kind for c in schema.columns} == {
        "mrn": "id",
        "surname": "id",
        "other": "id",
        "site_id": "integer",
        "x": "numeric",
    }
    assert [c.name for c in schema.columns if c.modelled] == ["site_id", "x"]
    for name in ("mrn", "surname", "other"):
        assert any(repr(name) in note and "left out" in note for note in schema.notes)


def test_free_text_is_left_out():
    notes = [f"seen on day {i}, no complaints, stable" for i in range(30)]
    schema = inferred(note=notes + notes[:10], x=np.arange(40) % 7 + 0.5)
    assert [c.kind for c in schema.columns] == ["text", "numeric"]
    assert any("'note' is free text" in n for n in schema.notes)


def test_many_levels_with_rows_enough_stay_categories():
    schema = inferred(ward=np.array([f"ward {i}" for i in range(30)])[np.arange(300) % 30])
    assert schema.columns[0].kind == "nominal"


def test_an_id_that_repeats_is_no_quantity():
    """As in survival::colon, bladder and cgd: several rows per patient, numbered 1 to n."""
    who = np.repeat(np.arange(1, 86), 4)
    schema = inferred(id=who, x=np.arange(340) % 7 + 0.5)
    assert [c.kind for c in schema.columns] == ["id", "numeric"]
    assert any("several rows per individual" in n for n in schema.notes)


def test_what_counts_the_rows_does_so_in_any_order_of_them():
    count, x = np.arange(1001, 1241), np.arange(240) % 7 + 0.5
    for order in (np.arange(240), np.random.default_rng(0).permutation(240)):
        assert [c.kind for c in inferred(pat=count[order], x=x[order]).columns] == ["id", "numeric"]
    assert inferred(pat=np.r_[900, count[1:]], x=x).columns[0].kind == "integer"


@pytest.mark.parametrize("index", ["patient_id", ["patient_id", "visit"]])
def test_an_id_that_repeats_in_the_index_is_said(index):
    """In memory a table means what the file of it does, where the patient is a column."""
    table = pd.DataFrame({"x": np.arange(340) % 7 + 0.5, "visit": np.tile(np.arange(4), 85)})
    table["patient_id"] = [f"P{i}" for i in np.repeat(np.arange(85), 4)]
    said = [n for n in infer(read_frame(table.set_index(index)))[0].notes if "several rows per individual" in n]
    assert said
    assert "'patient_id' names 85 individuals in 340 rows" in said[0]
    once = table.drop_duplicates("patient_id").set_index(index)
    appended = pd.concat([table[["x"]], table[["x"]]])  # labels that repeat, but have no name
    for fine in (once, appended, table[["x"]].rename_axis("row").iloc[np.r_[:340, :340]]):
        assert not any("several rows per individual" in n for n in infer(read_frame(fine))[0].notes)


def test_row_names_that_do_not_count_are_identifiers():
    """As R writes a data frame after rows were taken out: a column without a name, 85, 86, 88, 91, ..."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"": np.sort(rng.permutation(900)[:120]), "x": rng.normal(size=120)})
    read = read_frame(frame)
    schema = infer_schema(read.names, read.columns)
    assert [c.kind for c in schema.columns] == ["id", "numeric"]


@pytest.mark.parametrize("name", ["Subject", "patient_id", "ID", "Rat"])
@pytest.mark.parametrize("texts", [False, True])
def test_many_rows_per_patient_are_warned_of(name, texts):
    """As in nlme::Theoph and Phenobarb: 12 subjects in 132 rows, 59 in 744; one row of ten and less begins another."""
    who = np.repeat(np.arange(1, 13), 11)
    schema = inferred(**{name: [f"S{w:02d}" for w in who] if texts else who, "x": np.arange(132) % 7 + 0.5})
    assert [c.kind for c in schema.columns] == ["id", "numeric"]
    assert any("12 individuals in 132 rows" in n for n in schema.notes)


def test_individuals_visit_by_visit_are_warned_of():
    """All first visits, then all second ones, ...: the rows of one do not stand together."""
    schema = inferred(subject=np.tile(np.arange(1, 41), 20), x=np.arange(800) % 7 + 0.5)
    assert [c.kind for c in schema.columns] == ["id", "numeric"]


@pytest.mark.parametrize("name", ["Patientennummer", "Studiennummer", "Proband", "Kürzel", "Code", "x1"])
@pytest.mark.parametrize("texts", [False, True])
def test_repeated_individuals_are_warned_of_whatever_the_column_is_called(name, texts):
    rng = np.random.default_rng(0)
    who = np.repeat(rng.permutation(900)[:60] + 100, rng.integers(2, 6, 60))
    sex, age = rng.integers(0, 2, 1000), rng.integers(40, 80, 1000)
    columns = {name: [f"K{w}" for w in who] if texts else who, "sex": sex[who], "age": age[who]}
    schema = inferred(**columns, lab=rng.normal(size=len(who)).round(3))
    (said,) = [n for n in schema.notes if "one individual" in n]
    assert said.startswith(f"warning: {name!r} ")


def test_sorted_rows_are_not_taken_for_those_of_individuals():
    rng = np.random.default_rng(0)
    age = np.sort(rng.integers(30, 90, 900))
    for other in (rng.integers(0, 2, 900), age // 10, 90 - age // 10, np.arange(900) > 600):
        schema = inferred(age=age, other=other, lab=rng.normal(size=900).round(3))
        assert not any("one individual" in n for n in schema.notes)


def test_what_else_is_called_subject_or_counted():
    rng = np.random.default_rng(0)
    schools = np.array(["art", "biology", "french", "history", "maths", "physics"])
    schema = inferred(
        subject=schools[rng.integers(0, 6, 300)],
        Subject=np.sort(schools[rng.integers(0, 6, 300)]),
        child=rng.integers(0, 7, 300),
        visit=np.tile(np.arange(1, 31), 10),
        patient=rng.integers(0, 2, 300),
        visit_no=np.repeat(np.arange(1, 11), 30),
    )
    assert [c.kind for c in schema.columns] == ["nominal", "nominal", "integer", "integer", "binary", "integer"]
    assert not any("individuals" in n for n in schema.notes)


def test_a_few_cells_of_many_rows_tell_people_apart_too():
    few = np.arange(200)
    found = inferred(
        age=np.tile(np.arange(40.0), 5),
        remark=[f"sister of Dr Meyer, room {k}" if k < 6 else None for k in few],
        word=[f"w{k}" if k < 6 else None for k in few],
        seen_twice=["see the letter of the surgeon" if k < 2 else "fell at home" if k < 4 else None for k in few],
        phone=[5550000.0 + 3 * k if k < 6 else np.nan for k in few],
        grade=[f"g{k % 3}" if k < 6 else None for k in few],
    )
    assert [c.kind for c in found.columns] == ["integer", "text", "id", "text", "id", "nominal"]
    small = inferred(word=["a", "b", None, "c", None, "d"], age=np.arange(6.0))
    assert small.columns[0].kind == "nominal"  # in a table of six rows nobody can tell


def visits(rng):
    """80 patients of four visits, under a name that says nothing."""
    who = np.repeat(np.arange(80), 4)
    return {
        "Kennziffer": (rng.permutation(9000)[:80] + 1000)[who],
        "sex": rng.choice(["F", "M"], 80)[who],
        "born": rng.integers(1930, 2000, 80)[who],
        "sbp": rng.normal(130, 15, 320).round(),
    }


@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_one_individual_are_found_whatever_the_name_and_their_order(shuffled):
    rng = np.random.default_rng(0)
    order = rng.permutation(320) if shuffled else np.arange(320)
    schema = inferred(**{name: x[order] for name, x in visits(rng).items()})
    (text,) = (n for n in schema.notes if "several rows each" in n)
    assert "'Kennziffer' holds 80 values" in text
    assert "'sex', 'born' never change" in text


def test_a_code_with_its_name_and_chapter_is_no_individual():
    rng = np.random.default_rng(0)
    code = np.array([f"{c}{k}" for c in "ABCDEFGHIJ" for k in range(5)])[rng.integers(0, 50, 400)]
    named = np.array([f"name of {c}" for c in code])
    schema = inferred(dx=code, name=named, chapter=np.array([c[0] for c in code]), x=rng.normal(size=400).round(1))
    assert not any("several rows each" in n for n in schema.notes)
