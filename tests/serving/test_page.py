"""The page in a real browser: hide, fill, edit, paint, for all kinds of data, by mouse and by keyboard."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chromium import PROGRAM, Chromium
from running_server import counting, prefixed, running
from unmask.serving.keys import Keys

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")
SHOTS = os.environ.get("UNMASK_TEST_SHOTS")
"""Folder for pictures of every part, light and dark, wide and narrow; to be looked at."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Chromium(tmp_path_factory.mktemp("chromium"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def server(text_served, table_served, images_served, classifier_served, deep_served, events_served, segmenter_served):
    served = {**text_served, "table": table_served, "picture": images_served, "patient": events_served}
    served |= {"classifier": classifier_served, "deep": deep_served, "segmenter": segmenter_served}
    with running({**served, "other": counting()}) as asked:
        yield asked


@pytest.fixture
def page(browser, server):
    """Opens the page for a model."""

    def opened(name):
        browser.said.clear()
        browser.go("about:blank")
        browser.go(f"{server.url}/#{name}")
        browser.until(f"document.title === '{name}: unmask'")
        return browser

    yield opened
    assert browser.said == []


def shots(page, name):
    if SHOTS:
        folder = Path(SHOTS)
        for scheme in ("light", "dark"):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            for width in (1100, 390):
                page.size(width, 900)
                page.shot(folder / f"{name}-{scheme}-{width}.png")
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    for width in (1100, 390):
        page.size(width, 900)
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width
    page.size(1100, 900)


def test_text_is_hidden_by_a_press_and_filled(page):
    p = page("masked")
    p.until("document.querySelector('.filled')")
    before = p.run("document.querySelector('.filled').textContent")
    words = p.run("document.querySelectorAll('.tokens button').length")
    assert words > 5
    p.run("document.querySelectorAll('.tokens button')[4].focus()")
    p.key("Enter", "\r")  # by keyboard
    p.until("document.querySelectorAll('.tokens button[aria-pressed=true]').length === 2")
    p.until(f"document.querySelector('.filled').textContent !== {before!r}")
    assert p.run("document.querySelectorAll('#panel section')[0].querySelectorAll('.bars').length") >= 2
    assert p.run("document.getElementById('said').textContent").startswith("Filled: ")
    p.run("[...document.querySelectorAll('#panel input[type=checkbox]')][1].click()")
    p.until("document.querySelector('.tokens.coloured button[title]')")
    assert "nats" in p.run("document.querySelector('.tokens button[title]').getAttribute('aria-label')")
    shots(p, "text")


def test_tasks_answer_on_the_page(page):
    for name in ("classify", "tag", "answer"):
        p = page(name)
        p.run("document.querySelector('#panel button.main').click()")
        p.until("document.querySelector('#panel [aria-live] .bars, #panel [aria-live] .filled')")
    shots(p, "answer")


def test_a_row_is_edited_and_its_cells_predicted(page):
    p = page("table")
    p.until("document.querySelectorAll('.cell').length === 7")
    p.until("document.querySelector('svg .curve')")
    p.run("document.querySelector('button[aria-label=\"Clear age\"]').click()")
    p.until("document.querySelector('.cell output').textContent.includes(' to ')")
    p.run(
        "(() => { const s = document.querySelector('.cell select'); s.value = '';"
        " s.dispatchEvent(new Event('input')); })()"
    )
    p.until("document.querySelectorAll('.cell output .bars li').length === 2")
    shots(p, "table")
    p.run("[...document.querySelectorAll('button.main')].pop().click()")
    p.until("document.querySelectorAll('section tbody tr').length === 5")


def test_a_picture_is_painted_by_mouse_and_by_keys(page):
    p = page("picture")
    p.until("document.querySelectorAll('.pictures img').length === 3")
    shown = "document.querySelectorAll('.pictures img')[1].src"
    before = p.run(shown)
    p.run("window.box = document.querySelector('canvas').getBoundingClientRect()")
    box = p.run("[box.x, box.y, box.width]")
    p.drag((box[0] + 5, box[1] + 5), (box[0] + box[2] - 5, box[1] + 5))
    p.until(f"{shown} !== {before!r}")
    before = p.run(shown)
    p.run("document.querySelector('canvas').focus()")
    for key, text in (("ArrowDown", ""), (" ", " "), ("Enter", "\r")):
        p.key(key, text)
    p.until(f"{shown} !== {before!r}")
    assert "of the pixels" in p.run("document.getElementById('said').textContent")
    shots(p, "picture")


