"""How well each column is imputed: figures of held-out cells that hold for new rows, beside the mean and the mode."""

import json

import numpy as np
import pandas as pd
import pytest
from tables import patients

from unmask.cli import main
from unmask.modalities.table.fitting.imputation_quality import (
    Judged,
    columns_imputed,
    error_removed,
    judgement,
    sentence,
)
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.recipes import settings_of


def known(rows: int, seed: int) -> pd.DataFrame:
    """Two measurements of one thing, a threshold of it, and noise that nothing tells."""
    rng = np.random.default_rng(seed)
    true = rng.normal(50, 10, rows)
    return pd.DataFrame(
        {
            "a": true + rng.normal(0, 3, rows),
            "b": true + rng.normal(0, 3, rows),
            "high": np.where(true > 50, "yes", "no"),
            "noise": rng.normal(0, 5, rows),
            "coin": np.where(rng.random(rows) < 0.4, "tail", "head"),
        }
    )


def test_figures_hold_for_rows_never_seen():
    ratios = []
    for seed in range(4):
        table, new = known(150, seed), known(2000, seed + 100)
        model = TableModel.fit(table, steps=0, seed=seed)
        found = {f["column"]: f for f in model.facts["columns_imputed"]}
        gone = np.random.default_rng(seed).random(new.shape) < 0.27
        filled = model.impute(new.mask(gone))
        for i, (name, figure) in enumerate(found.items()):
            hit = gone[:, i]
            if figure["measure"] == "rmse":
                error = np.sqrt(((filled[name] - new[name])[hit] ** 2).mean())
                assert figure["error_of_mean"] == pytest.approx(table[name].std(), rel=0.15)
                assert 0.8 < figure["coverage"] < 0.97
            else:
                error = (filled[name] != new[name])[hit].mean()
            ratios.append(figure["error"] / error)
        assert {found[c]["verdict"] for c in ("a", "b", "high")} == {"clearly_better"}
        assert {found[c]["verdict"] for c in ("noise", "coin")} <= {"no_better", "worse"}
        assert "clearly better than by the mean" in found["a"]["sentence"]
    assert 0.9 < np.exp(np.mean(np.log(ratios))) < 1.15


@pytest.mark.parametrize("seed", [0, 1])
def test_columns_are_judged_in_all_rows_whatever_these_lack(seed):
    """Complete columns were judged in incomplete rows alone: `y` where it is told well, `dead` in survivors."""
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(2, 900))
    table = pd.DataFrame(
        {
            "x": x,
            "g": g,
            "lab": np.where(x < 0, np.nan, x + rng.normal(0, 0.5, 900)),
            "y": g + rng.normal(0, np.where(x < 0, 0.1, 3)),
            "dead": np.where(x < -0.4, "yes", "no"),
            "cause": np.where(x < -0.4, np.where(g > 0, "heart", "lung"), None),
        }
    )
    model = TableModel.fit(table, steps=0, seed=seed)
    place = {model.schema.columns[i].name: k for k, i in enumerate(model.schema.modelled)}
    for name in ("x", "g", "y", "dead"):
        rows = model.table.judged[place[name]].row
        assert len(rows) >= 200
        assert (x[rows] < 0).mean() == pytest.approx((x < 0).mean(), abs=0.12)
    figures = {f["column"]: f for f in model.facts["columns_imputed"]}
    assert figures["y"]["error_of_mean"] == pytest.approx(table.y.std(), rel=0.25)
    assert figures["y"]["error"] > 1.2
    assert figures["dead"]["error_of_mode"] == pytest.approx((x < -0.4).mean(), abs=0.1)


def test_the_mean_beside_them_is_that_of_all_rows():
    model = TableModel.fit(patients(40), steps=0)
    values = [np.array([1.0, 3.0, 10.0, 20.0])]
    cells = Judged(np.arange(4), np.array([0, 0, 1, 1]), values[0], values[0], np.zeros(4))
    (figure,) = columns_imputed(model.schema, {0: cells}, values)
    assert figure["error"] == 0
    assert figure["error_of_mean"] == pytest.approx(values[0].std(), rel=1e-5)
    assert figure["verdict"] == "too_few"


