"""Recommendations meet the wishes, or say which one they do not meet; every row has its source."""

import re

import pytest

from commands import run
from unmask.errors import UserError
from unmask.families import FAMILIES
from unmask.families.catalogue import CHECKPOINTS, DOMAINS, SIZES, recommend


def test_every_row_has_its_source():
    names = {f.name for f in FAMILIES}
    for c in CHECKPOINTS:
        assert re.fullmatch(r".+ 20\d\d, arXiv:\d{4}\.\d{5}", c.paper), c.name
        assert c.family in names
    assert len({c.name for c in CHECKPOINTS}) == len(CHECKPOINTS)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_kept_and_a_domain_that_is_not_met_is_said(size, domain):
    found = recommend(size=size, domain=domain)
    assert all(c["parameters"] <= SIZES[size] for c in found)
    for c in found:
        assert bool(c["unmet"]) == (c["domain"] != domain)
    if found[0]["unmet"]:
        assert "does not meet size" in found[0]["unmet"][0]


def test_each_wish_that_is_not_known_is_named():
    with pytest.raises(UserError) as wrong:
        recommend(size="base", domain="klinik")
    assert wrong.value.what == "not known: domain 'klinik'"
    assert "clinical" in wrong.value.hint
    assert "tiny" not in wrong.value.hint
    with pytest.raises(UserError, match="size 'huge', domain 'x', context 0, language 'german'") as wrong:
        recommend(size="huge", domain="x", context=0, languages=("german",))
    assert "tiny" in wrong.value.hint


@pytest.mark.parametrize(
    ("wishes", "way"),
    [
        ({"context": 10**6}, "context: .*8192"),
        ({"languages": ("fr",), "size": "tiny"}, "size: .*camembert"),
        ({"languages": ("sw",), "size": "small"}, "size"),
    ],
)
def test_what_stands_in_the_way_is_named(wishes, way):
    with pytest.raises(UserError) as wrong:
        recommend(**wishes)
    assert re.search(f"without the wish for {way}", wrong.value.hint)


def test_the_command_shows_source_and_what_is_not_met(capsys):
    code, out, _ = run(capsys, "recommend", "--size", "small", "--domain", "clinical")
    assert code == 0
    assert out.startswith("not met: domain clinical: ")
    assert "Bio_ClinicalBERT (108 M parameters: base" in out.splitlines()[0]
    assert "source: " in out
