"""The picture of README and of the start page: drawn in a browser from what four small models say.

    python docs/pictures/make.py four-kinds         four-kinds.png; trains four small models first, minutes
                                                    in all, where build/pictures does not hold them
    python docs/pictures/make.py shots SITE OUT     pages of the built site, wide and narrow, light and dark, to look at

The browser is Chromium without a window (Debian: apt-get install chromium).
"""

from __future__ import annotations

import base64
import html
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "build" / "pictures"
WIDTH = 1180
SHOTS = {
    "start": "index.html",
    "tutorial": "tutorials/cox.html",
    "how-to": "how-to/tables.html",
    "reference": "reference/python/table.html",
    "settings": "reference/settings.html",
    "measured": "explanation/measured-tables.html",
}


def text_model() -> Path:
    """A small language model of the docstrings of NumPy: 600 steps."""
    from unmask.modalities.text.network.pretrain import pretrain
    from unmask.modalities.text.reading.documents import docstrings
    from unmask.modalities.text.recipes import TextSettings, with_overrides

    out = MODELS / "text"
    if not out.exists():
        found = (
            text.encode("utf-8", "replace").decode() for source, text in docstrings() if source.startswith("numpy")
        )
        corpus = MODELS / "docstrings.jsonl"
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in dict.fromkeys(found)))
        shape = {"width": 128, "layers": 2, "heads": 2, "slots": 128, "vocabulary": 4096, "batch_slots": 4096}
        how = {"steps": 600, "learning_rate": 3e-3, "warmup": 0.1, "schedule": "linear", "holdout": 0.05}
        pretrain(str(corpus), out, settings=with_overrides(TextSettings(), shape | how), console=False)
    return out


def images_model() -> Path:
    """The model of `unmask demo images`, of 600 steps."""
    from unmask.modalities.images.recipes import ImageSettings, with_overrides
    from unmask.modalities.images.uses.demo import SETTINGS, digits
    from unmask.modalities.images.uses.pretrain import pretrain

    out = MODELS / "images"
    if not out.exists():
        pixels, _, test = digits()
        pretrain(pixels[~test], out, settings=with_overrides(ImageSettings(), SETTINGS | {"steps": 600}), console=False)
    return out


def table_model() -> Path:
    """The folder of `unmask demo table`."""
    from unmask.modalities.table.demo import run_demo

    out = MODELS / "table"
    if not (out / "demo.json").exists():
        run_demo(out, console=False)
    return out


def events_model() -> Path:
    """A model of 600 simulated patients, of 200 steps, with 200 others whom it never saw in `new`."""
    from unmask.modalities.events.recipes import EventSettings, with_overrides
    from unmask.modalities.events.uses.demo import simulate
    from unmask.modalities.events.uses.pretrain import pretrain

    out = MODELS / "events"
    if not (out / "model").exists():
        shutil.rmtree(out, ignore_errors=True)
        simulate(out / "new", 200, 1)
        shape = {"slots": 64, "batch_slots": 4096, "ratio": 0.4, "hide": "event", "width": 64, "layers": 2, "heads": 2}
        settings = with_overrides(EventSettings(), shape | {"steps": 200, "learning_rate": 4e-3})
        pretrain(simulate(out, 600), out / "model", settings=settings, console=False)
    return out


def text_card() -> str:
    """Held-out docstrings with one word hidden, and what the model says; two that it fills right and one it misses."""
    from unmask.modalities.text.tokens.cache import TokenCache
    from unmask.modalities.text.uses.demo import examples
    from unmask.modalities.text.uses.model import load

    folder = text_model()
    model = load(folder)
    found = examples(model, TokenCache.open(folder / "cache"), each=400, tries=400)
    mask = model.tokenizer.mask_token
    well, missed = ([item for item in items if _is_sentence(item["text"], mask)] for items in found)
    rows = []
    for item in (*well[:2], *missed[:1]):
        blank = item["blanks"][0]
        before, _, after = item["text"].partition(mask)
        before, after = " ".join(before.split()[-7:]), " ".join(after.split()[:7])
        best = blank["candidates"][0]
        right = best["value"].strip() == blank["truth"]
        answer = html.escape(best["value"].strip())
        said = f"<b class={'right' if right else 'wrong'}>{answer}</b> {best['probability']:.0%}"
        said += "" if right else f" <small>it was: {html.escape(blank['truth'])}</small>"
        rows.append(
            f"<p class=line>… {html.escape(before)} <span class=hole>&nbsp;</span> {html.escape(after)} …<br>{said}</p>"
        )
    about = f"held-out docstrings; it fills {_accuracy(folder):.0%} of hidden tokens right, here two of three"
    return _card("Text", about, "".join(rows))


