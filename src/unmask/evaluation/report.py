"""The report of a run: one HTML file that needs nothing beside it, and the pictures of text that go into it.

Everything is escaped unless it is already `Markup`, which only this package's own builders make: the text
shown comes from corpora and models, and the page forbids scripts and outside resources as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from unmask.evaluation.card import card_if_any, json_records
from unmask.evaluation.charts import bar_rows, cell_text, drawn, line_chart, percent_of, table, templates
from unmask.version import __version__
from unmask.writing import final_place, written

_SMOOTHED = 200  # a training curve is drawn with at most this many points, each a mean of successive records


class Report:
    """A page of header cards and sections, in the order they were added. Methods can be chained.

    >>> page = Report("A run").facts({"steps": 1200}).section("Remarks", "a < b").html()
    >>> "1,200" in page and "a &lt; b" in page
    True
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self._facts: list[tuple[str, Markup]] = []
        self._sections: list[dict[str, Any]] = []
        self._settings: dict[str, Any] | None = None
        self._use: dict[str, Any] | None = None

    def facts(self, facts: Mapping[str, Any]) -> Report:
        """Add header cards: name -> text, number or `Estimate` (its interval is set small)."""
        self._facts += [(str(name), cell_text(value)) for name, value in facts.items()]
        return self

    def section(self, heading: str, body: str | Markup = "", note: str = "") -> Report:
        """Start a section. Plain text is escaped, blank lines part its paragraphs; `note` is set small."""
        self._sections.append({"heading": heading, "body": _paragraphs(body), "charts": [], "note": note})
        return self

    def chart(self, svg: Markup) -> Report:
        """Add a chart to the last section; several in a row stand side by side where there is room."""
        if not self._sections:
            self.section("")
        self._sections[-1]["charts"].append(escape(svg))
        return self

    def settings(self, settings: Any) -> Report:
        """The settings of a run, a dataclass, as a table of those that are not its default, with the others folded
        below; it stands behind all sections, wherever these are added after it."""
        rows = _settings(settings)
        changed, usual = [row for row in rows if row[2]], [row[:2] for row in rows if not row[2]]
        body = table(("setting", "value", "default"), changed) if changed else Markup("")
        body += drawn("folded", f"{len(usual)} settings at their default", table(("setting", "value"), usual))
        self._settings = {"heading": "Settings", "body": body, "charts": [], "note": ""}
        return self

    def use(self, body: str | Markup, heading: str = "Use this model") -> Report:
        """What to do with what the page is about; it stands at the end, wherever sections are added after it."""
        self._use = {"heading": heading, "body": _paragraphs(body), "charts": [], "note": ""}
        return self

    def of_model(self, folder: str | Path) -> Report:
        """End with the figures of the model in a folder and with how to use it, as its card has them."""
        card = card_if_any(Path(folder), name=str(final_place(folder)))
        if card is None:
            return self
        if card.figures and card.shown:
            head, *rows = card.figure_rows()
            several = len({f.of for f in card.figures}) > 1
            heading = "Beside rules without a model" if several else "Figures"
            self.section(heading, table(head, rows), note=card.judged_on)
        return self.use(card.use.html())

    def html(self) -> str:
        """The page."""
        return (
            templates()
            .get_template("report.html.jinja")
            .render(
                title=self.title,
                subtitle=self.subtitle,
                facts=self._facts,
                sections=[*self._sections, *filter(None, (self._settings, self._use))],
                version=__version__,
            )
        )

    def write(self, path: str | Path) -> Path:
        """Write the page to `path`, whole or not at all, making its folder where needed; returns the path.

        A page in the folder of a model ends with its held-out figures beside rules (where the page has no table of them
        already) and with how to use the model.
        """
        path = Path(path)
        if self._use is None and (path.parent / "unmask.json").exists():
            self.of_model(path.parent)
        page = self.html()
        path.parent.mkdir(parents=True, exist_ok=True)
        with written(path) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="replace")  # lone surrogates become '?'
        return path


