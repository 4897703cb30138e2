"""The number in a caption counts what is drawn: of filled pictures, of the report of a run."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest

import unmask
from commands import run
from tiny_images import TINY, bars, class_folder
from unmask.modalities.images.recipes import ImageSettings, with_overrides
from unmask.modalities.images.uses import reconstruct, report
from unmask.modalities.images.uses.drawing import triptych
from unmask.modalities.images.uses.pretrain import pretrain
from unmask.modalities.images.uses.reconstruct import DRAWN, filled_sheet


def first_number(text: str) -> int:
    found = re.search(r"\d[\d,]*", text)
    assert found, text
    return int(found[0].replace(",", ""))


def drawn_of(monkeypatch) -> list[int]:
    """How many pictures each sheet gets from now on."""
    counts: list[int] = []
    plain = reconstruct.sheet
    monkeypatch.setattr(reconstruct, "sheet", lambda pictures, *a: counts.append(len(pictures)) or plain(pictures, *a))
    return counts


@pytest.mark.parametrize("count", [1, 5, DRAWN, 90])
def test_a_sheet_of_filled_pictures_says_how_many_it_shows_of_all_classes(tmp_path, capsys, monkeypatch, count):
    pretrain(bars(), tmp_path / "m", settings=with_overrides(ImageSettings(), TINY | {"steps": 2}), console=False)
    class_folder(tmp_path / "photos", count)
    drawn = drawn_of(monkeypatch)
    said = run(capsys, "fill", tmp_path / "m", tmp_path / "photos", "--ratio", "0.5", "--out", tmp_path / "f.png")[1]
    line = next(line for line in said.splitlines() if "f.png: " in line)
    assert drawn == [min(count, DRAWN)]
    assert first_number(line.split("f.png: ")[1]) == drawn[0]
    assert (f"of {count} pictures" in line) == (count > DRAWN)


def test_a_sheet_is_about_as_high_as_wide_and_spread_over_what_is_sorted(tmp_path):
    pretrain(bars(), tmp_path / "m", settings=with_overrides(ImageSettings(), TINY | {"steps": 2}), console=False)
    pixels, labels = bars(180)
    pixels = pixels[np.argsort(labels, kind="stable")]
    done = unmask.load(tmp_path / "m").reconstruct(pixels, ratio=0.5)
    picture, count = filled_sheet([done])
    assert count == DRAWN
    assert 0.5 < picture.shape[0] / picture.shape[1] < 2
    last = triptych(pixels[-1][..., None], done.hidden[-1], done.filled[-1])
    assert (picture == 255).all(2).any()
    assert any(
        (picture[y : y + last.shape[0], x : x + last.shape[1]] == last).all()
        for y in range(0, picture.shape[0], last.shape[0] + 6)
        for x in range(0, picture.shape[1], last.shape[1] + 6)
    )


@pytest.mark.parametrize("held", [4, 30])
def test_captions_of_a_report_count_what_is_drawn(tmp_path, monkeypatch, held):
    """Each section with pictures: the first number below it is that of its pictures, on the map that of those on it, of
    neighbours that of those whose neighbours are drawn."""
    on_map: list[int] = []
    plain = report.map_picture
    monkeypatch.setattr(report, "map_picture", lambda images, *a: on_map.append(len(images)) or plain(images, *a))
    settings = with_overrides(ImageSettings(), TINY | {"steps": 2, "holdout": held / 60, "examples": True})
    pretrain(bars(60), tmp_path / "m", settings=settings, console=False)
    page = (tmp_path / "m" / "report.html").read_text()
    seen = 0
    for section in re.split("<h2[^>]*>", page)[1:]:
        pictures = section.count("<img ")
        if not pictures:
            continue
        seen += 1
        note = unescape(re.search(r'<p class="note[^"]*">(.*?)</p>', section, re.DOTALL)[1])
        if "Nearest" in section[:20]:  # drawn twice: with those nearest by the model, and by raw pixels
            near = min(6, on_map[0] - 1)
            pictures /= 2 * (near + 1)
            assert f"each with the {near} of {on_map[0] - 1} others" in note
        assert first_number(note) == (on_map[0] if "Map" in section[:20] else pictures), note
    assert seen == 4
