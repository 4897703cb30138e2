"""Events in memory are what the parquet of the same MEDS table is, through every verb: equal, or refused alike."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import unmask
from unmask.errors import UserError
from unmask.modalities.events.audit import audit
from unmask.modalities.events.demo import simulate
from unmask.modalities.events.pretrain import pretrain
from unmask.modalities.events.recipes import EventSettings, with_overrides

SMALL = {"slots": 64, "batch_slots": 1024, "width": 32, "steps": 2, "precision": "fp32", "until": "last"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(MEDS folder, its table, a model of it)."""
    root = tmp_path_factory.mktemp("memory")
    meds = simulate(root, 30, 0)
    pretrain(meds, root / "model", settings=with_overrides(EventSettings(), SMALL), console=False)
    parts = sorted((meds / "data").rglob("*.parquet"))
    return meds, pl.concat([pl.read_parquet(p) for p in parts]), unmask.load(root / "model", precision="fp32")


FORMS = {
    "polars": lambda table: table,
    "pandas": lambda table: table.to_pandas(),
    "Arrow": lambda table: table.to_arrow(),
    "columns": lambda table: table.to_dict(as_series=False),
    "rows": lambda table: iter(table.to_dicts()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_verb_takes_a_table_as_its_folder(made, tmp_path, form):
    meds, table, model = made

    def given():
        return FORMS[form](table)

    np.testing.assert_array_equal(model.embed(given()), model.embed(meds))
    assert model.score(given()).equals(model.score(meds))
    assert model.fill(given()).equals(model.fill(meds))
    assert audit(given())[1] == audit(meds)[1]
    weights = []
    for number, data in enumerate((given(), meds)):
        out = tmp_path / str(number)
        pretrain(data, out, settings=with_overrides(EventSettings(), SMALL), console=False)
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.reverse(), "again|backwards"),
        (lambda t: t.drop("code"), "code"),
        (lambda t: t.with_columns(pl.lit(None, pl.String).alias("code")), "code"),
        (lambda t: t.cast({"numeric_value": pl.String}), "numeric_value"),
    ],
)
def test_a_table_is_refused_as_its_file_is(made, tmp_path, change, said):
    _, table, model = made
    wrong = change(table)
    (tmp_path / "m" / "data").mkdir(parents=True)
    path = tmp_path / "m" / "data" / "t.parquet"
    wrong.write_parquet(path)
    texts = []
    for data in (wrong, tmp_path / "m"):
        with pytest.raises(UserError, match=said) as error:
            model.embed(data)
        texts.append(str(error.value).replace(str(path), "the table"))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("data", [None, 3, [1, 2], np.zeros((3, 3))])
def test_what_is_no_table_is_refused(made, data):
    with pytest.raises(UserError, match="no table of events"):
        made[2].embed(data)
