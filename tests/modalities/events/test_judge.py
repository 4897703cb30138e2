"""New patients beside real ones: real ones are judged as the ceiling, shuffled ones as the floor, copies are found."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from unmask.errors import UserError
from unmask.events import compare
from unmask.modalities.events.records.shards import write_meds
from unmask.modalities.events.synthesis.judge import SyntheticPatients

DAY = 24 * 3_600_000_000
FIGURES = ("prevalence_error", "correlation_gap", "gap_distance", "events_distance", "value_distance")


def hospital(patients: int, seed: int) -> pl.DataFrame:
    """Half are ill: codes A to D come together with them, E to H with the others, days or weeks apart."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(patients):
        ill, time = rng.random() < 0.5, int(rng.integers(20_000, 21_000)) * DAY
        for _ in range(int(rng.integers(3, 12))):
            codes = [c for c in ("ABCD" if ill else "EFGH") if rng.random() < 0.5] or ["ILL" if ill else "WELL"]
            rows += [(i, time, c, float(rng.normal(5 if ill else 8))) for c in codes]
            time += int(rng.integers(1, 4) if ill else rng.integers(14, 40)) * DAY
    schema = {"subject_id": pl.Int64, "time": pl.Int64, "code": pl.String, "numeric_value": pl.Float32}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("time").cast(pl.Datetime("us")))


@pytest.fixture(scope="module")
def real():
    return hospital(300, 0)


@pytest.fixture(scope="module")
def others():
    return hospital(300, 1)


def test_real_patients_are_as_good_as_the_ceiling(real, others):
    found = compare(hospital(300, 2), real, held_out=others)
    for name in FIGURES:
        assert found[name] < found["ceiling"][name] + 0.06, name
    assert found["floor"]["correlation_gap"] > 5 * found["ceiling"]["correlation_gap"]
    assert 0.4 < found["nearer_training"] < 0.6
    assert "share nearer to learnt" in str(found)
    assert max(map(len, str(found).splitlines())) <= 100
    assert "Off" not in str(found)
    assert "Nearer" not in str(found)
    assert "what it is" in found.to_frame().columns


def test_shuffled_patients_are_as_bad_as_the_floor(real, others):
    rng = np.random.default_rng(3)
    codes = [
        part.with_columns(pl.col("subject_id").replace(dict(enumerate(rng.permutation(300).tolist()))))
        for _, part in real.group_by("code", maintain_order=True)
    ]
    found = compare(pl.concat(codes).sort("subject_id", "time"), real, held_out=others)
    assert found["correlation_gap"] == pytest.approx(found["floor"]["correlation_gap"], rel=0.2)
    assert found["prevalence_error"] == pytest.approx(found["ceiling"]["prevalence_error"])


def test_wrong_times_and_values_are_seen(real, others):
    slower = hospital(300, 2).with_columns(
        pl.col("numeric_value") + 3, (pl.col("time").cast(pl.Int64) * 2).cast(pl.Datetime("us"))
    )
    found = compare(slower, real, held_out=others)
    assert found["gap_distance"] > 0.3
    assert "Off: distance of values" in str(found)
    assert found["value_distance"] == pytest.approx(3, abs=0.5)


def test_copies_are_found(real, others):
    found = compare(real, real, held_out=others)
    assert found["nearer_training"] > 0.75
    assert "Off: nearest learnt patient, share nearer to learnt" in str(found)
    assert found["nearest_training"] < 1e-5 < found["ceiling"]["nearest_training"]


def test_without_others_nothing_is_said_of_copies(real):
    found = compare(real, real)
    assert "nearer_training" not in found
    assert "nobody was held out" in found["note"]


def test_patients_held_out_are_not_those_learnt_from(real, others):
    with pytest.raises(UserError, match="300 of 300 held-out patients are among the real ones"):
        compare(others, real, held_out=real)
    with pytest.raises(UserError, match="5 new patients"):
        compare(hospital(5, 0), real, held_out=others)


@pytest.mark.parametrize(("patients", "words"), [(2000, "nearer than by chance"), (200, "no nearer")])
def test_what_is_nearer_than_by_chance_depends_on_how_many_are_compared(patients: int, words: str):
    found = SyntheticPatients(rows=patients, real=patients, nearer_training=0.539, ceiling={}, floor={})
    assert words in str(found.shown().rows[0])


def test_patients_drawn_under_a_condition_are_compared_with_those_who_meet_it(real, others, tmp_path):
    ill = pl.col("code").is_in(["A", "B", "ILL"]).any().over("subject_id")
    drawn = hospital(300, 2).filter(ill)
    about = {"conditions": {"any of A, b, sickness": ["A", "B", "ILL"]}}
    words = {"ILL": "Sickness, unspecified"}
    folder = write_meds(drawn, tmp_path / "new", name="synthetic", codes=words, about=about)
    assert compare(drawn, real, held_out=others)["prevalence_error"] > 0.2
    found = compare(folder, real, held_out=others)
    assert found["prevalence_error"] < 0.06
    met = [frame.filter(ill)["subject_id"].n_unique() for frame in (real, others)]
    assert (found["real"], found["met"], found["among"]) == (met[1], sum(met), 600)
    assert f"drawn under 'any of A, b, sickness': compared with the {sum(met)} real patients of 600 who" in str(found)
    write_meds(drawn, tmp_path / "rare", name="synthetic", about={"conditions": {"A > 9": ["A"]}})
    with pytest.raises(UserError, match=r"real patients who meet 'A > 9', under which the new ones were drawn"):
        compare(tmp_path / "rare", real, held_out=others)


def test_conditions_on_age_are_of_the_years_at_the_last_event(real, others, tmp_path):
    """Patients without a birth meet none."""

    def born(frame: pl.DataFrame) -> pl.DataFrame:
        first = frame.group_by("subject_id").agg(pl.col("time").min())
        years = pl.when(pl.col("subject_id") % 3 == 0).then(pl.lit("-80y")).otherwise(pl.lit("-40y"))
        births = first.filter(pl.col("subject_id") % 3 < 2).with_columns(
            pl.col("time").dt.offset_by(years), code=pl.lit("MEDS_BIRTH"), numeric_value=pl.lit(None, pl.Float32)
        )
        return pl.concat([births.select(frame.columns), frame]).sort("subject_id", "time", maintain_order=True)

    drawn = born(hospital(300, 2)).filter(pl.col("subject_id") % 3 == 0)
    folder = write_meds(drawn, tmp_path / "new", name="synthetic", about={"conditions": {"age > 70": ["age"]}})
    assert compare(folder, born(real), held_out=born(others))["met"] == 200