def _is_sentence(text: str, mask: str) -> bool:
    """Whether there are words on both sides of the blank, and no signs of tables or code."""
    before, _, after = text.partition(mask)
    near = [*before.split()[-7:], *after.split()[:7]]
    return len(near) == 14 and sum(word.strip(".,").isalpha() for word in near) >= 13


def _accuracy(folder: Path) -> float:
    """Of hidden tokens of held-out texts, at the end of the training."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["validation_accuracy"] for line in lines if "validation_accuracy" in line][-1]


def table_card() -> str:
    """Patients with cells hidden: the imputed value, its 90 % interval, and the truth."""
    import polars as pl

    from unmask.modalities.table.demo import load_study
    from unmask.modalities.table.model import load

    folder = table_model()
    holed, study = pl.read_csv(folder / "with-holes.csv"), load_study()
    cells = load(folder / "model").intervals(holed, coverage=0.9).to_dicts()
    names = ["age", "tgrade", "tsize", "pnodes", "progrec"]
    found = {(c["row"], c["column"]): c for c in cells}
    rows = [i for i in range(60) if sum((i, n) in found for n in names) == 1][:5]
    lines = ["<tr>" + "".join(f"<th>{n}</th>" for n in names) + "</tr>"]
    for i in rows:
        lines.append("<tr>" + "".join(_cell(found.get((i, n)), holed[n][i], study[n][i]) for n in names) + "</tr>")
    return _card(
        "Clinical tables",
        "imputed, with 90 % intervals or probabilities; below, the truth",
        f"<table>{''.join(lines)}</table>",
    )


def _cell(cell: dict[str, Any] | None, seen: Any, truth: Any) -> str:
    if cell is None:
        return f"<td>{seen}</td>"
    if cell["low"] is None:
        shown = f"<b>{cell['category']}</b> {cell['probability']:.0%}"
    else:
        shown = f"<b>{cell['value']:.0f}</b> <small>{cell['low']:.0f} to {cell['high']:.0f}</small>"
    return f"<td class=filled>{shown}<br><small>{truth}</small></td>"


def images_card() -> str:
    """Digits of the test part: the original, with 60 % of the patches hidden, and filled."""
    from PIL import Image

    from unmask.modalities.images.uses.demo import digits
    from unmask.modalities.images.uses.model import load

    pixels, _, test = digits()
    r = load(images_model()).reconstruct(pixels[test][:7], ratio=0.6, seed=3)
    hidden = np.where(r.hidden, 128, r.original[..., 0])
    lines = []
    for pictures in (r.original[..., 0], hidden, r.filled[..., 0]):
        made = []
        for picture in pictures:
            file = io.BytesIO()
            Image.fromarray(picture.astype(np.uint8)).resize((68, 68), Image.Resampling.NEAREST).save(file, "png")
            made.append(f"<img src='data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}'>")
        lines.append(f"<div class=digits>{''.join(made)}</div>")
    return _card("Images", "test digits, 60 % of the patches hidden, and what the model puts there", "".join(lines))


def events_card() -> str:
    """A new patient's visits, the last glucose hidden: its median and interval, and the truth."""
    import polars as pl

    from unmask.modalities.events.uses.model import load

    folder = events_model()
    events = pl.read_parquet(sorted((folder / "new" / "meds" / "data").rglob("*.parquet")))
    ill = events.filter(pl.col("code") == "DIABETES")["subject_id"].unique().sort()
    mine = events.filter(pl.col("subject_id") == ill[0])
    last = mine.filter(pl.col("code") == "GLUCOSE")["time"].max()
    hit = (pl.col("code") == "GLUCOSE") & (pl.col("time") == last)
    truth = mine.filter(hit)["numeric_value"][0]
    work = MODELS / "one-patient"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(folder / "new" / "meds", work)
    shutil.rmtree(work / "data")
    (work / "data").mkdir()
    mine.with_columns(numeric_value=pl.when(hit).then(None).otherwise(pl.col("numeric_value"))).write_parquet(
        work / "data" / "0.parquet"
    )
    filled = load(folder / "model").fill(work, top=0, level=0.9)
    found = filled.filter((pl.col("kind") == "value") & (pl.col("code") == "GLUCOSE")).to_dicts()[0]
    lines = []
    for (moment,), visit in mine.drop_nulls("time").group_by("time", maintain_order=True):
        shown = []
        for code, value in visit.select("code", "numeric_value").iter_rows():
            if code in ("VISIT", "MEDS_BIRTH"):
                continue
            if code == "GLUCOSE" and moment == last:
                shown.append(
                    f"<span class=filled>GLUCOSE <b>{found['value']:.1f}</b> <small>{found['low']:.1f} to "
                    f"{found['high']:.1f}, it was {truth:.1f}</small></span>"
                )
            else:
                shown.append(f"<span>{code}{'' if value is None else f' {value:.1f}'}</span>")
        if shown:
            lines.append(f"<div class=visit><i>{moment:%b %Y}</i>{''.join(shown)}</div>")
    return _card(
        "Patient events", "a simulated patient whom the model never saw, the last glucose hidden", "".join(lines[-4:])
    )


