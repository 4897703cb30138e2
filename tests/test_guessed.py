"""Names of other libraries: taken as what they mean, or refused by a message that names our call."""

from __future__ import annotations

import inspect
from typing import ClassVar

import pytest

import unmask
from unmask.elsewhere import FUNCTIONS, ours
from unmask.errors import UnknownSetting, UserError
from unmask.guessed import Guessed, also_called


@also_called({"tol": "There is no tolerance"}, m="draws", num_rows="rows")
def draw(rows=1, *, draws=2):
    return rows, draws


def test_a_keyword_is_known_by_other_names():
    assert draw(num_rows=5, m=3) == (5, 3)
    assert draw(4) == (4, 2)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"m": 1, "draws": 2}, UserError, "m= and draws="),
        ({"tol": 1}, UserError, "There is no tolerance"),
        ({"num_rows": 1, "rows": 2}, UserError, "num_rows= and rows="),
        ({"draw": 1}, TypeError, "Did you mean 'draws'?"),
    ],
)
def test_what_no_name_means_is_refused(given, error, words):
    with pytest.raises(error, match=words.replace("?", r"\?")):
        draw(**given)


def test_arguments_by_place_are_counted():
    with pytest.raises(UserError, match="num_rows= is rows, and another stands in its place"):
        draw(1, num_rows=2)
    with pytest.raises(TypeError, match="takes rows by place; give the rest by name: rows, draws"):
        draw(1, 2)


def test_the_signature_is_kept():
    assert list(inspect.signature(draw).parameters) == ["rows", "draws"]


def test_unknown_settings_name_what_the_function_itself_takes_first():
    @also_called()
    def fit(data, *, duration=None, **settings):
        raise UnknownSetting(next(iter(settings)), ["width", "steps"])

    with pytest.raises(UserError, match=r"It takes data, duration; and settings of the network: steps, width"):
        fit(1, zzz=3)
    with pytest.raises(UserError, match="Did you mean 'duration'"):
        fit(1, duratoin="time")


class Model(Guessed):
    guesses: ClassVar = {"params_": lambda model: model.weights, "coef_": "weights"}
    weights = 3


def test_an_attribute_is_known_by_other_names():
    assert Model().params_ == 3
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'coef_': weights"):
        _ = Model().coef_
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = Model().other


@pytest.mark.parametrize("module", [unmask, unmask.table])
def test_a_module_names_what_of_ours_does_it_when_it_is_imported_too(module):
    for name in ("IterativeImputer", "MICEData", "GaussianCopulaSynthesizer"):
        with pytest.raises(UserError) as caught:
            getattr(module, name)
        assert ours(name, FUNCTIONS) in str(caught.value)
    with pytest.raises(UserError, match="MaskedImputer"):
        from unmask import IterativeImputer  # noqa: F401
