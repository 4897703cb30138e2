"""Clustered rows: two-level imputation, what is constant within clusters, pooling that knows of clusters, refusals."""

import json
import shutil
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import unmask
from commands import run
from unmask.errors import UserError
from unmask.modalities.table.fitting.fit import folds
from unmask.modalities.table.imputation.formula_text import parse_formula
from unmask.modalities.table.imputation.grouped_fit import grouping_of, mixed_model
from unmask.modalities.table.imputation.mixed_models import GroupedRows, LatentModel, MixedModel
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.recipes import TableSettings
from unmask.modalities.table.schema.clusters import Clusters
from unmask.modalities.table.schema.infer import infer_schema
from unmask.modalities.table.schema.values import encode

IN_R = Path(__file__).parent / "in_r"


def centres(seed: int = 0, clusters: int = 20, rows: int = 12, icc: float = 0.4) -> pd.DataFrame:
    """y on x, z and a region of each centre; all of them but the region vary within and between centres."""
    rng = np.random.default_rng(seed)
    at = np.repeat(np.arange(clusters), rows)

    def noise() -> np.ndarray:
        return rng.normal(size=clusters)[at] * icc**0.5 + rng.normal(size=len(at)) * (1 - icc) ** 0.5

    region = rng.random(clusters) < 0.5
    x = noise()
    z = 0.5 * x + noise()
    grade = np.digitize(z + rng.normal(size=len(at)), [-1, 0.5])
    return pd.DataFrame(
        {
            "centre": [f"c{i}" for i in at],
            "y": 0.5 * x + 0.5 * z + region[at] + noise(),
            "x": x,
            "z": z,
            "region": np.where(region[at], "north", "south"),
            "grade": np.array(["low", "mid", "high"])[grade],
            "beds": rng.integers(20, 400, clusters)[at].astype(float),
        }
    )


