"""A model folder says which kind of data it is of."""

from __future__ import annotations

import pytest

from unmask.errors import UserError
from unmask.kinds import kind_of


def test_a_folder_without_a_word_is_text(tmp_path):
    assert kind_of(tmp_path) == "text"
    assert kind_of("somebody/some-model") == "text"


def test_the_folder_says_its_kind(tmp_path):
    (tmp_path / "unmask.json").write_text('{"kind": "images"}')
    assert kind_of(tmp_path) == "images"


@pytest.mark.parametrize(("content", "message"), [('{"kind": "imags"}', "'images'"), ("{", "not JSON")])
def test_what_is_wrong_is_named(tmp_path, content, message):
    (tmp_path / "unmask.json").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        kind_of(tmp_path)
    assert "unmask.json" in str(caught.value)