def _settings(settings: Any, usual: Any = None, prefix: str = "") -> list[tuple[str, str, str]]:
    """(name, value, default where it differs) of every field, those of inner dataclasses as `outer.inner`; `usual`
    holds the defaults of an inner one, which the outer one may have set otherwise."""
    rows = []
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{prefix}{field.name}"
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = default if usual is None else getattr(usual, field.name)
        if dataclasses.is_dataclass(value):
            rows += _settings(value, default if isinstance(default, type(value)) else None, f"{name}.")
            continue
        differs = default is not dataclasses.MISSING and default != value
        rows.append((name, _setting(value), _setting(default) if differs else ""))
    return rows


def _setting(value: Any) -> str:
    """As `--set` takes it."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def filled_examples(items: Iterable[Mapping[str, Any]], *, mask: str = "[MASK]") -> Markup:
    """Texts with their blanks filled in, and below each the candidates the model held most likely. A blank shows the
    true word: green where it was the first candidate, amber where among the others, red where it was missed. Without a
    truth it shows the first candidate.

    Args:
        items: each `{"text": "a [MASK] b", "blanks": [{"truth": "word", "candidates": [{"value": "word",
            "probability": 0.7}, ...]}, ...]}`, blanks in reading order; at most five candidates are drawn. Masks
            without a blank stay as they are.
    """
    shown = [(str(item["text"]).split(mask), [_blank(blank) for blank in item.get("blanks", ())]) for item in items]
    return drawn("examples", shown, mask) if shown else _nothing("No examples.")


def _blank(blank: Mapping[str, Any]) -> dict[str, Any]:
    """One blank: how well it was predicted, and its candidates as rows of bars."""
    truth = None if blank.get("truth") is None else str(blank["truth"])
    guesses = [(str(c["value"]), _number(c.get("probability"))) for c in list(blank.get("candidates", ()))[:5]]
    values = [value.strip() for value, _ in guesses]
    rank = values.index(truth.strip()) if truth and truth.strip() in values else None
    if truth is None:
        tone, verdict = "open", "predicted"
    elif rank is None:
        tone, verdict = "missed", f"missed: not in the top {len(values)}"
    else:
        tone, verdict = ("near", f"in place {rank + 1}") if rank else ("hit", "right")
    shown = truth if truth is not None else (guesses[0][0] if guesses else "?")
    rows = bar_rows((value, probability, i == rank) for i, (value, probability) in enumerate(guesses))
    return {"tone": tone, "verdict": verdict, "shown": shown.strip() or "␣", "truth": truth or "", "rows": rows}


def nearest_words(items: Iterable[Mapping[str, Any]]) -> Markup:
    """Words and their nearest neighbours in the embedding, with cosines: of each `{"word": "fever", "neighbours":
    [("chills", 0.81), ...]}`, nearest first."""
    rows = [
        (
            drawn("word", item["word"]),
            drawn("chips", [(str(w), f"{_number(cosine):.2f}") for w, cosine in item["neighbours"]]),
        )
        for item in items
    ]
    return table(("word", "nearest, with cosine"), rows)


def scored_sentences(items: Iterable[Mapping[str, Any]]) -> Markup:
    """Sentences with how surprising the model finds them, in nats per slot, so that sentences of different length
    compare: a longer bar is a less likely sentence. Of each `{"text": ..., "score": pseudo-log-likelihood in nats,
    summed over slots, "slots": n}`."""
    rows = list(items)
    surprise = [-_number(r["score"]) / r["slots"] if r["slots"] else float("nan") for r in rows]
    longest = max((s for s in surprise if math.isfinite(s)), default=0.0)
    lines = [
        (
            drawn("sentence", str(row["text"])),
            drawn("surprise", percent_of(s / longest if longest > 0 else 0.0)),
            s,
            _number(row["score"]),
            int(row["slots"]),
        )
        for row, s in zip(rows, surprise, strict=True)
    ]
    return table(("sentence", "surprise", "nats per slot", "score", "slots"), lines)


def training_curves(
    metrics_path: str | Path,
    *,
    loss: str = "nats per hidden slot",
    where: str = " on hidden slots",
    score: tuple[str, str, str] | None = None,
) -> Markup:
    """The curves of a run from its `metrics.jsonl`: loss, accuracy, learning rate, speed and padding waste. Reads what
    is there: absent keys give no curve, lines that are not JSON objects (half a last line of a run that was killed) are
    passed over, null is a gap, and a missing or empty file gives a sentence saying so. Validation numbers are taken
    from `validation_loss` and `validation_accuracy`, or from lines whose `kind` is 'validation'. Long training curves
    are drawn as means of successive records. `loss` is its unit, `where` what loss and accuracy are said to be of; ""
    where nothing is hidden; `score` (title, unit, name) is what else the held-out data were judged by."""
    train, validation = _curves(records(Path(metrics_path)))

    def chart(title: str, unit: str, name: str, called: str = "training", **options: bool) -> list[Markup]:
        """The chart of a metric, where it was recorded; of one that is called training, beside validation's."""
        curves: dict[str, Any] = {}
        if name in train:
            curves[called] = tuple(train[name].T) if name == "learning_rate" else _smoothed(train[name])
        if name in validation and called == "training":
            curves["validation"] = tuple(validation[name].T)
        title += ", validation" if list(curves) == ["validation"] else ""
        return [line_chart(curves, title, "step", unit, **options)] if curves else []

    charts = [
        *chart(f"Loss{where}", loss, "loss"),
        *chart(f"Accuracy{where}", "right at first guess", "accuracy", percent=True, from_zero=True),
        *(chart(*score) if score else []),
        *chart("Learning rate", "", "learning_rate", "learning rate", from_zero=True),
        *chart("Speed", "real slots per second", "slots_per_second", "slots/s", from_zero=True),
        *(
            chart("Padding waste", "share of slots", "padding_waste", "padding", percent=True, from_zero=True)
            if train.get("padding_waste", np.zeros((1, 2)))[:, 1].any()
            else []
        ),
    ]
    if not charts:
        return _nothing("No metrics were recorded.")
    return Markup('<div class="charts">{}</div>').format(Markup("").join(charts))