def holed(whole: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    """A third of x by y; z unknown in three centres; region and beds unknown in three others; a fifth of the grades."""
    rng, part = np.random.default_rng(seed), whole.copy()
    part.loc[rng.random(len(part)) < 1 / (1 + np.exp(1 - part["y"])), "x"] = np.nan
    part.loc[part["centre"].isin(["c1", "c4", "c7"]), "z"] = np.nan
    part.loc[part["centre"].isin(["c2", "c5", "c8"]), ["region", "beds"]] = None
    part.loc[rng.random(len(part)) < 0.2, "grade"] = None
    return part


KNOWN = {"columns": {"grade": {"kind": "ordinal", "categories": ["low", "mid", "high"]}}}


@pytest.fixture(scope="module")
def done() -> MultipleImputation:
    return MultipleImputation(4, cluster="centre", schema=KNOWN, rounds=5, seed=3).fit(holed(centres()))


def test_cells_that_were_observed_stay_and_all_others_are_filled(done):
    part = holed(centres())
    for table in done:
        assert not table.isna().any().any()
        for name in part:
            seen = part[name].notna()
            assert (table[name][seen] == part[name][seen]).all()


def test_what_is_constant_within_clusters_is_drawn_once_per_cluster(done):
    for table in done:
        assert (table.groupby("centre")[["region", "beds"]].nunique() == 1).all().all()
    drawn = {tuple(t.groupby("centre")["beds"].first()[["c2", "c5", "c8"]]) for t in done}
    assert len(drawn) == len(done)
    assert any("'region', 'beds'" in note for note in done.notes_)


def test_the_same_seed_gives_the_same_tables_and_rows_may_come_in_any_order():
    part = holed(centres())
    one, two = (MultipleImputation(2, cluster="centre", schema=KNOWN, rounds=3, seed=s).fit(part) for s in (5, 5))
    assert all(a.equals(b) for a, b in zip(one, two, strict=True))
    mixed = part.sample(frac=1, random_state=0)
    again = MultipleImputation(2, cluster="centre", schema=KNOWN, rounds=3, seed=5).fit(mixed)
    assert (again[0].groupby("centre")["region"].nunique() == 1).all()


def test_a_known_value_of_the_cluster_is_taken_where_a_row_lacks_it():
    part = centres()
    known = part["region"].copy()
    part.loc[part.index % 12 > 2, "region"] = None
    done = MultipleImputation(2, cluster="centre", seed=1).fit(part)
    assert all((table["region"] == known).all() for table in done)
    assert any("take the value of their cluster" in note for note in done.notes_)


def test_a_column_with_one_contradicting_cell_is_not_of_level_two_and_the_cell_is_told():
    part = holed(centres())
    part.loc[40, "region"] = "north" if part.loc[40, "region"] == "south" else "south"
    with pytest.warns(UserWarning, match=r"'region' is constant within clusters but in 'c3', row 40"):
        done = MultipleImputation(2, cluster="centre", schema=KNOWN, rounds=2).fit(part)
    assert not any("drawn for" in note and "'region'" in note for note in done.notes_)


def test_a_systematically_missing_column_gets_the_spread_between_clusters():
    """A cluster that never measured z has an effect of its own in every table: its mean varies as clusters do."""
    whole = centres(clusters=30, rows=20, icc=0.6)
    part = whole.copy()
    part.loc[part["centre"].isin([f"c{i}" for i in range(8)]), "z"] = np.nan
    part = part[["centre", "z", "beds"]]
    two = MultipleImputation(20, cluster="centre", rounds=3, seed=0).fit(part)
    means = np.array([t.groupby("centre")["z"].mean()[[f"c{i}" for i in range(8)]] for t in two])
    seen = part.groupby("centre")["z"].mean().dropna()
    assert means.std() == pytest.approx(seen.std(), rel=0.35)
    one = MultipleImputation(20, rounds=3, seed=0, method="norm").fit(part.drop(columns="centre"))
    flat = np.array([t["z"].groupby(part["centre"]).mean()[[f"c{i}" for i in range(8)]] for t in one])
    assert flat.std() < 0.5 * means.std()


@pytest.mark.parametrize("method", ["norm", "pmm"])
def test_slopes_that_differ_between_patients_are_kept(method):
    rng = np.random.default_rng(2)
    at, time = np.repeat(np.arange(60), 8), np.tile(np.arange(8.0), 60)
    slope = rng.normal(0, 1, 60)
    y = rng.normal(size=60)[at] + slope[at] * time + rng.normal(0, 0.5, 480)
    part = pd.DataFrame({"patient": at, "visit": time, "y": np.where(rng.random(480) < 0.4, np.nan, y)})
    error = {}
    for slopes in ((), ("visit",)):
        done = MultipleImputation(3, cluster="patient", slopes=slopes, method={"y": method}, rounds=3).fit(part)
        gone = part["y"].isna()
        error[bool(slopes)] = np.mean([(t["y"] - y)[gone].std() for t in done])
    assert error[True] < 0.6 * error[False]


# The sampler itself


def test_the_sampler_finds_the_parameters_of_its_model():
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(200), 10)
    x = np.column_stack([np.ones(2000), rng.normal(size=2000)])
    u = rng.multivariate_normal([0, 0], [[0.5, 0.2], [0.2, 0.3]], 200)
    y = x @ [1.0, -0.5] + (x * u[cluster]).sum(1) + 0.7 * rng.normal(size=2000)
    rows = GroupedRows(x, x, cluster)
    model, found = MixedModel(rows, latent=False), []
    for step in range(400):
        model.draw(rows, y[rows.order], rng)
        if step >= 100:
            found.append(np.r_[model.beta, model.sigma, model.psi[0, 0], model.psi[0, 1], model.psi[1, 1]])
    expected = [1, -0.5, 0.7, 0.5, 0.2, 0.3]
    assert np.mean(found, 0) == pytest.approx(expected, abs=0.12)


def test_ordered_and_unordered_levels_have_the_shares_of_the_data():
    rng = np.random.default_rng(1)
    cluster = np.repeat(np.arange(60), 15)
    x = np.column_stack([np.ones(900), rng.normal(size=900)])
    latent = x[:, 1] + 0.7 * rng.normal(size=60)[cluster] + rng.normal(size=900)
    y = np.digitize(latent, [-1.0, 0.3, 1.5]).astype(float)
    rows = GroupedRows(x, np.ones((900, 1)), cluster)
    for ordinal in (True, False):
        model, shares = LatentModel.of(rows, y, ordinal=ordinal), []
        for step in range(300):
            model.draw(rows, y[rows.order], rng, tune=step < 100)
            if step >= 150:
                eta = np.column_stack([rows.predicted(m.beta, m.u) for m in model.models])
                shares.append(np.exp(model.log_probability(eta)).mean(0))
        assert np.mean(shares, 0) == pytest.approx(np.bincount(y.astype(int)) / 900, abs=0.02)
        assert np.exp(model.log_probability(eta)).sum(1) == pytest.approx(1)
    if ordinal:
        assert model.cuts == pytest.approx([0, 1.3, 2.5], abs=0.35)


