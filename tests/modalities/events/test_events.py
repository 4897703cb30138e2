"""From a MEDS folder to a scored prediction, and what must not get through."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import DAY, labels, main_ok, shard, table

from unmask.errors import UserError
from unmask.modalities.events.outcome.features import summarise
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import NO_VISIT, STATIC, Labels, read_meds
from unmask.modalities.events.records.shards import write_meds
from unmask.modalities.events.records.vocabulary import FIRST, Vocabulary, shortened
from unmask.modalities.events.uses.demo import simulate


def test_reads_what_it_writes(tmp_path: Path):
    rows = [(7, DAY, "Ü β", 1.5), (3, None, "SEX//F", None), (3, DAY, "a b", None)]
    events = read_meds(write_meds(table(rows), tmp_path / "m", name="x"))
    assert events.subjects.tolist() == [3, 7]
    assert [events.codes[c] for c in events.code] == ["SEX//F", "a b", "Ü β"]
    assert events.time[0] == STATIC
    assert events.value[2] == 1.5


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, DAY, "a", None), (1, DAY - timedelta(1), "a", None)], "goes backwards"),
        ([(1, DAY, "a", None), (2, DAY, "a", None), (1, DAY, "a", None)], "comes again"),
        ([(1, DAY, None, None)], "code is null"),
        ([], "no events"),
    ],
)
def test_bad_folders_are_named(tmp_path: Path, rows: list, says: str):
    with pytest.raises(UserError, match=says):
        read_meds(shard(tmp_path, table(rows)))


def test_two_shards_and_wrong_types(tmp_path: Path):
    frame = table([(1, DAY, "a", None)])
    shard(shard(tmp_path / "two", frame), frame, "1")
    with pytest.raises(UserError, match="also stands in"):
        read_meds(tmp_path / "two")
    with pytest.raises(UserError, match="column 'time' is of type String"):
        read_meds(shard(tmp_path / "typed", frame.with_columns(pl.lit("x").alias("time"))))
    large = frame.with_columns(pl.lit(2**63 + 1, pl.UInt64).alias("subject_id"))
    with pytest.raises(UserError, match=f"row 0: subject_id is {2**63 + 1}"):
        read_meds(shard(tmp_path / "large", large))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(9, DAY, True)], "none of the 1 labels is of a subject in the data, such as 9"),
        ([(1, DAY, True)] * 2, "given twice"),
        ([(1, None, True)], "prediction_time is null"),
        ([(1, DAY, True), (1, DAY + timedelta(1), None)], "row 1: boolean_value is null"),
        ([], "no labels"),
    ],
)
def test_bad_labels_are_named(tmp_path: Path, rows: list, says: str):
    events = read_meds(shard(tmp_path, table([(1, DAY, "a", None)])))
    with pytest.raises(UserError, match=says):
        read_labels(labels(tmp_path / "task", rows), events)


@pytest.mark.parametrize("blank", ["", "  ", None])
def test_a_blank_class_is_no_class(tmp_path: Path, blank: str | None):
    events = read_meds(shard(tmp_path, table([(1, DAY, "a", None)])))
    given = pl.DataFrame({"subject_id": [1, 1], "prediction_time": [DAY, DAY + timedelta(1)]})
    given = given.with_columns(categorical_value=pl.Series([" home ", blank]))
    with pytest.raises(UserError, match="row 1: categorical_value is null or blank"):
        read_labels(given, events)
    assert read_labels(given, events, need_value=False).null["names"].tolist() == [False, True]
    assert read_labels(given.head(1), events).names == ["home"]


def test_nothing_after_the_prediction_time_arrives(tmp_path: Path):
    past = [(1, None, "SEX//F", None), (1, DAY, "a", 1.0), (1, DAY, "b", 2.0)]
    planted = [(1, DAY + timedelta(microseconds=1), "a", 99.0), (1, DAY + timedelta(3), "b", 99.0)]
    fit = read_meds(shard(tmp_path / "fit", table([*past, *planted])))
    vocabulary = Vocabulary.fit(fit, floor=1)
    seen = []
    for number, rows in enumerate((past, [*past, *planted])):
        events = read_meds(shard(tmp_path / str(number), table(rows)))
        point = read_labels(labels(tmp_path / f"task{number}", [(1, DAY, True)]), events)
        histories = Histories(events, vocabulary)
        example = histories.example(0, slots=16, prediction_time=int(point.time[0]))
        seen.append((example, summarise(histories, point)[0]))
    assert len(seen[0][0]) == len(seen[1][0]) == 4  # the first slot, the static event, two at the very moment
    for name, array in seen[0][0].values.items():
        np.testing.assert_array_equal(array, seen[1][0].values[name])
    np.testing.assert_array_equal(seen[0][1], seen[1][1])


def test_before_the_first_event_only_static_ones_are_known(tmp_path: Path):
    events = read_meds(shard(tmp_path, table([(1, None, "SEX//F", None), (1, DAY, "a", 1.0)])))
    histories = Histories(events, Vocabulary.fit(events, floor=1))
    assert len(histories.example(0, slots=8, prediction_time=0)) == 2


def test_summaries_agree_with_arithmetic(tmp_path: Path):
    rows = [(1, DAY + timedelta(hours=h), "a", v) for h, v in ((0, 3.0), (20, 1.0), (22, 2.0))]
    events = read_meds(shard(tmp_path, table([*rows, (2, DAY, "b", None)])))
    histories = Histories(events, Vocabulary.fit(events, floor=1))
    micro = int(events.time[2])
    x, names = summarise(histories, Labels(subject=np.array([0]), time=np.array([micro]), value=None))
    score = histories.score[:3].astype(np.float64)
    want = {
        "count": np.log1p(3),
        "last": score[2],
        "min": score.min(),
        "max": score.max(),
        "mean": score.mean(),
        "first": score[0],
        "deviation": score.std(),
        "recent": score[1:].mean(),
        "since": 0.0,
    }
    for kind, value in want.items():
        assert x[0, names.index(f"a|{kind}")] == pytest.approx(value, abs=1e-6), kind
    assert x[0, names.index("b|count")] == 0
    assert np.isnan(x[0, names.index("b|last")])


def test_long_histories_keep_static_and_latest(tmp_path: Path):
    rows = [(1, None, "SEX//F", None)] + [(1, DAY + timedelta(i), f"c{i}", None) for i in range(10)]
    events = read_meds(shard(tmp_path, table(rows)))
    vocabulary = Vocabulary.fit(events, floor=1)
    example = Histories(events, vocabulary).example(0, slots=5)
    names = [vocabulary.codes[c - FIRST] for c in example.values["code"][1:]]
    assert names == ["SEX//F", "c7", "c8", "c9"]


def test_command_line_from_folder_to_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    meds, task = simulate(tmp_path, patients=200), tmp_path / "task"
    small = [
        "--set",
        "slots=64",
        "--set",
        "batch_slots=512",
        "--set",
        "width=32",
        "--steps",
        "4",
        "--precision",
        "fp32",
    ]
    first, second, out = (str(tmp_path / n) for n in ("m", "m2", "p.parquet"))
    main_ok(["pretrain", "events", str(meds), "--out", first, *small])
    finetune = ["finetune", "outcome", first, str(meds), "--labels", str(task), "--out", second]
    main_ok([*finetune, "--set", "epochs=15", "--json"])
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert set(result["results"]) == {
        "ours",
        "prevalence",
        "age and number of events",
        "last values",
        "logistic regression",
        "gradient boosting",
        "networks alone",
        "trees alone",
        "boosting alone",
    }
    main_ok(["predict", second, str(meds), "--labels", str(task), "--out", out])
    frame = pl.read_parquet(out)
    assert frame.columns == [
        "subject_id",
        "prediction_time",
        "boolean_value",
        "predicted_boolean_probability",
        "split",
    ]
    want = pl.read_parquet(task / "0.parquet")
    assert frame.drop("predicted_boolean_probability", "split").equals(want)
    p = frame["predicted_boolean_probability"].to_numpy()
    assert ((p > 0) & (p < 1)).all()
    y = frame["boolean_value"].to_numpy()
    assert (p[y][:, None] > p[~y]).mean() > 0.7
    for name in ("config.json", "model.safetensors", "metrics.jsonl", "report.html", "unmask.json"):
        assert (Path(first) / name).exists()
        assert (Path(second) / name).exists()
    main_ok(["embed", second, str(meds), "--out", str(tmp_path / "v.npy")])
    assert np.load(tmp_path / "v.npy").shape == (200, 64)


def test_codes_roll_up(tmp_path: Path):
    codes = ["ICD//E11.9", "ICD//E11.2", "ICD//I10", "ICD//I10"]
    events = read_meds(shard(tmp_path, table([(1, DAY + timedelta(i), c, None) for i, c in enumerate(codes)])))
    short = Vocabulary.fit(events, floor=2, rollup="characters:3")
    assert short.codes == ["ICD//E11", "ICD//I10"]
    assert (short.numbers(["ICD//E11.7", "ICD//X"]) == [FIRST, 1]).all()
    assert Vocabulary.fit(events, floor=2, rollup="parts:1").codes == ["ICD"]
    assert Vocabulary.from_dict(json.loads(json.dumps(short.to_dict()))).rollup == "characters:3"
    ages = ["MEDS_BIRTH", "MEDS_DEATH", "MEDS//X"]
    assert [shortened(ages, rule)[:2] for rule in ("characters:3", "parts:1")] == [ages[:2]] * 2
    with pytest.raises(UserError, match="rollup=three"):
        Vocabulary.fit(events, floor=1, rollup="three")
    with pytest.raises(UserError, match="no parents"):
        Vocabulary.fit(events, floor=1, rollup="parents")


def test_rare_codes_stand_for_their_parents(tmp_path: Path):
    rows = [(1, DAY + timedelta(i), c, 1.0 * i) for i, c in enumerate(["a1", "a2", "b", "b"])]
    (tmp_path / "metadata").mkdir()
    known = {"code": ["a1", "a2", "a", "new"], "parent_codes": [["a"], ["a"], ["top"], ["a1"]]}
    pl.DataFrame(known).write_parquet(tmp_path / "metadata" / "codes.parquet")
    events = read_meds(shard(tmp_path, table(rows)))
    vocabulary = Vocabulary.fit(events, floor=2, rollup="parents")
    assert vocabulary.codes == ["a", "b"]
    assert vocabulary.numbers(["a2", "new", "b", "other"]).tolist() == [FIRST, FIRST, FIRST + 1, 1]
    assert vocabulary.knots[FIRST, [0, -1]].round(2).tolist() == [0, 1]  # the values of both children


def test_encounters_and_splits_are_read(tmp_path: Path):
    for n, name in enumerate(("visit_id", "hadm_id")):
        column = pl.Series(name, [7, None, 8] if n == 0 else ["a", None, "b"])
        shard(
            tmp_path / name, table([(1, None, "X", None), (1, DAY, "A", 1.0), (2, DAY, "A", 2.0)]).with_columns(column)
        )
        (tmp_path / name / "metadata").mkdir()
        splits = pl.DataFrame({"subject_id": [2, 9], "split": ["held_out", "train"]})
        splits.write_parquet(tmp_path / name / "metadata" / "subject_splits.parquet")
        events = read_meds(tmp_path / name)
        assert events.visit[1] == NO_VISIT != events.visit[0] != events.visit[2] != NO_VISIT
        assert n or events.visit.tolist() == [7, -1, 8]
        assert events.splits.tolist() == ["", "held_out"]
        assert events.held_out.tolist() == [False, True]
    pl.DataFrame({"subject_id": [2, 2], "split": ["held_out", "train"]}).write_parquet(
        tmp_path / "visit_id" / "metadata" / "subject_splits.parquet"
    )
    with pytest.raises(UserError, match="subject 2 is in two splits"):
        read_meds(tmp_path / "visit_id")


@pytest.mark.parametrize(
    ("subjects", "names", "said"),
    [
        ([1, 2], ["train", "Held_Out"], "1 subjects, such as 2, are in splits called 'Held_Out'"),
        ([1, 2], ["test", "held_out "], "2 subjects, such as .* called 'held_out ', 'test'"),
        ([1, 2], ["train", None], "1 subjects, such as 2, are in splits called ''"),
        ([1001, 1002], ["train", "held_out"], "none of its 2 subjects is in the data, such as 100"),
    ],
)
def test_splits_that_would_hold_out_nobody_are_refused(tmp_path: Path, subjects, names, said):
    """Their patients were trained on, without a word."""
    shard(tmp_path, table([(1, DAY, "A", 1.0), (2, DAY, "A", 2.0)]))
    (tmp_path / "metadata").mkdir()
    frame = pl.DataFrame({"subject_id": subjects, "split": names})
    frame.write_parquet(tmp_path / "metadata" / "subject_splits.parquet")
    with pytest.raises(UserError, match=said):
        read_meds(tmp_path)
    (tmp_path / "metadata" / "subject_splits.parquet").unlink()
    frame.write_csv(tmp_path / "metadata" / "subject_splits.csv")
    with pytest.raises(UserError, match=r"subject_splits\.csv: splits are read of a parquet file"):
        read_meds(tmp_path)


@pytest.mark.parametrize("names", [("train", "tuning", "held_out"), ("train/0", "tuning/0", "held_out/0")])
def test_without_the_file_the_folders_of_the_shards_are_the_splits(tmp_path: Path, names: tuple[str, ...]):
    for subject, name in enumerate(names):
        path = tmp_path / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table([(subject, DAY, "A", 1.0)]).write_parquet(path)
    events = read_meds(tmp_path)
    assert dict(zip(events.subjects.tolist(), events.splits.tolist(), strict=True)) == {
        0: "train",
        1: "tuning",
        2: "held_out",
    }
    assert events.subjects[events.held_out].tolist() == [2]
    shard(tmp_path / "data" / "test", table([(3, DAY, "A", 1.0)]))
    with pytest.raises(UserError, match=r"test.*0\.parquet: not in a split"):
        read_meds(tmp_path)
    (tmp_path / "metadata").mkdir(exist_ok=True)  # the file rules
    pl.DataFrame({"subject_id": [0], "split": ["held_out"]}).write_parquet(
        tmp_path / "metadata" / "subject_splits.parquet"
    )
    events = read_meds(tmp_path)
    assert events.subjects[events.held_out].tolist() == [0]


def test_labels_that_are_numbers_keep_their_digits(tmp_path: Path):
    events = read_meds(shard(tmp_path, table([(1, DAY, "A", None)])))
    (tmp_path / "task").mkdir()
    frame = pl.DataFrame({"subject_id": [1], "prediction_time": [DAY], "float_value": [123456789.0]})
    frame.write_parquet(tmp_path / "task" / "0.parquet")
    assert read_labels(tmp_path / "task", events).number.tolist() == [123456789.0]


def test_encounters_may_be_floats_that_are_whole(tmp_path: Path):
    frame = table([(1, DAY, "A", 1.0), (1, DAY, "B", 2.0), (2, DAY, "A", 2.0)])
    events = read_meds(shard(tmp_path, frame.with_columns(pl.Series("hadm_id", [31251999.0, None, float("nan")]))))
    assert events.visit.tolist() == [31251999, NO_VISIT, NO_VISIT]
    for bad in (7.5, 2.0**53, float("inf")):
        shard(tmp_path, frame.with_columns(pl.Series("hadm_id", [7.0, bad, None])))
        with pytest.raises(UserError, match=r"0\.parquet: row 1: hadm_id is .*, a float that is no exact id"):
            read_meds(tmp_path)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), 1e200])
def test_values_that_are_infinite_or_overflow_are_refused_by_cell(tmp_path: Path, bad: float):
    frame = table([(1, DAY, "A", 1.0), (1, DAY, "B", None), (2, DAY, "A", 2.0), (3, DAY, "A", 2.0)])
    values = pl.Series("numeric_value", [float("nan"), None, bad, -bad], dtype=pl.Float64)
    with pytest.raises(UserError, match=re.escape(f"numeric_value: {bad} in row 2, {-bad} in row 3: infinite")):
        read_meds(shard(tmp_path, frame.with_columns(values)))