def records(path: Path) -> list[dict[str, Any]]:
    """Lines of a `metrics.jsonl` that are of a step."""
    return [record for record in json_records(path) if isinstance(record.get("step"), int | float)]


def _curves(
    records: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """(training, validation): per metric its (step, value) pairs."""
    train: dict[str, list[tuple[float, float]]] = {}
    validation: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        kind = record.get("kind", "train")
        for key, value in record.items():
            if not (value is None or isinstance(value, int | float)) or isinstance(value, bool):
                continue
            found, name = train, key
            if kind == "validation" or key.startswith("validation_"):
                found, name = validation, key.removeprefix("validation_")
            elif kind != "train":
                continue
            found.setdefault(name, []).append((float(record["step"]), _number(value)))
    return _arrays(train), _arrays(validation)


def _arrays(found: Mapping[str, list[tuple[float, float]]]) -> dict[str, NDArray[np.float64]]:
    """Pairs as arrays; a metric that is only ever null (no validation set) is absent, not an empty curve."""
    arrays = {name: np.array(pairs, dtype=np.float64) for name, pairs in found.items()}
    return {name: pairs for name, pairs in arrays.items() if np.isfinite(pairs[:, 1]).any()}


def _smoothed(pairs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means of stretches of equal length, at most `_SMOOTHED` of them; gaps are left out."""
    size = math.ceil(len(pairs) / _SMOOTHED)
    if size == 1:
        return pairs[:, 0], pairs[:, 1]
    starts = np.arange(0, len(pairs), size)
    good = np.isfinite(pairs[:, 1])
    counts = np.add.reduceat(good.astype(np.float64), starts)
    totals = np.add.reduceat(np.where(good, pairs[:, 1], 0.0), starts)
    means = np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)
    steps = np.add.reduceat(pairs[:, 0], starts) / np.diff([*starts, len(pairs)])
    return steps, means


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _nothing(text: str) -> Markup:
    return Markup('<p class="none">{}</p>').format(text)


def _paragraphs(body: str | Markup) -> Markup:
    if isinstance(body, Markup):
        return body
    parts = [part for part in body.split("\n\n") if part.strip()]
    return Markup("").join(Markup("<p>{}</p>").format(part) for part in parts)