@pytest.mark.parametrize("seed", range(4))
def test_a_coin_that_was_tossed_evenly_is_not_imputed_better_than_by_its_mode(seed):
    """The mode of the other folds of a balanced column is the level that is rarer in this one: wrong in .59 of 60 rows
    instead of .50, beside which noise stood as "clearly better" in one column of five."""
    rng = np.random.default_rng(seed)
    arms = {name: rng.permutation(np.repeat(["A", "B"], 30)) for name in ("arm", "site", "sex")}
    model = TableModel.fit(pd.DataFrame(arms | {"age": rng.normal(60, 10, 60)}), steps=0, seed=seed)
    figures = {f["column"]: f for f in model.facts["columns_imputed"]}
    assert np.mean([figures[name]["error_of_mode"] for name in arms]) == pytest.approx(0.5, abs=0.04)
    assert "clearly_better" not in {figures[name]["verdict"] for name in arms}


def test_no_column_looks_improved_for_its_mode_is_rare_among_the_judged():
    """The mode of all rows was wrong in .58 of the cells, and .45 seemed better, the longest bar of the report."""
    model = TableModel.fit(patients(60), steps=0)
    place = model.schema.place("sex")
    truth = np.repeat([0.0, 1.0], [58, 42])
    point = np.r_[np.repeat([0.0, 1.0], [35, 23]), np.repeat([1.0, 0.0], [20, 22])]
    cells = Judged(np.arange(100), np.zeros(100), truth, point, np.full(100, np.nan))
    rows = [np.repeat([0.0, 1.0], [49, 51])] * len(model.schema.modelled)
    (figure,) = columns_imputed(model.schema, {place: cells}, rows)
    assert (figure["error"], figure["error_of_mode"], figure["verdict"]) == (0.45, 0.42, "no_better")
    assert error_removed(figure) == error_removed(figure | {"error": 0.3, "verdict": "unclear"}) == 0
    assert error_removed(figure | {"error": 0.21, "verdict": "clearly_better"}) == 0.5


def test_nothing_is_better_than_no_error():
    assert judgement(np.zeros(40), np.arange(40), 0.0, 0.0) == "no_better"


def test_chance_is_no_gain_and_repeated_cells_count_once():
    rng = np.random.default_rng(0)
    gain, row = rng.normal(0.3, 1, 30), np.arange(30)
    assert judgement(gain, row, 0.95, 1.0) == judgement(np.tile(gain, 8), np.tile(row, 8), 0.95, 1.0) == "no_better"
    assert judgement(gain, row, 0.8, 1.0) == "unclear"
    assert judgement(gain + 1, row, 0.8, 1.0) == "clearly_better"
    assert judgement(gain + 1, row, 0.95, 1.0) == "slightly_better"
    assert judgement(gain - 2, row, 1.2, 1.0) == "worse"
    assert "too narrow" in sentence("no_better", "mean", 0.7)
    assert "too wide" in sentence("clearly_better", "mean", 0.99)


def said(*arguments) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([str(a) for a in arguments])


def test_the_run_says_it_everywhere(tmp_path, capsys):
    known(120, 0).to_csv(tmp_path / "t.csv", index=False)
    run = ["pretrain", "table", str(tmp_path / "t.csv"), "--steps", "0", "--out"]
    said(*run, tmp_path / "m")
    shown = capsys.readouterr().out
    assert "Imputed clearly better than by the mean." in shown
    said(*run, tmp_path / "j", "--json")
    figures = json.loads(capsys.readouterr().out)["columns_imputed"]
    assert [f["column"] for f in figures] == list(known(2, 0))
    page = (tmp_path / "m" / "report.html").read_text()
    assert "2 of 5" in page or "3 of 5" in page
    assert "Use this model" in page
    assert "unmask impute" in page
    lines = [json.loads(line) for line in (tmp_path / "j" / "metrics.jsonl").read_text().splitlines()]
    assert next(line["columns"] for line in lines if line["kind"] == "columns_imputed") == figures
    assert load(tmp_path / "j").facts["columns_imputed"] == figures


def test_points_alone_are_not_judged():
    assert TableModel.fit(patients(40), settings=settings_of("mcm", steps=1)).facts["columns_imputed"] == []


def test_errors_that_are_no_numbers_are_no_praise():
    gain = np.where(np.arange(100) == 3, np.nan, 1.0)
    assert judgement(gain, np.arange(100), np.nan, 2.0) == "not_finite"
    assert judgement(np.full(100, np.inf), np.arange(100), 1.0, np.inf) == "not_finite"
    assert "do not rely" in sentence("not_finite", "mean", 0.2)