def _card(title: str, about: str, inside: str) -> str:
    return f"<section><h2>{title}</h2><p class=about>{about}</p>{inside}</section>"


STYLE = """
:root { --page: #ffffff; --card: #f6f7f9; --ink: #1c2330; --soft: #667085; --line: #d9dee7; --mark: #dbe9ff;
        --hole: #c3ccd9; --right: #0f7b3f; --wrong: #b42318; }
* { box-sizing: border-box; margin: 0; }
body { background: var(--page); color: var(--ink); font: 16px/1.45 "DejaVu Sans", sans-serif; padding: 14px; }
main { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; }
h2 { font-size: 19px; }
.about, small { color: var(--soft); font-size: 13px; }
.about { margin-bottom: 10px; }
.line { margin: 9px 0; }
.hole { display: inline-block; width: 4.2em; background: var(--hole); border-radius: 4px; }
.right { color: var(--right); } .wrong { color: var(--wrong); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: normal; }
th, td { border-bottom: 1px solid var(--line); padding: 5px 6px; vertical-align: top; }
.filled { background: var(--mark); border-radius: 4px; }
.digits { display: flex; gap: 8px; margin: 7px 0; } .digits img { image-rendering: pixelated; border-radius: 3px; }
.visit { margin: 8px 0; font-size: 13.5px; }
.visit i { display: inline-block; width: 5.4em; color: var(--soft); font-style: normal; }
.visit span { display: inline-block; border: 1px solid var(--line); border-radius: 4px; padding: 1px 6px;
              margin: 2px 4px 2px 0; }
"""


def four_kinds() -> None:
    """Write four-kinds.png: on a light ground with a line around it, so that it stands on a dark page too."""
    cards = "".join(card() for card in (text_card, table_card, images_card, events_card))
    page = MODELS / "four-kinds.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><main>{cards}</main>")
    shot(page.as_uri(), HERE / "four-kinds.png", width=WIDTH, height=_height(page))


def _height(page: Path) -> int:
    """How high a page is, as the browser lays it out."""
    with_script = page.with_suffix(".measured.html")
    measured = "<script>document.title = document.documentElement.scrollHeight</script>"
    with_script.write_text(page.read_text() + measured)
    words = [*CHROMIUM, f"--window-size={WIDTH},100", "--dump-dom", with_script.as_uri()]
    dom = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return int(dom.partition("<title>")[2].partition("<")[0])


CHROMIUM = [
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
]


def shot(address: str, out: Path, *, width: int, height: int, dark: bool = False) -> None:
    """A picture of a page."""
    theme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    size = [f"--window-size={width},{height}", "--force-device-scale-factor=1", "--virtual-time-budget=8000"]
    subprocess.run([*CHROMIUM, *theme, *size, f"--screenshot={out}", address], check=True, capture_output=True)


def shots(site: Path, out: Path) -> None:
    """Pages of the built site, wide and narrow, light and dark."""
    out.mkdir(parents=True, exist_ok=True)
    for name, page in SHOTS.items():
        for form, width, height in (("wide", 1400, 1000), ("narrow", 500, 1000)):
            for dark in (False, True):
                theme = "dark" if dark else "light"
                shot(
                    (site / page).resolve().as_uri(),
                    out / f"{name}-{form}-{theme}.png",
                    width=width,
                    height=height,
                    dark=dark,
                )


def main() -> None:
    """See the top of the file."""
    if sys.argv[1:2] == ["shots"]:
        shots(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:] == ["four-kinds"]:
        four_kinds()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