# Refusals


def refused(frame: pd.DataFrame, cluster: str, **options) -> UserError:
    with pytest.raises(UserError) as error:
        MultipleImputation(2, cluster=cluster, **options).fit(frame)
    return error.value


def test_a_cluster_that_is_none_is_refused_with_its_row_and_value():
    part = holed(centres())
    found = str(refused(part, "y"))
    assert "row 0" in found
    assert "measurement" in found
    assert f"{part['y'][0]}" in found
    alone = str(refused(part.assign(one=[f"p{i}" for i in range(len(part))]), "one"))
    assert "one row per cluster" in alone
    assert "'p0'" in alone
    few = str(refused(part.assign(wing=np.where(part.index < 100, "a", "b")), "wing"))
    assert "2 clusters of several rows" in few
    lacking = part.copy()
    lacking.loc[[17, 30], "centre"] = None
    assert "row 17: no value, as in 1 more" in str(refused(lacking, "centre"))
    assert "no column 'center'" in str(refused(part, "center"))


def test_what_two_levels_do_not_go_with_is_refused():
    part = holed(centres())
    assert "formula=" in str(refused(part, "centre", formula="y ~ x"))
    assert "steps=100" in str(refused(part, "centre", steps=100))
    assert "constant within clusters" in str(refused(part, "centre", slopes=["beds"]))
    assert "no column" in str(refused(part, "centre", slopes="visit"))
    with pytest.raises(UserError, match="slopes= without cluster="):
        MultipleImputation(2, slopes=["x"]).fit(part)


def test_the_command_names_clusters_and_writes_nothing_where_they_are_none(tmp_path, capsys):
    file = tmp_path / "t.csv"
    holed(centres()).to_csv(file, index=False)
    how = ("impute", file, "--proper", 2, "--rounds", 2)
    code, *_ = run(capsys, *how, "--cluster", "centre", "--slopes", "x", "--out", tmp_path / "f.csv")
    assert code == 0
    table = pd.read_csv(tmp_path / "f-1.csv")
    assert (table.groupby("centre")["region"].nunique() == 1).all()
    code, _, said = run(capsys, *how, "--cluster", "y", "--out", tmp_path / "g.csv")
    assert code == 2
    assert "t.csv, column 'y', row 2" in said
    assert not (tmp_path / "g-1.csv").exists()


# A role of the schema


def test_describe_counts_clusters_and_tells_columns_of_level_two(tmp_path):
    found = unmask.table.describe(holed(centres()), cluster="centre")
    assert found.schema.role("centre") == "cluster"
    said = [f.text for f in found.findings if f.code == "cluster"]
    assert said == ["20 clusters of 12 rows; constant within clusters (level two): 'region', 'beds'"]
    again = MultipleImputation(2, schema=found.write_toml(tmp_path / "s.toml"), rounds=2).fit(holed(centres()))
    assert again.schema_.cluster == "centre"


