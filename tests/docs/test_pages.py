"""The pages: links lead somewhere, every page has its place, every public name and setting is described."""

from __future__ import annotations

import doctest
import itertools
import re
import tomllib
from pathlib import Path

import pytest

import doc_blocks
import doc_links
from doc_commands import every_option
from doc_links import broken, links, pages
from doc_names import MODULES, all_names, homes, offered
from doc_reference import counts, made
from doc_settings import CLASSES, fields
from doc_site import for_the_site, llms, navigation, ordered, page_texts

DOCS = Path(__file__).parents[2] / "docs"
PARTS = ("tutorials", "how-to", "reference", "explanation")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return pages() | made()


def test_no_link_is_broken(texts: dict[str, str]):
    assert sum(len(links(text)) for text in texts.values()) > 200
    assert list(broken(texts)) == []


def test_a_broken_link_is_found():
    texts = {"docs/a.md": "# One\n[x](b.md#two) [y](c.md) [z](#one) `[w](d.md)`", "docs/b.md": "# Three"}
    assert list(broken(texts)) == ["docs/a.md: b.md#two: no such heading", "docs/a.md: c.md: no such file"]


def test_every_page_is_in_one_of_the_parts_and_their_index_names_it(texts: dict[str, str]):
    """A page that stands elsewhere, such as one of before the four parts, belongs into one of them."""
    written = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")}
    assert {p for p in written if p.partition("/")[0] not in PARTS} == {"index.md", "design.md", "skill/SKILL.md"}
    for part in PARTS:
        named = " ".join(links(texts[f"docs/{part}/index.md"]))
        assert [
            p for p in written if p.startswith(part) and not p.endswith("index.md") and Path(p).name not in named
        ] == []


def test_every_public_name_has_a_docstring_and_is_in_the_reference(texts: dict[str, str]):
    bare, every = counts()
    assert bare == []
    assert every > 350
    headings = {h for name, text in texts.items() for h in re.findall(r"^#{2,3} (\S+)$", text, flags=re.M)}
    assert [name.title for name in all_names() if name.title not in headings] == []
    assert {id(thing) for place in MODULES for thing in offered(place).values()} == set(homes())


def test_every_option_is_on_the_page_of_the_command_line(texts: dict[str, str]):
    page = texts["docs/reference/command-line.md"]
    for command, options in every_option().items():
        about = page.split(f"\n## unmask {command}\n")[1].split("\n## ")[0]
        assert [o for o in options if f"`{o}" not in about and f" {o}" not in about and f",{o}" not in about] == [], (
            command
        )


@pytest.mark.parametrize("title", CLASSES)
def test_every_setting_is_described(title: str):
    assert [name for name, _, _, meaning in fields(CLASSES[title][0]) if not meaning] == []


def test_the_site_and_llms_txt_have_every_page():
    texts = page_texts()
    assert set(texts) == {"index.md", *(path for paths in ordered(texts).values() for path in paths)}
    assert sum(map(len, ordered(texts).values())) == len(texts) - 1  # each stands in one part
    assert all(f"]({path})" in llms(texts) for path in texts if path != "index.md")
    parts = tomllib.loads(navigation(texts))["nav"]
    assert [name for part in parts for name in part] == ["Start", "Tutorials", "How-to", "Reference", "Explanation"]


def test_every_table_of_the_site_stands_apart():
    """A table right behind a sentence is no table but the end of that sentence."""
    for path, text in page_texts().items():
        lines = re.sub(r"^```.*?^```$", "", for_the_site(path, text), flags=re.M | re.S).split("\n")
        glued = [b for a, b in itertools.pairwise(lines) if b.startswith("|") and a.strip() and not a.startswith("|")]
        assert glued == [], path


@pytest.mark.parametrize("module", [doc_blocks, doc_links])
def test_the_examples_of_the_scripts_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