def choose(p, name, content):
    """Give the page a file, as its user does."""
    p.run(
        f"""(() => {{
        const files = new DataTransfer();
        const bytes = Uint8Array.from(atob("{base64.b64encode(content).decode()}"), (c) => c.charCodeAt(0));
        files.items.add(new File([bytes], "{name}"));
        const chooser = document.querySelector("input[type=file]");
        chooser.files = files.files;
        chooser.dispatchEvent(new Event("change"));
        }})()"""
    )


def test_the_page_gives_the_class_that_the_server_gives(page, server):
    """Colours are weighed by the server alone: red is 54 of 255 to a browser's filter, 76 to a grey model."""
    p = page("classifier")
    for channel in range(3):
        colour = np.zeros((30, 40, 3), np.uint8)
        colour[..., channel] = np.where(np.arange(40) < 25, 255, 0)
        buffer = io.BytesIO()
        Image.fromarray(colour).save(buffer, "PNG")
        p.until("document.querySelector('.bars')")
        p.run("document.querySelector('.bars').remove()")
        (drop if channel else choose)(p, "a.png", buffer.getvalue())
        p.until("document.querySelector('.bars')")
        lines = base64.encodebytes(buffer.getvalue()).decode()  # as MIME and many clients write it
        status, found = server.post("/models/classifier/classify", {"images": [lines]})
        assert status == 200, found
        shares = sorted(found["results"][0]["probabilities"].items(), key=lambda pair: -pair[1])
        texts = "[...e.querySelectorAll('span')].map((s) => s.textContent)"
        shown = p.run(f"[...document.querySelectorAll('.bars li')].map((e) => {texts})")
        assert [name for name, _ in shown] == [name for name, _ in shares]
        percents = [float(share.removesuffix("%")) for _, share in shown]
        np.testing.assert_allclose(percents, [100 * share for _, share in shares], rtol=0.051)  # two digits are shown


def test_a_model_of_deep_pictures_asks_for_one(page):
    p = page("deep")
    p.until("document.querySelector('#panel section')")
    assert "5 channels of uint16" in p.run("document.getElementById('panel').innerText")
    assert not p.said
    buffer = io.BytesIO()
    np.save(buffer, np.random.default_rng(0).integers(0, 60_000, (12, 12, 5), np.uint16))
    choose(p, "a.npy", buffer.getvalue())
    p.until("document.querySelectorAll('.pictures img').length === 3")


def test_events_are_hidden_and_added(page):
    p = page("patient")
    p.until("document.querySelector('.risk')")
    risks = "[...document.querySelectorAll('.risk')].map((e) => e.textContent).join()"
    p.until(f"{risks}.includes(',')")  # of the question, and of the outcome
    before = p.run(risks)
    p.run("document.querySelector('tbody input[type=checkbox]').click()")
    p.until(f"{risks} !== {before!r}")
    assert p.run("document.querySelectorAll('svg .gone').length") == 1
    rows = p.run("document.querySelector('tbody').rows.length")
    p.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Add an event').click()")
    assert p.run("document.querySelector('tbody').rows.length") == rows + 1
    p.until("document.body.innerText.includes('Likeliest next events')")
    shots(p, "patient")


def test_all_of_an_event_is_seen_on_a_narrow_page(page):
    p = page("patient")
    p.until("document.querySelector('.risk')")
    p.size(390, 900)
    beyond = "[...document.querySelectorAll('table.patient input, table.patient button')].filter((e) => "
    beyond += "e.getBoundingClientRect().right > document.documentElement.clientWidth).length"
    assert p.run(beyond) == 0
    p.size(1100, 900)


def test_other_kinds_are_asked_in_json_and_mistakes_are_shown(page):
    p = page("other")
    p.run("document.querySelector('button.main').click()")
    p.until("document.querySelector('pre').textContent.includes('lengths')")
    p.run("document.querySelector('textarea').value = '{'")
    p.run("document.querySelector('button.main').click()")
    p.until("!document.getElementById('error').hidden")
    assert "not JSON" in p.run("document.getElementById('error').textContent")