def test_repeated_identifiers_are_warned_of_once_and_told_what_to_write():
    part = holed(centres()).assign(patient_id=np.repeat(np.arange(60), 4)).drop(columns="centre")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MultipleImputation(2, rounds=2).fit(part)
    told = [str(w.message) for w in caught if "independent" in str(w.message)]
    assert len(told) == 1
    assert "cluster='patient_id'" in told[0]
    assert "too narrow" in told[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MultipleImputation(2, cluster="patient_id", rounds=2).fit(part)
    assert not [w for w in caught if "independent" in str(w.message)]


def test_rows_of_a_cluster_are_held_out_together():
    groups = np.repeat(np.arange(50), 7)
    found = folds(350, TableSettings(), groups)
    assert all(len(set(found[groups == g])) == 1 for g in range(50))
    assert len(set(found)) > 1


# Analyses that know of clusters, beside R


def followed() -> pd.DataFrame:
    """One complete table of 20 unequal centres, with a survival pair of many ties and late entry."""
    rng = np.random.RandomState(11)  # its numbers never change
    at = np.repeat(np.arange(20), rng.randint(4, 16, 20))
    rows = len(at)
    x = (rng.normal(size=rows) + rng.normal(size=20)[at]).round(4)
    region = np.where(rng.uniform(size=20) < 0.5, "north", "south")[at]
    u = rng.normal(size=20)[at]
    y = (1 + (0.5 + 0.4 * rng.normal(size=20)[at]) * x + (region == "south") + u + rng.normal(size=rows)).round(4)
    days = np.ceil(rng.exponential(8 * np.exp(-0.4 * x - 0.4 * u)) + 1)
    ill = (rng.uniform(size=rows) < 0.6).astype(int)
    start = np.minimum(np.floor(rng.uniform(size=rows) * 4), days - 1)
    return pd.DataFrame({"centre": at, "x": x, "region": region, "y": y, "days": days, "ill": ill, "start": start})


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, list[float]]]:
    return json.loads((IN_R / "clustered.json").read_text())


def completed(entry: str | None = None) -> MultipleImputation:
    """The table as if it had been completed twice."""
    whole, pair = followed(), {"duration": "days", "event": "ill"}
    given = whole if entry else whole.drop(columns="start")
    part = given.assign(x=given["x"].where(np.arange(len(given)) % 9 != 0))
    done = MultipleImputation(2, cluster="centre", rounds=1, entry=entry, **pair).fit(part)
    done.completed = [given, given]
    done._values = [encode(read_frame(given), done.schema_)] * 2
    done.doubts_ = []
    return done


def test_mixed_models_are_those_of_lme4(figures):
    done = completed()
    for text, key in (("y ~ x + region + (1 | centre)", "intercept"), ("y ~ x + region + (1 + x | centre)", "slopes")):
        found, theirs = done.pool(text), figures[key]
        np.testing.assert_allclose(found.estimate, theirs["estimate"], rtol=2e-5)
        np.testing.assert_allclose(found.error, theirs["error"], rtol=2e-5)
        own = [v for name, v in found.variances.items() if name != "ICC"]
        np.testing.assert_allclose(own, theirs["variances"], rtol=2e-4)
        # what is constant within centres has their degrees of freedom
        assert max(found.df[[0, 2]]) < 20 < found.df[1]


@pytest.mark.parametrize(("between", "expected"), [(0.1, 0.1), (0.5, 0.5), (0.0, 0.0)])
def test_small_variances_between_clusters_are_found_and_none_is_none(between, expected):
    """Of balanced rows without regressors REML is the analysis of variance, and 0 where that is negative."""
    rng = np.random.default_rng(4)
    found, by_hand = [], []
    for _ in range(20):
        clusters = Clusters(np.repeat(np.arange(30), 20), tuple(map(str, range(30))))
        y = rng.normal(0, between**0.5, 30)[clusters.number] + rng.normal(0, 1, 600) * (1 - between) ** 0.5
        schema = infer_schema(["y", "x"], [y, rng.normal(size=600)])
        grouping = grouping_of(parse_formula("y ~ x", schema), "g", "1", lambda _, own=clusters: own)
        variances = mixed_model(grouping, np.ones((600, 1)), y, np.ones((600, 1)))[2]
        within = clusters.sums((y - clusters.means(y[:, None])[clusters.number, 0]) ** 2).sum() / 570
        by_hand.append(max(0.0, clusters.means(y[:, None]).var(ddof=1) - within / 20))
        found.append(variances["g (Intercept)"])
    assert found == pytest.approx(by_hand, abs=1e-6)
    assert np.mean(found) == pytest.approx(expected, abs=0.06)


def test_errors_that_are_robust_to_clusters_are_those_of_r(figures):
    done = completed()
    for found, key in (
        (done.pool("y ~ x + region", cluster="centre"), "ols"),
        (done.pool("ill ~ x + region", cluster="centre"), "logit"),
        (done.pool("days ~ x + region", family="poisson", cluster="centre"), "poisson"),
        (done.pool_cox(["x", "region"], cluster="centre"), "cox"),
        (completed("start").pool_cox(["x", "region"], cluster="centre"), "late"),
        (done.validate("x"), "c_index"),
    ):
        count = len(figures[key]["estimate"])
        np.testing.assert_allclose(found.estimate[:count], figures[key]["estimate"], rtol=1e-6)
        np.testing.assert_allclose(found.error[:count], figures[key]["error"], rtol=1e-6)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="no R")
