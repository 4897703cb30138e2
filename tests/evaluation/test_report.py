import dataclasses
import json
import re
import subprocess
import sys

import pytest
from markupsafe import Markup

import unmask
from unmask.errors import UserError
from unmask.evaluation.metrics import Estimate
from unmask.evaluation.report import (
    Report,
    filled_examples,
    nearest_words,
    scored_sentences,
    training_curves,
)

EVIL = "<script>alert(1)</script>"


def candidates(*values):
    return [{"value": v, "probability": 0.5 / (i + 1)} for i, v in enumerate(values)]


def curves_of(tmp_path, *records, tail=""):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + tail, encoding="utf-8")
    return training_curves(path)


def test_a_report_shows_what_it_was_given_and_is_self_contained(tmp_path):
    report = Report("A run", "tiny").facts({"steps": 20000, "loss": Estimate(2.5, 2.25, 2.75, 9)})
    report.section("Remarks", "one\n\ntwo", note="a note").chart(Markup("<svg id='mine'></svg>"))
    path = report.write(tmp_path / "new" / "report.html")
    page = path.read_text(encoding="utf-8")
    for text in ("A run", "20,000", "2.25 to 2.75", "<p>one</p><p>two</p>", "a note", "<svg id='mine'>"):
        assert text in page
    assert not re.search(r"<script|<link|<img|https?://", page)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_hostile_text_is_escaped_everywhere():
    blank = {"truth": EVIL, "candidates": candidates(EVIL, "b")}
    page = (
        Report(EVIL, EVIL)
        .facts({EVIL: EVIL})
        .section(EVIL, EVIL, note=EVIL)
        .section("a", filled_examples([{"text": f"{EVIL} [MASK] {EVIL}", "blanks": [blank]}]))
        .section("b", nearest_words([{"word": EVIL, "neighbours": [(EVIL, 0.5)]}]))
        .section("c", scored_sentences([{"text": EVIL, "score": -3.0, "slots": 2}]))
        .chart(EVIL)
        .html()
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 15


def test_a_failed_write_leaves_the_old_report_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    Report("old").write(path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(UserError, match="disk full"):
        Report("new").write(path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert '<h1 dir="auto">old</h1>' in path.read_text()


def test_text_that_is_no_valid_unicode_does_not_break_the_report(tmp_path):
    assert Report("lone \udc80 surrogate").write(tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("truth", "tone", "verdict"),
    [
        ("dog", "hit", "right"),
        (" cat", "near", "in place 2"),
        ("cow", "missed", "not in the top 3"),
        (None, "open", "predicted"),
    ],
)
def test_a_blank_tells_how_well_it_was_predicted(truth, tone, verdict):
    blank = {"truth": truth, "candidates": candidates("dog", "cat", "pig")}
    drawn = filled_examples([{"text": "The [MASK] ran.", "blanks": [blank]}])
    assert f'<mark class="{tone}"' in drawn
    assert verdict in drawn
    assert drawn.count('class="right"') == (tone in ("hit", "near"))
    assert re.sub("<sub>1</sub>|<[^>]+>", "", drawn).startswith(f"The {(truth or 'dog').strip()} ran.")


def test_masks_and_blanks_need_not_match():
    blank = {"truth": "a", "candidates": candidates("a", "b", "c", "d", "e", "f")}
    assert "<b>[MASK]</b>" in filled_examples([{"text": "[MASK] [MASK]", "blanks": [blank]}])
    assert filled_examples([{"text": "none", "blanks": [blank]}]).count("<li") == 5
    assert "No examples" in filled_examples([])
    assert "<mark" in filled_examples([{"text": "<m>", "blanks": [blank]}], mask="<m>")


def test_an_unlikely_sentence_gets_the_longer_bar():
    drawn = scored_sentences(
        [
            {"text": "long but likely", "score": -8.0, "slots": 8},
            {"text": "odd", "score": -4.0, "slots": 2},
            {"text": "", "score": 0.0, "slots": 0},
            {"text": "unknown", "score": None, "slots": 3},
        ]
    )
    assert re.findall(r'class="fill" width="([\d.]+)%"', drawn) == ["50.00", "100.00", "0.00", "0.00"]
    assert "nothing to show" in scored_sentences([])


def test_curves_of_a_run_with_half_a_last_line(tmp_path):
    drawn = curves_of(
        tmp_path,
        {"step": 1, "loss": 9.0, "learning_rate": 1e-4, "slots_per_second": 100.0, "padding_waste": 0.1},
        {"step": 2, "loss": 8.0, "accuracy": 0.1, "validation_loss": 8.5, "validation_accuracy": None},
        tail='{"step": 3, "lo',
    )
    assert "training from 9 to 8, validation 8.5" in drawn
    for title in ("Accuracy", "Learning rate", "Speed", "Padding waste"):
        assert title in drawn
    assert drawn.count("<figure") == 5


def test_curves_know_the_kinds_of_lines(tmp_path):
    drawn = curves_of(
        tmp_path,
        {"kind": "train", "step": 1, "loss": 9.0, "padding_waste": 0.1},
        {"kind": "validation", "step": 1, "loss": 7.0, "seconds": 3},
        {"kind": "checkpoint", "step": 1, "loss": 555.0},
    )
    assert "training 9, validation 7" in drawn
    assert "Padding waste" in drawn
    assert "555" not in drawn


def test_nothing_recorded_is_said(tmp_path):
    empty = [curves_of(tmp_path), curves_of(tmp_path, {"step": 1, "loss": None}, tail="[1]\nnull\n\n")]
    for drawn in (*empty, training_curves(tmp_path / "absent.jsonl")):
        assert drawn == '<p class="none">No metrics were recorded.</p>'


def test_a_long_run_is_drawn_as_means(tmp_path):
    noisy = [{"step": i, "loss": 1.0 + (i % 2)} for i in range(4000)]
    noisy[100]["loss"] = None
    drawn = curves_of(tmp_path, *noisy)
    assert "training from 1.5 to 1.5" in drawn
    assert len(drawn) < 60_000


def test_importing_reports_does_not_import_torch():
    code = "import sys, unmask.evaluation.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_settings_are_a_table_that_begins_with_what_is_not_the_default():
    @dataclasses.dataclass
    class Inner:
        rate: float = 0.1
        warm: bool = True

    @dataclasses.dataclass
    class Outer:
        width: int = 96
        name: str | None = None
        train: Inner = dataclasses.field(default_factory=Inner)

    page = Report("A run").settings(Outer(train=Inner(rate=0.5))).section("Later", "").html()
    shown, folded = page[page.index("Later") :].split("<details>")  # behind all sections
    assert re.findall(r"<td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", shown) == [("train.rate", "0.5", "0.1")]
    rows = re.findall(r"<td>(.*?)</td><td>(.*?)</td>", folded)
    assert rows == [("width", "96"), ("name", "none"), ("train.warm", "true")]


def test_the_default_of_a_setting_is_that_of_its_kind():
    """Every report said that the rates and batches of a default run were not the default."""
    for kind in (unmask.text, unmask.images, unmask.events, unmask.table):
        assert "<th scope" not in Report("A run").settings(kind.Settings()).html().split("<details>")[0]


def test_nothing_is_wider_than_its_page():
    """Long commands made the page of a phone three times as wide as its screen."""
    assert re.search(r"pre \{[^}]*white-space: pre-wrap", Report("A run").html())
