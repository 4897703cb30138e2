"""README.md as the package's description: links and pictures hold outside the repository, or are plain words."""

import re
import sys
import types
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
INSIDE = re.compile(r"\]\((?!https?:|#)")


@pytest.fixture
def described(monkeypatch):
    """The function of hatch_build.py; hatchling itself is there only while a package is built."""
    plugin = types.SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", plugin)
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.described


def test_links_and_pictures_lead_to_the_repository(described):
    text = described(README, "https://forge.example/unmask/blob/v0.1.0/")
    assert INSIDE.search(README)
    assert not INSIDE.search(text)
    assert "](https://forge.example/unmask/blob/v0.1.0/docs/how-to/text.md)" in text
    assert "](https://forge.example/unmask/blob/v0.1.0/docs/pictures/four-kinds.png?raw=true)" in text


def test_without_an_address_they_are_words(described):
    text = described(README, None)
    assert not INSIDE.search(text)
    assert "<!--" not in text
    assert "*What four small models say" in text


def test_code_stays_as_it_is(described):
    code = "```python\nx = names[0](3)\n```\n"
    assert described(f"[a](b.md)\n{code}", None) == f"a\n{code}"