def test_the_figures_are_what_r_gives(figures, tmp_path):
    followed().to_csv(tmp_path / "t.csv", index=False)
    script = IN_R / "clustered.R"
    done = subprocess.run(
        ["Rscript", str(script), str(tmp_path / "t.csv"), str(tmp_path / "f.json")], capture_output=True, text=True
    )
    if "there is no package" in done.stderr:
        pytest.skip("R lacks a package")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "f.json").read_text())
    for name, figure in figures.items():
        for key, values in figure.items():
            np.testing.assert_allclose(found[name][key], values, rtol=1e-4, err_msg=f"{name} {key}")


def test_an_analysis_that_forgets_the_clusters_is_warned_of(done):
    with pytest.warns(UserWarning, match=r"add \(1 \| centre\) to a linear model, or give cluster='centre'"):
        done.pool("y ~ x")
    for text, why in (
        ("region ~ x + (1 | centre)", "no quantity"),
        ("y ~ x + (0 + x | centre)", "no intercept"),
        ("y ~ x + (1 | centre) + (1 | region)", "2 groups"),
    ):
        with pytest.raises(UserError, match=why):
            done.pool(text)
    with pytest.raises(UserError, match="one of the two"):
        done.pool("y ~ x + (1 | centre)", cluster="centre")
    with pytest.raises(UserError, match="Leave the penalty out"):
        done.pool("region ~ x", cluster="centre", firth=True)
    with pytest.raises(UserError, match="Proportional odds"):
        done.pool("grade ~ x", cluster="centre")


def test_random_effects_that_imputation_did_not_keep_are_warned_of():
    part = holed(centres()).drop(columns=["region", "beds", "grade"])
    one = MultipleImputation(2, rounds=2, schema={"columns": {"centre": {"kind": "id"}}}).fit(part)
    with pytest.warns(UserWarning, match="imputation knew nothing of the clusters of 'centre'"):
        one.pool("y ~ x + (1 | centre)")


def test_mixed_models_of_statsmodels_are_pooled_by_their_fixed_effects(done):
    """Its variances have no error that Rubin's rules could take; nothing is needed of it but the names it uses."""

    def analyse(table):
        fixed = pd.Series({"Intercept": table["y"].mean(), "x": 1.0})
        every = pd.concat([fixed, pd.Series({"Group Var": np.nan})])
        return SimpleNamespace(fe_params=fixed, bse_fe=fixed * 0 + 0.1, params=every, bse=every, df_resid=200)

    assert done.pool(analyse).names == ("Intercept", "x")


def test_of_a_survival_pair_the_event_and_the_hazards_predict_in_two_levels():
    whole = followed().assign(region=lambda t: t["region"].where(t["centre"] > 3))
    rng = np.random.default_rng(0)
    whole["cause"] = np.where(whole["ill"] == 0, "none", np.where(rng.random(len(whole)) < 0.5, "stroke", "cancer"))
    part = whole.drop(columns=["ill", "start"]).assign(x=whole["x"].where(rng.random(len(whole)) < 0.8))
    how = {"duration": "days", "event": "cause", "event_level": ["stroke", "cancer"]}
    with pytest.warns(UserWarning, match="with clusters, covariates are not drawn to agree with a Cox regression"):
        done = MultipleImputation(2, cluster="centre", rounds=2, **how).fit(part)
    assert not done[0].isna().any().any()
    assert (done[0].groupby("centre")["region"].nunique() == 1).all()
    assert done.pool_cox("x", cause="stroke", cluster="centre").df[0] < 20


def test_clusters_that_are_spelt_alike_are_warned_of():
    rng = np.random.default_rng(0)
    names = [f"P{i // 8:02d}" if i % 2 else f"p{i // 8:02d}" for i in range(160)]
    table = pd.DataFrame({"pid": names, "x": rng.normal(size=160), "y": rng.normal(size=160)})
    table.loc[:9, "x"] = np.nan
    with pytest.warns(UserWarning, match="'pid' holds spellings that may mean the same: 'p00'"):
        MultipleImputation(2, cluster="pid", rounds=1).fit(table)
