"""Settings are checked where they are made; what a table's fit does not read is refused, not ignored."""

import pandas as pd
import pytest

from unmask.errors import UserError
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.recipes import RECIPES, TableSettings, settings_of
from unmask.training.settings import TrainSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"network": "nope"},
        {"dropout": 2},
        {"dropout": -0.1},
        {"shrink": -500},
        {"steps": -1},
        {"heads": 0},
        {"width": "wide"},
        {"loss": "hinge"},
        {"learning_rate": -1.0},
        {"low": 0.9, "high": 0.1},
        {"train": 3},
    ],
)
def test_wrong_settings(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        TableSettings(**wrong)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("minutes", 1),
        ("checkpoint_seconds", 5),
        ("keep", 3),
        ("accumulate", 2),
        ("compile", "true"),
        ("train.learning_rate", 0.1),
        ("train", {"minutes": 1}),
        ("device", "cuda"),
        ("precision", "bf16"),
    ],
)
def test_what_a_table_does_not_read_is_refused(key, value):
    with pytest.raises(UserError, match=key.removeprefix("train.")):
        settings_of(**{key: value})


@pytest.mark.parametrize(
    ("network", "key", "value"),
    [
        ("rows", "heads", 2),
        ("rows", "architecture", "visible_only"),
        ("rows", "loss", "mse"),
        ("cells", "factors", 3),
        ("cells", "cell", 16),
        ("filter", "layers", 3),
        ("filter", "dropout", 0.3),
        ("filter", "loss", "likelihood"),
    ],
)
def test_what_a_network_does_not_read_is_refused(network, key, value):
    with pytest.raises(UserError, match=f"{key}={value}: the network '{network}' does not read it"):
        settings_of(network=network, **{key: value})
    assert settings_of(network=network).network == network


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (TableSettings(heads=2), "heads=2: the network 'rows' does not read it"),
        (TableSettings(network="filter", layers=3), "layers=3: the network 'filter' does not read it"),
        (TableSettings(train=TrainSettings(device="cuda")), "device=cuda"),
        (TableSettings(train=TrainSettings(compile=True)), "train.compile=True in the fit of a table: nothing reads"),
        (TableSettings(train=TrainSettings(learning_rate=0.1)), r"train.learning_rate=0.1 in the fit of a table"),
    ],
)
def test_what_is_not_read_is_refused_in_an_object_too(given, says):
    with pytest.raises(UserError, match=says):
        TableModel.fit(pd.DataFrame({"x": [1.5, 2.5, 3.0], "y": [1.0, 2.25, 4.5]}), settings=given)


def test_shares_of_copied_rows_are_not_read_by_a_selector_of_ones_own():
    select = "unmask.core.corruption:Uniform"
    with pytest.raises(UserError, match=r"copied=0\.2 with select=.*nothing reads it"):
        settings_of(select=select, copied=0.2)
    for recipe in RECIPES:
        assert settings_of(recipe, select=select).select == select


def test_what_it_reads_arrives():
    settings = settings_of(
        learning_rate="0.1", seed=3, device="cpu", precision="fp32", epochs=2, **{"train.schedule": "cosine"}
    )
    assert (settings.learning_rate, settings.train.seed, settings.train.epochs) == (0.1, 3, 2)
    assert settings.train.schedule == "cosine"
    for recipe in RECIPES:
        assert settings_of(recipe, steps=3).steps == 3
