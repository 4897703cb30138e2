"""Sheets: tables of benchmarks that doc_verify.py does not remake, and the figures of sentences drawn from them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from unmask.errors import UserError
from verify import draw, provenance, remake
from verify.result import FOLDER
from verify.sheet import Sheet, Table, parsed, sheets, written

ROOT = Path(__file__).parents[2]
SHEET = Sheet(
    name="speed",
    title="Speed",
    says="One run.",
    command="python benchmarks/speed.py",
    commit=None,
    date=None,
    processor="two cores",
    seeds=None,
    since="0" * 40,
    sources=("src/unmask/thing.py",),
    tables=(Table(columns=("", "found"), rows=(("ours", "**3** s"), ("theirs", "4 s"))),),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a sheet and a page that shows its table and one of its figures."""
    (tmp_path / "src" / "unmask").mkdir(parents=True)
    (tmp_path / "src" / "unmask" / "thing.py").write_text("x = 1\n")
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "speed.json").write_text(written(SHEET))
    (tmp_path / "docs" / "page.md").write_text(
        "<!-- results: speed -->\n<!-- end -->\nIt takes <!-- figure: speed | ours | found -->9<!-- end -->.\n"
    )
    return tmp_path


def test_every_file_is_as_it_would_be_written():
    found = sheets(ROOT)
    assert len(found) > 50
    for name, sheet in found.items():
        text = (ROOT / FOLDER / f"{name}.json").read_text(encoding="utf-8")
        assert written(sheet) == text, name
        assert parsed(name, json.loads(text)) == sheet
        assert len(sheet.since) == 40
        assert all((ROOT / source).exists() for source in sheet.sources), name


def test_a_page_shows_table_figure_and_what_nobody_recorded(checkout: Path):
    remake.draw_pages(checkout)
    text = (checkout / "docs" / "page.md").read_text()
    assert "| ours | **3** s |" in text
    assert "It takes <!-- figure: speed | ours | found -->3 s<!-- end -->." in text
    assert "`python benchmarks/speed.py`; processor: two cores; not recorded: seeds, date, commit (in the pages" in text
    assert remake.draw_pages(checkout) == []
    listed = {str(one["name"]): one for one in remake.listed(checkout, ())}
    assert listed["speed"]["remade"] is False
    assert "sheet  not recorded" in remake.list_lines([listed["speed"]])[0]
    assert remake.not_remade(checkout, sheets(checkout)).startswith("| command | tables and figures |")


def test_a_page_says_where_the_figures_of_its_sentences_come_from(checkout: Path):
    page = checkout / "docs" / "page.md"
    page.write_text(
        "<!-- figure: speed | theirs | found --><!-- end -->\n<!-- results: figures-of-this-page: -->\n<!-- end -->\n"
    )
    remake.draw_pages(checkout)
    assert "-->4 s<!-- end -->" in page.read_text()
    assert "*Speed.* One run." in page.read_text()


@pytest.mark.parametrize(
    "mark", ["speed | ours | seconds", "speed | nobody | found", "sped | ours | found", "speed | ours | "]
)
def test_a_figure_that_is_nowhere_is_refused(checkout: Path, mark: str):
    text = f"<!-- figure: {mark} -->9<!-- end -->"
    with pytest.raises(UserError):
        draw.redrawn(text, str, remake.figure_of(checkout))


def test_a_broken_sheet_is_refused():
    with pytest.raises(UserError, match="3 cells under 2 columns"):
        Table(columns=("", "a"), rows=(("1", "2", "3"),))
    content = json.loads(written(SHEET))
    with pytest.raises(UserError, match="name 'speed'"):
        parsed("other", content)
    with pytest.raises(UserError, match="sources"):
        parsed("speed", {key: value for key, value in content.items() if key != "sources"})
    twice = Table(columns=("", "found"), rows=(("ours", "1"), ("ours", "2")))
    with pytest.raises(UserError, match="2 rows 'ours'"):
        parsed("speed", content | {"tables": [vars(twice)]}).cell("ours", "found")


def test_a_sheet_is_older_once_a_commit_has_touched_its_code(checkout: Path):
    def git(*words: str) -> str:
        by = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", "-C", str(checkout), *by, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    assert "no commit 000000000" in provenance.changed_since(checkout, SHEET.since, SHEET.sources)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    first = git("rev-parse", "HEAD")
    assert provenance.changed_since(checkout, first, SHEET.sources) == ""
    (checkout / "src" / "unmask" / "thing.py").write_text("x = 2\n")
    git("commit", "-qam", "two")
    assert provenance.changed_since(checkout, first, SHEET.sources).startswith("1 commit to the code it measured")
