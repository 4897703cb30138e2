"""doc_verify.py: results are remade, compared with their files, drawn into pages, and marked once code changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import doc_verify
from unmask.errors import UserError
from verify import declared, draw, provenance, remake
from verify.result import FOLDER, Result, read, recorded
from verify.sheet import sheets

ROOT = Path(__file__).parents[2]

TINY = Result(
    name="tiny",
    title="A tiny result",
    says="Two made-up models.",
    measure="test_verify_measure:measure",
    rule="rule",
    seeds=(0, 1, 2),
    sources=("src/unmask/thing.py",),
    given={"shift": 0.0},
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one source, one page and one declared result."""
    (tmp_path / "src" / "unmask").mkdir(parents=True)
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "src" / "unmask" / "thing.py").write_text("x = 1\n")
    (tmp_path / "docs" / "how-to" / "page.md").write_text("Before\n<!-- results: tiny -->\n<!-- end -->\nAfter\n")
    (tmp_path / "test_verify_measure.py").write_text(
        "def measure(*, seed, shift):\n"
        "    return {'ours': {'accuracy': 0.8 + 0.01 * seed + shift, 'steps': 3.0}, 'rule': {'accuracy': 0.5}}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(declared, "RESULTS", (TINY,))
    return tmp_path


def measured(root: Path, **given: float):
    return remake.remade(replace(TINY, given=given or TINY.given), root)


def test_a_result_has_mean_interval_and_gain_over_its_rule(checkout: Path):
    record = measured(checkout)
    ours = record.row("ours", "accuracy")
    assert ours is not None
    assert ours.values == pytest.approx((0.8, 0.81, 0.82))
    assert ours.value == pytest.approx(0.81)
    assert ours.low == pytest.approx(0.81 - 4.302653 * 0.01 / 3**0.5, abs=1e-6)
    assert [(g.figure, round(g.value, 6)) for g in record.gains] == [("accuracy", 0.31)]
    record.write(checkout)
    assert read(checkout, "tiny") == replace(record, about=json.loads(json.dumps(record.about)))
    assert read(checkout, "other") is None


def test_a_result_without_its_trivial_rule_is_refused():
    with pytest.raises(ValueError, match="no 'rule' among"):
        recorded(TINY, [{"ours": {"accuracy": 1.0}}], {})
    with pytest.raises(ValueError, match="other figures"):
        recorded(TINY, [{"ours": {"a": 1.0}, "rule": {"a": 1.0}}, {"ours": {"b": 1.0}, "rule": {"a": 1.0}}], {})


def test_what_moved_and_whether_it_lies_within(checkout: Path):
    old = measured(checkout)
    same = remake.moved(old, measured(checkout))
    assert [m.within for m in same] == [True, True, True]
    there = {(m.model, m.figure): m for m in remake.moved(old, measured(checkout, shift=0.1))}
    assert there["ours", "accuracy"].within is False
    assert there["ours", "accuracy"].by == pytest.approx(0.1)
    assert there["rule", "accuracy"].within is True
    lines = remake.moved_lines(there.values())
    assert "OUTSIDE" in lines[1]
    assert "+0.1000" in lines[1]
    assert [m.old for m in remake.moved(None, old)] == [None] * 3


def test_a_record_is_older_once_its_code_has_changed(checkout: Path):
    record = measured(checkout)
    record.write(checkout)
    assert [one["older"] for one in remake.listed(checkout)] == [""]
    (checkout / "src" / "unmask" / "other.py").write_text("not measured")
    assert provenance.older(checkout, dict(record.about), TINY.sources) == ""
    (checkout / "src" / "unmask" / "thing.py").write_text("x = 2\n")
    assert "the code it measured has changed" in str(remake.listed(checkout)[0]["older"])
    assert "older than the code: the code" in remake.list_lines(remake.listed(checkout))[0]
    assert draw.OLDER in str(remake.table_of(checkout)("tiny"))
    with pytest.raises(UserError, match="no source there"):
        provenance.digest(checkout, ["src/unmask/gone.py"])


def test_pages_are_drawn_from_files_alone(checkout: Path):
    page = checkout / "docs" / "how-to" / "page.md"
    remake.draw_pages(checkout)
    assert "*Not measured yet: `python docs/make/doc_verify.py tiny --write`.*" in page.read_text()
    measured(checkout).write(checkout)
    assert remake.draw_pages(checkout) == [page]
    text = page.read_text()
    assert text.startswith("Before\n<!-- results: tiny -->\n| A tiny result | accuracy | steps |")
    assert text.endswith("<!-- end -->\nAfter\n")
    for part in ("**ours** | 0.810 (0.785 to 0.835)", "rule | 0.500 (0.500 to 0.500)", "+0.310", "Higher is better"):
        assert part in text
    assert remake.draw_pages(checkout) == []
    (checkout / "src" / "unmask" / "thing.py").write_text("x = 2\n")
    assert remake.draw_pages(checkout) == [page]
    assert draw.without_age(page.read_text()) == text
    page.write_text("<!-- results: tiny -->\nno end")
    assert draw.pages(checkout) == []
    with pytest.raises(UserError, match="without an end"):
        draw.redrawn(page.read_text(), str)


def remade(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `doc_verify.py WORDS`."""
    with pytest.raises(SystemExit) as ended:
        doc_verify.main([str(w) for w in words])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def test_the_command(checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    code, out, _ = remade(capsys, "--quick", "--root", checkout)
    assert code == 0
    assert "not recorded" in out
    assert not (checkout / FOLDER).exists()
    code, out, _ = remade(capsys, "tiny", "--write", "--root", checkout)
    assert code == 0
    assert (checkout / FOLDER / "tiny.json").exists()
    assert "A tiny result" in (checkout / "docs" / "how-to" / "page.md").read_text()
    code, out, _ = remade(capsys, "--list", "--root", checkout, "--json")
    assert [one["name"] for one in json.loads(out)["results"]] == ["tiny"]
    (checkout / "test_verify_measure.py").write_text(
        "def measure(*, seed, shift):\n"
        "    return {'ours': {'accuracy': 0.1, 'steps': 3.0}, 'rule': {'accuracy': 0.5}}\n"
    )
    monkeypatch.delitem(__import__("sys").modules, "test_verify_measure")
    code, out, _ = remade(capsys, "--root", checkout)
    assert code == 1
    assert "1 outside the recorded interval" in out
    for words in (["tyni"], ["--list", "--draw"]):
        assert remade(capsys, *words, "--root", checkout)[0] == 2
    assert remade(capsys, "--list", "--root", checkout / "docs")[0] == 2


def test_the_pages_of_this_repository_are_as_their_files_have_them():
    find, figure = remake.table_of(ROOT), remake.figure_of(ROOT)
    for path in draw.pages(ROOT):
        text = path.read_text(encoding="utf-8")
        assert draw.without_age(draw.redrawn(text, find, figure, place=str(path))) == draw.without_age(text), path


def test_what_is_declared_is_there():
    names = [r.name for r in declared.RESULTS]
    assert len(set(names)) == len(names)
    for result in declared.RESULTS:
        provenance.digest(ROOT, result.sources)
        record = read(ROOT, result.name)
        if record is not None:
            assert (record.seeds, record.rule, record.command) == (tuple(result.seeds), result.rule, result.command)
    copied = sheets(ROOT)
    assert {path.stem for path in (ROOT / FOLDER).glob("*.json")} - set(copied) <= set(names)
    drawn = {name for path in draw.pages(ROOT) for _, name, _, _ in draw.MARKED.findall(path.read_text("utf-8"))}
    assert {result.name for result in declared.RESULTS if result.quick} <= drawn
    shown = {m[2] for path in draw.pages(ROOT) for m in draw.INLINE.finditer(path.read_text("utf-8"))}
    assert set(copied) == (drawn | shown) & set(copied)
