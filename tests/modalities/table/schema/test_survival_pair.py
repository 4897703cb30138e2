"""Follow-up and event as clinics write them: understood where certain and said, else refused with the way to say it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from unmask.cli import main
from unmask.errors import UserError
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.schema.infer import infer_schema
from unmask.modalities.table.schema.survival_pair import event_levels


def cohort(levels=(0, 1), rows=120, seed=0, **more):
    rng = np.random.default_rng(seed)
    age = rng.integers(40, 80, rows)
    time = np.ceil(rng.exponential(np.exp(-(age - 60) / 20)) * 30) + 1
    event = np.array(levels, dtype=object)[rng.integers(0, len(levels), rows)]
    return pd.DataFrame({"age": age, "time": time, "status": event} | more)


@pytest.mark.parametrize(
    ("seen", "levels"),
    [
        (["0", "1"], ("0", "1")),
        (["1"], ("0", "1")),
        (["False", "True"], ("False", "True")),
        (["FALSE", "TRUE"], ("FALSE", "TRUE")),
        (["TRUE"], ("FALSE", "TRUE")),
        (["Yes"], ("No", "Yes")),
        (["yes", "no"], ("no", "yes")),
        (["J", "N"], ("N", "J")),
        (["1", "2"], ("1", "2")),
        (["dead", "alive"], ("alive", "dead")),
        (["Deceased", "Living"], ("Living", "Deceased")),
        (["0", "1", "2"], ("0", "1", "2")),
        (["0", "2"], ("0", "2")),
        (["relapse", "censored", "death"], ("censored", "relapse", "death")),
    ],
)
def test_certain_codings(seen, levels):
    found, said = event_levels(seen)
    assert found == levels
    assert bool(said) == (levels not in (("0", "1"), ("False", "True"), ("FALSE", "TRUE")))
    assert all(v in said for v in levels if said)


@pytest.mark.parametrize(
    "seen",
    [["2"], ["1", "2", "3"], ["alive", "lost", "dead"], ["a", "b"], ["-1", "0", "1"], ["0", "0.5"], ["yes", "maybe"]],
)
def test_what_is_not_certain_is_refused_with_the_way_to_say_it(seen):
    with pytest.raises(UserError, match=r"which of them is the event[\s\S]*event_level="):
        event_levels(seen)


def test_declared_levels():
    assert event_levels(["gone", "here"], ["gone"])[0] == ("here", "gone")
    assert event_levels(["c", "b", "a"], ["b", "a"])[0] == ("c", "b", "a")
    assert event_levels(["2"], ["2"])[0] == ("1", "2")
    with pytest.raises(UserError, match="would all be censored"):
        event_levels(["alive", "lost", "dead"], ["dead"])
    with pytest.raises(UserError, match=r"no level 'ded'[\s\S]*'dead'"):
        event_levels(["alive", "dead"], ["ded"])
    with pytest.raises(UserError, match="spelled in several ways"):
        event_levels(["Yes", "yes", "no"])


@pytest.mark.parametrize("levels", [("no", "yes"), (1, 2), (False, True), ("alive", "dead"), ("0", "1"), (0, 1, 2)])
@pytest.mark.parametrize("route", ["pandas", "csv"])
def test_values_come_back_in_the_files_spelling(tmp_path, levels, route):
    frame = cohort(levels)
    frame.loc[:9, "status"] = None
    data = frame
    if route == "csv":
        data = tmp_path / "t.csv"
        frame.to_csv(data, index=False)
    model = TableModel.fit(data, duration="time", event="status", steps=0)
    known = {str(v) for v in levels}
    assert next(c for c in model.schema.columns if c.name == "status").categories == tuple(str(v) for v in levels)
    made = model.synthesize(60, seed=1)
    done = model.impute(data)
    for table in (made, done):
        found = {str(v) for v in pd.Series(list(table["status"]))}
        assert found <= known | {str(float(v)) for v in levels if isinstance(v, int)}, found
        assert len(found) > 1
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").schema == model.schema
    said = " ".join(model.facts["notes"])
    assert ("is censored where" in said) == (tuple(map(str, levels)) not in (("0", "1"), ("False", "True")))


def infer(frame, **options):
    return infer_schema(list(frame), [frame[c].to_numpy() for c in frame], **options)


def test_all_bad_times_are_named_at_once():
    frame = cohort().assign(time=lambda d: d["time"].where(~d.index.isin([3, 7, 50]), -2))
    with pytest.raises(UserError, match=r"row 4: -2.0 as a duration; row 8: -2.0 as a duration; row 51"):
        infer(frame, duration="time", event="status")


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (cohort(("no", "yes")), "'status' is coded 'no', 'yes'"),
        (cohort((0, 1, 2)), "'status' is coded '0', '1', '2'"),
        (cohort((1, 2)), "'status' is coded '1', '2'"),
        (cohort().assign(time=lambda d: d["time"] - 3), "follow-up times in 'time' are negative"),
        (cohort().assign(time="2020-01-01"), "'time' holds dates"),
        (
            cohort(("censored", "death", "relapse")).rename(columns={"status": "outcome"}),
            "'outcome' is coded 'censored'",
        ),
        (cohort().rename(columns={"time": "survival_months", "status": "os_event"}), "the names are not certain"),
        (cohort().rename(columns={"time": "days"}), "the names are not certain"),
        (cohort().rename(columns={"time": "fu_years"}), "the names are not certain"),
    ],
)
def test_no_pair_is_never_silent(frame, why):
    found = infer(frame)
    assert found.duration is None
    notes = [n for n in found.notes if "NO survival pair is taken" in n]
    assert len(notes) == 1
    assert why in notes[0]
    assert "duration=" in notes[0]


def test_a_plain_pair_is_taken_and_columns_of_other_things_are_not_spoken_of():
    assert infer(cohort()).duration == "time"
    assert infer(cohort()).causes == ("1",)
    other = cohort().assign(status=np.arange(120) / 7).rename(columns={"time": "os_days"})
    assert not [n for n in infer(other).notes if "survival" in n]


def test_levels_in_the_schema():
    frame = cohort(("here", "gone"))
    with pytest.raises(UserError, match="which of them is the event"):
        infer(frame, duration="time", event="status")
    for override in ({"event_level": "gone"}, {"columns": {"status": {"event": "gone"}}}):
        found = infer(frame, override={"duration": "time", "event": "status"} | override)
        assert found.causes == ("gone",)
    assert infer(frame, override={"duration": "time", "columns": {"status": {"event": "gone"}}}).event == "status"
    with pytest.raises(UserError, match="without a survival pair"):
        infer(frame, entry="age")


def test_dates_are_refused_with_what_to_do():
    with pytest.raises(UserError, match="write the days from the start"):
        infer(cohort().assign(time="2020-01-01"), duration="time", event="status")


def test_entry_comes_before_time():
    frame = cohort().assign(entry=0.5)
    frame.loc[[2, 5], "entry"] = frame.loc[[2, 5], "time"]
    with pytest.raises(UserError, match=r"row 3: entry .* at follow-up time .*; row 6: entry"):
        infer(frame, duration="time", event="status", entry="entry")
    assert infer(frame.drop([2, 5]), duration="time", event="status", entry="entry").entry == "entry"


def test_command_line(tmp_path, capsys):
    cohort(("here", "gone")).to_csv(tmp_path / "t.csv", index=False)
    pair = ["--duration", "time", "--event", "status", "--steps", "0"]

    def run(*arguments):
        try:
            main(["pretrain", "table", str(tmp_path / "t.csv"), "--out", str(tmp_path / "m"), *pair, *arguments])
        except SystemExit as stop:
            return stop.code or 0, capsys.readouterr()
        return 0, capsys.readouterr()

    code, printed = run()
    assert code == 2
    assert "--event-level" in printed.err
    assert not (tmp_path / "m").exists()
    code, printed = run("--event-level", "gone")
    assert code == 0
    assert "the event is 'gone'" in printed.out


def test_a_start_column_is_asked_about():
    """As survival::heart and survival::cgd have them: intervals from start to stop."""
    rng = np.random.default_rng(0)
    start = rng.uniform(0, 5, 40).round(2)
    frame = {
        "tstart": start,
        "tstop": start + rng.uniform(1, 5, 40).round(2),
        "status": rng.integers(0, 2, 40),
        "x": rng.normal(size=40),
    }
    read = read_frame(pd.DataFrame(frame))
    notes = " ".join(infer_schema(read.names, read.columns).notes)
    assert "'tstop' and 'status' look like follow-up time and event, but NO survival pair is taken" in notes
    assert "entry='tstart'" in notes


def late_cohort(rows=120, seed=0):
    frame = cohort(rows=rows, seed=seed)
    return frame.assign(entry=np.floor(frame["time"] * np.random.default_rng(seed).uniform(0, 0.9, rows)))


@pytest.fixture(scope="module")
def late_model():
    return TableModel.fit(late_cohort(), duration="time", event="status", entry="entry", steps=0, members=2)


@pytest.mark.parametrize("use", ["impute", "intervals", "score", "embed"])
def test_new_rows_whose_follow_up_cannot_be_are_refused_all_at_once(late_model, use):
    new = late_cohort(30, seed=1)
    new.loc[[2, 5], "time"] = -4
    new.loc[7, "entry"] = -1
    new.loc[[9, 11], "entry"] = new.loc[[9, 11], "time"] + [0, 3]
    said = r"row 2: -4 as a duration; row 5: -4 .*row 7: -1 as a duration.*"
    said += r"row 9: entry (\d+) at follow-up time \1; row 11: "
    with pytest.raises(UserError, match=said):
        getattr(late_model, use)(new)


def test_unknown_follow_up_of_new_rows_is_not_refused(late_model):
    new = late_cohort(30, seed=1)
    new.loc[3, "time"] = new.loc[4, "entry"] = None
    late_model.impute(new)
    late_model.impute(new.drop(columns=["time", "status"]))


def test_impossible_follow_up_of_new_rows_on_the_command_line(late_model, tmp_path, capsys):
    late_model.save(tmp_path / "m")
    late_cohort(20, seed=1).assign(time=-4, age=None).to_csv(tmp_path / "n.csv", index=False)
    with pytest.raises(SystemExit) as stop:
        main(["impute", str(tmp_path / "m"), str(tmp_path / "n.csv"), "--out", str(tmp_path / "o.csv")])
    assert stop.value.code == 2
    assert "row 21: -4 as a duration" in capsys.readouterr().err
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    "where", ["time >= 20", "time <= 15", "entry >= 10", ["time >= 20", "status == 1"], "status == 1", None]
)
def test_synthetic_rows_enter_before_their_follow_up_ends(late_model, where):
    for seed in (0, 1):
        made = late_model.synthesize(300, where=where, seed=seed)
        assert (made["entry"] < made["time"]).all()
        assert (made["entry"] >= 0).all()


@pytest.mark.parametrize("draws", [0, 2])
def test_imputed_entries_come_before_time(late_model, draws):
    new = late_cohort(60, seed=1)
    new.loc[:24, "entry"] = None
    new.loc[15:40, "time"] = None
    new.loc[41:44, ["time", "entry"]] = [2, None]
    done = late_model.impute(new, draws=draws)
    for table in done if draws else [done]:
        assert (table["entry"] < table["time"]).all()
    properly = MultipleImputation(2, schema=late_model.schema, rounds=1).fit(new)
    for table in properly.completed:
        assert (table["entry"] < table["time"]).all()
        assert (table["entry"] >= 0).all()


def test_the_order_of_entry_and_time_takes_nothing_away(late_model):
    """The outcome of new rows comes from the hazards as before, and rules that a person gives stand beside it."""
    from unmask.modalities.table.synthesis.sampling import RowSampler

    rules = Rules.of(late_model.schema)
    assert RowSampler(late_model, {}, rules, 1.0).outcome is not None
    assert late_model.inspect()["constraints"] == []
    assert len(Rules.of(late_model.schema, "entry < time").all) == 1
    assert len(Rules.of(late_model.schema, "time := age * 2").all) == 1


def test_a_recipe_without_rules_says_which_entries_come_too_late():
    frame = late_cohort(60)
    model = TableModel.fit(frame, duration="time", event="status", entry="entry", recipe="mcm", steps=1)
    new = frame.assign(entry=np.nan, time=0.0)
    with pytest.warns(UserWarning, match="'entry < time' is not kept .* in rows 0, 1, 2, 3, 4, 5, 6, 7 and 52 more"):
        model.impute(new)


@pytest.mark.parametrize(
    "name",
    ["alive", "Censored", "is_censored", "os_alive", "censor", "event_free", "alive_at_fu", "lebt", "lost_to_fu"],
)
@pytest.mark.parametrize("coding", [(0, 1), (False, True), ("no", "yes")])
def test_a_column_whose_yes_may_be_no_event_is_asked_about(name, coding):
    """event="alive" with 1 = alive was read as 1 = died, without a word: a hazard ratio was .57 for 3.2."""
    table = pd.DataFrame({"time": np.arange(1.0, 41), name: [coding[i % 2] for i in range(40)], "x": np.arange(40.0)})
    with pytest.raises(UserError, match=r"which of them is the event\?[\s\S]*event_level="):
        TableModel.fit(table, duration="time", event=name, steps=0)
    model = TableModel.fit(table, duration="time", event=name, event_level=str(coding[0]), steps=0)
    column = next(c for c in model.schema.columns if c.name == name)
    assert column.event == (str(coding[0]),)


def test_the_censoring_of_adam_is_read_as_its_standard_defines_it():
    """CNSR = 0 at the event was read as censored there, without a word: a hazard ratio was 1.61 for .51."""
    table = cohort().rename(columns={"time": "AVAL", "status": "CNSR"})
    schema = infer(table, duration="AVAL", event="CNSR")
    assert schema.columns[2].categories == ("1", "0")
    assert any("censored where it is '1'; the event is '0'" in note for note in schema.notes)
    for coding in [(0, 1, 2), (1,)]:  # ways of being censored are no causes
        table["CNSR"] = [coding[i % len(coding)] for i in range(len(table))]
        with pytest.raises(UserError, match=r"would all be censored|which of them is the event"):
            infer(table, duration="AVAL", event="CNSR")


def test_a_formula_does_not_turn_such_a_column_round():
    table = cohort().rename(columns={"status": "alive"})
    done = MultipleImputation(2, rounds=1).fit(table)
    with pytest.raises(UserError, match="which of them is the event"):
        done.pool("Surv(time, alive) ~ age")


@pytest.mark.parametrize("name", ["lost", "graft_lost", "living_donor", "free_flap_loss", "status", "os_event"])
def test_other_names_are_not_asked_about(name):
    assert infer(cohort().rename(columns={"status": name}), duration="time", event=name).causes == ("1",)


def test_words_that_say_what_happened_need_no_question():
    table = pd.DataFrame({"time": np.arange(1.0, 41), "alive": ["alive", "dead"] * 20, "x": np.arange(40.0)})
    model = TableModel.fit(table, duration="time", event="alive", steps=0)
    assert next(c for c in model.schema.columns if c.name == "alive").event == ("dead",)