def test_everything_has_a_name_for_those_who_hear_the_page(page):
    for name in ("masked", "table", "picture", "patient"):
        p = page(name)
        p.until("document.querySelector('#panel section')")
        nameless = p.run(
            "[...document.querySelectorAll('input, select, textarea, button, canvas, img, svg')]"
            ".filter((e) => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.alt)"
            ".filter((e) => !e.textContent.trim()).map((e) => e.outerHTML.slice(0, 120))"
        )
        assert nameless == []


def test_the_requests_are_listed_without_scripts(browser, server):
    browser.go(f"{server.url}/docs")
    browser.until("document.body.innerText.includes('/models/masked/fill')")
    shots(browser, "docs")


def test_a_key_is_asked_for(browser, tmp_path):
    (tmp_path / "keys").write_text("a-key-of-sixteen-or-more\n")
    with running({"m": counting()}, keys=Keys(tmp_path / "keys")) as server:
        browser.go(f"{server.url}/")
        browser.until("!document.getElementById('key-form').hidden")
        browser.run("document.getElementById('key').value = 'a-key-of-sixteen-or-more'")
        browser.run("document.querySelector('#key-form button').click()")
        browser.until("document.title === 'm: unmask'")
        browser.run("document.querySelector('nav a').click()")
        browser.until("document.body.innerText.includes('/models/m/length')")
    browser.said.clear()


def test_under_a_prefix(browser):
    """As behind a proxy that hands /ward/... on as /..."""
    with running({"m": counting()}) as server, prefixed(server.port, "/ward") as url:
        browser.go(f"{url}/ward/")
        browser.until("document.title === 'm: unmask'")
        assert browser.run("getComputedStyle(document.querySelector('header')).display") == "flex"
        browser.run("document.querySelector('button.main').click()")
        browser.until("document.querySelector('pre').textContent.includes('lengths')")
        browser.run("document.querySelector('nav a').click()")
        browser.until("document.body.innerText.includes('/models/m/length')")
    assert browser.said == []


def drop(p, name, content):
    """Drop a file on the first part of the page, as its user does."""
    p.run(
        f"""(() => {{
        const files = new DataTransfer();
        const bytes = Uint8Array.from(atob("{base64.b64encode(content).decode()}"), (c) => c.charCodeAt(0));
        files.items.add(new File([bytes], "{name}"));
        const area = document.querySelector("#panel section");
        area.dispatchEvent(new DragEvent("drop", {{ dataTransfer: files, bubbles: true, cancelable: true }}));
        }})()"""
    )


def slide(p, value):
    p.run(
        "(() => { const s = document.querySelector('input[type=range]');"
        f" s.value = {value}; s.dispatchEvent(new Event('input')); }})()"
    )


def test_a_picture_is_dropped_and_its_mask_lies_over_it(page, server):
    p = page("segmenter")
    pixels = np.random.default_rng(0).integers(0, 60, (40, 50)).astype(np.uint8)
    pixels[10:25, 12:34] += 150
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    drop(p, "spot.png", buffer.getvalue())
    p.until("document.querySelectorAll('.classes li').length === 2")
    status, found = server.post(
        "/models/segmenter/segment", {"images": [base64.b64encode(buffer.getvalue()).decode()], "draw": True}
    )
    assert status == 200
    (row,) = found["results"]
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(row["mask"]))))
    assert (mask[14:21, 16:30] == 255).mean() > 0.9
    assert (mask[30:] == 0).mean() > 0.9
    assert p.run("[document.querySelector('canvas').width, document.querySelector('canvas').height]") == [50, 40]
    shown = """(() => {
        const copy = Object.assign(document.createElement("canvas"), { width: 50, height: 40 });
        const pen = copy.getContext("2d");
        pen.drawImage(document.querySelector("canvas"), 0, 0);
        return [...pen.getImageData(12, 10, 1, 1).data].slice(0, 3);
    })()"""
    picture, drawn = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(row[name]))))[10, 12].astype(float)
        for name in ("picture", "drawn")
    )
    np.testing.assert_allclose(p.run(shown), (picture + drawn) / 2, atol=2)
    slide(p, 0)
    np.testing.assert_allclose(p.run(shown), picture, atol=1)
    assert p.run("document.querySelector('a[download]').getAttribute('download')") == "spot_mask.png"
    assert p.run("document.querySelector('a[download]').href").endswith(row["mask"])
    assert "Shares of the picture" in p.run("document.getElementById('said').textContent")
    slide(p, 50)
    shots(p, "segmenter")
