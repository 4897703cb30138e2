"""The model card of a folder: a README.md as the Hugging Face hub reads it, written with the folder's other files.

What there is to say differs by kind of data: each modality names a function (`Modality.card`) that makes a `Card` from
the files of a folder. A card holds counts, settings and figures, never a value of the data it was made from.

A card that a person has edited is kept: a hash of its text in the front matter shows that it was edited.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import math
import os
import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unmask.errors import UserError, first_of
from unmask.evaluation.charts import drawn
from unmask.evaluation.meanings import good, meaning
from unmask.files import read_object
from unmask.plugins import resolve
from unmask.registry import kind_of, modality
from unmask.version import __version__
from unmask.writing import final_place

NAME = "README.md"
MARK = "unmask_card"
"""Key of the front matter that holds the hash of the rest, by which a card that a person edited is known."""
_MARKED = re.compile(rf'^{MARK}: "?([0-9a-f]*)"?\n', re.MULTILINE)
_MODEL = re.compile(r"\bMODEL\b")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class Use:
    """How a model is loaded and used. Where its folder goes, commands and code have the word MODEL.

    Args:
        commands: what each does, and the command.
        python: the same in Python.
        transformers: code that loads the folder in transformers; "" where that does not work.
        without_unmask: what is not so, or not there, in transformers; a sentence.
    """

    commands: Sequence[tuple[str, str]]
    python: str
    transformers: str = ""
    without_unmask: str = ""

    def of(self, name: str) -> Use:
        """With the folder's name for MODEL, quoted as the shell and Python want it.

        >>> Use(commands=[("", "unmask fill MODEL x")], python="unmask.load(MODEL)").of("my model").python
        'unmask.load("my model")'
        """
        shell, quoted = shlex.quote(name), json.dumps(name, ensure_ascii=False)
        return Use(
            commands=[(what, _MODEL.sub(lambda _: shell, command)) for what, command in self.commands],
            python=_MODEL.sub(lambda _: quoted, self.python),
            transformers=_MODEL.sub(lambda _: quoted, self.transformers),
            without_unmask=self.without_unmask,
        )

    def shell(self) -> str:
        """The commands, each behind a comment that says what it does."""
        return "\n\n".join(f"# {what}\n{command}" for what, command in self.commands)

    def html(self) -> Markup:
        """The section of a report."""
        parts = [("On the command line", self.shell()), ("In Python", self.python)]
        parts += [("In transformers", self.transformers)]
        return drawn("use", [part for part in parts if part[1]], self.without_unmask)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a card.

    Args:
        name: as `meanings` knows it, which says the direction.
        of: whose: "model", or the name of a rule or simpler model beside it.
        low, high: its interval; NaN where none was worked out.
    """

    name: str
    value: float
    of: str = "model"
    low: float = math.nan
    high: float = math.nan

    def to_dict(self) -> dict[str, Any]:
        """As unmask.json keeps it; `read_figures` reads it back.

        >>> Figure(name="accuracy", value=0.5).to_dict()
        {'name': 'accuracy', 'value': 0.5, 'of': 'model'}
        """
        found = dataclasses.asdict(self)
        return {k: v for k, v in found.items() if not isinstance(v, float) or math.isfinite(v)}


def read_figures(rows: Any) -> list[Figure]:
    """Figures from what `Figure.to_dict` gave; what is no such row is passed over."""
    known = {f.name for f in dataclasses.fields(Figure)}
    rows = [r for r in rows if isinstance(r, dict) and {"name", "value"} <= r.keys()] if isinstance(rows, list) else []
    return [Figure(**{k: v for k, v in row.items() if k in known}) for row in rows]


def figures_of(found: Mapping[str, Any], names: Sequence[str], of: str = "model") -> list[Figure]:
    """Figures by name, with the ends that stand in `found` under `intervals`; what is missing or None is left out."""
    out = []
    for name in names:
        if (value := found.get(name)) is None or not math.isfinite(value):
            continue
        low, high = (found.get("intervals") or {}).get(name) or (None, None)
        ends = {} if low is None or high is None else {"low": float(low), "high": float(high)}
        out.append(Figure(name=name, value=float(value), of=of, **ends))
    return out


@dataclass(frozen=True, kw_only=True)
class Card:
    """What there is to say of a model folder.

    Args:
        title: of the page; `card_of` puts the folder's name there.
        what: what the model is, in a sentence or two.
        loaded_by: `library_name`: what the hub's "Use this model" loads it with.
        pipeline: `pipeline_tag`, one of the hub's; None where none fits.
        base_model: a hub name; None where the model is trained from nothing or from a folder.
        data: sentences on the data, with counts.
        judged_on: what the figures are about, such as "on 120 held-out documents".
        settings: those of the run.
        limits: sentences.
        license, datasets: for the front matter, where they are known.
        tables: further sections: a heading, the rows of a table with its head first, and a note.
        shown: whether reports beside the model show the figures too; not where they have tables of their own.
    """

    what: str
    use: Use
    title: str = ""
    loaded_by: str = "unmask"
    pipeline: str | None = None
    tags: Sequence[str] = ()
    base_model: str | None = None
    data: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    judged_on: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    limits: Sequence[str] = ()
    license: str | None = None
    datasets: Sequence[str] = ()
    tables: Sequence[tuple[str, Sequence[Sequence[str]], str]] = ()
    shown: bool = True

    def text(self) -> str:
        """The whole file, with the hash of the rest in its front matter."""
        head = {
            "library_name": self.loaded_by,
            "license": self.license,
            "pipeline_tag": self.pipeline,
            "base_model": self.base_model,
            "datasets": list(self.datasets),
            "tags": list(dict.fromkeys(["unmask", *self.tags])),
        }
        # A JSON text or list is YAML as well.
        lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items() if value]
        plain = "\n".join(["---", *lines, "---", "", self.body()])
        return plain.replace("\n---\n", f'\n{MARK}: "{_hash(plain)}"\n---\n', 1)

    def body(self) -> str:
        """The page below the front matter."""
        out = [f"# {_line(self.title)}", _line(self.what), f"Made with unmask {__version__}."]
        out += ["## Data", _listed(self.data)] if self.data else []
        out += ["## Figures", self._figures()] if self.figures else []
        for heading, rows, note in self.tables:
            out += [f"## {_line(heading)}", _table(rows)] + ([_line(note)] if note else [])
        out += ["## Use", "```sh\n" + self.use.shell() + "\n```", "```python\n" + self.use.python + "\n```"]
        if self.use.transformers:
            out += ["In transformers:", "```python\n" + self.use.transformers + "\n```"]
        out += [self.use.without_unmask] if self.use.without_unmask else []
        out += ["## Limits", _listed(self.limits)] if self.limits else []
        if self.settings:
            shown = json.dumps(without_places(self.settings), indent=1, ensure_ascii=False).replace("```", "'''")
            out += ["## Settings", f"```json\n{shown}\n```"]
        return "\n\n".join(out) + "\n"

    def figure_rows(self) -> list[list[str]]:
        """A heading, then a row per figure: its name, a column per model or rule, and what is good."""
        names = list(dict.fromkeys(f.name for f in self.figures))
        models = list(dict.fromkeys(f.of for f in self.figures))
        at = {(f.name, f.of): f for f in self.figures}
        rows = [["figure", *models, "what is good"]]
        for name in names:
            cells = [_figure_cell(at[name, of]) if (name, of) in at else "" for of in models]
            known = meaning(name)
            rows.append([known.label if known else name.replace("_", " "), *cells, good(name)])
        return rows

    def _figures(self) -> str:
        note = "In brackets: 95 % intervals." if any(math.isfinite(f.low) for f in self.figures) else ""
        return "\n\n".join(part for part in (_line(self.judged_on), _table(self.figure_rows()), note) if part)


def card_of(files: str | Path, *, name: str | None = None, run: str | Path | None = None) -> Card:
    """The card of a model folder, by what its files (config.json and unmask.json) say. `name`: how the folder is called
    in commands, default its name; `run`: the run folder, with metrics.jsonl, where that is another one: while files are
    written beside."""
    files = Path(files)
    name = name or final_place(files).name
    made_by = modality(kind_of(files)).card
    card: Card = (resolve(made_by) if made_by else plain_card)(files, Path(run or files))
    return dataclasses.replace(card, title=card.title or Path(name).name, use=card.use.of(name))


def plain_card(files: Path, run: Path) -> Card:
    """A card for a modality that brings none: its kind, its settings, how its commands are called."""
    kind = kind_of(files)
    about = read_object(files / "unmask.json") or {}
    commands = [c for c in ("fill", "score", "embed", "evaluate") if modality(kind).cases(c)]
    last = held_out(run)
    return Card(
        what=f"A masked model of {modality(kind).plural}.",
        tags=(kind,),
        figures=read_figures(about.get("results")) or figures_of(last, list(last)),
        judged_on="On held-out examples.",
        settings=about.get("settings") or {},
        use=Use(
            commands=[(c, f"unmask {c} MODEL DATA") for c in commands],
            python="import unmask\n\nmodel = unmask.load(MODEL)",
        ),
    )


def add_card(new: Path, folder: str | Path) -> None:
    """Write the card of a model into `new`, the folder whose files will stand in `folder` (`files.written_folder`).

    A README.md in `folder` that a person has written or edited is kept, with a warning. Where no card can be made, that
    is a warning too, and no failed save.
    """
    folder = Path(folder)
    there = final_place(folder) / NAME
    if there.exists() and not is_ours(there):
        warnings.warn(
            f"{there} was written or edited by hand: it is kept, and may tell of the model before", stacklevel=2
        )
        return
    found = card_if_any(new, name=final_place(folder).name, run=folder)
    if found is not None:
        (new / NAME).write_text(found.text(), encoding="utf-8")


def card_if_any(files: Path, *, name: str, run: Path | None = None) -> Card | None:
    """`card_of`; None, with a warning, where the files say nothing that a card can be made of."""
    try:
        return card_of(files, name=name, run=run)
    except (UserError, ValueError, LookupError, TypeError, AttributeError) as error:
        warnings.warn(f"{final_place(files)}: no model card ({error})", stacklevel=3)
        return None


def is_ours(path: Path) -> bool:
    """Whether a README.md is a card as it was written, changed by nobody."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    found = _MARKED.search(text)
    return found is not None and found.group(1) == _hash(_MARKED.sub("", text, count=1))


def held_out(run: Path) -> dict[str, float]:
    """The held-out figures that a run has just come to: the last validation in its metrics.jsonl.

    Nothing where the run is over: then the weights that are saved need not be those that were judged.
    """
    last: dict[str, float] = {}
    for record in json_records(run / "metrics.jsonl"):
        if record.get("kind") not in ("validation", "end"):
            continue
        known = record if record["kind"] == "validation" else {}
        named = {k: known.get(f"validation_{k}", known.get(k)) for k in ("loss", "accuracy")}
        last = {k: float(v) for k, v in named.items() if isinstance(v, int | float)}
    return last


def remembered(
    about: Mapping[str, Any], run: Path, rules: Mapping[str, float] | None = None, *, judged_by: str = "accuracy"
) -> dict[str, Any]:
    """What unmask.json is to hold, with the held-out figures of the run that has just ended in `run`, if one has: a
    folder that is saved elsewhere, or exported, then still has them. `rules`: of each rule beside the model its figure
    `judged_by`; those that `about` has of the data by default."""
    out, figures = dict(about), held_out(run)
    if "results" not in out and figures:
        rules = (out.get("data") or {}).get("rules") or {} if rules is None else rules
        found = figures_of(figures, list(figures)) + [Figure(name=judged_by, value=v, of=n) for n, v in rules.items()]
        out["results"] = [f.to_dict() for f in found]
    return out


def json_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file, without half a last line of a run that was killed; none where there is no file."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]


def source_name(data: Any) -> str:
    """How data is called on a card: "hf:NAME" as it is, of a file, folder or pattern the last part of its path; "" for
    anything else, such as rows in memory, of which nothing may reach a card.

    >>> source_name("hf:org/corpus"), source_name("/home/me/secret/*.txt"), source_name(["a text", "another"])
    ('hf:org/corpus', '*.txt', '')
    """
    if isinstance(data, Path) or (isinstance(data, str) and _is_place(data)):
        text = str(data)
        return text if text.startswith("hf:") else Path(text).name or Path(text).resolve().name
    if isinstance(data, list | tuple) and data and all(isinstance(d, str | Path) and source_name(d) for d in data):
        return first_of(map(source_name, data))
    return ""


def _is_place(text: str) -> bool:
    if "\n" in text or len(text) > 1000:
        return False
    return text.startswith("hf:") or os.path.exists(text) or ("/" in text and glob.has_magic(text))


def model_name(model: Any) -> str:
    """How the model that another is made from is called: a hub name as it is, of a folder its last part alone.

    >>> model_name("org/name"), model_name("/home/me/model")
    ('org/name', 'model')
    """
    return hub_name(model) or Path(str(model)).name or Path(str(model)).resolve().name


def hub_name(source: Any) -> str | None:
    """The source itself where it is called as models on the hub are and is no folder here; else None."""
    text = str(source)
    return text if _HUB_NAME.fullmatch(text) and not Path(text).exists() else None


def without_places(settings: Any) -> Any:
    """Settings with the last part of every path alone: cards are handed on.

    >>> without_places({"store": "/home/me/x", "rate": 0.1, "in": {"model": "org/name"}})
    {'store': 'x', 'rate': 0.1, 'in': {'model': 'org/name'}}
    """
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        settings = dataclasses.asdict(settings)
    if isinstance(settings, Mapping):
        return {str(k): without_places(v) for k, v in settings.items()}
    if isinstance(settings, list | tuple):
        return [without_places(v) for v in settings]
    if isinstance(settings, str | Path):
        text = str(settings)
        return model_name(text) if "/" in text and not text.startswith("hf:") else text
    if isinstance(settings, float) and not math.isfinite(settings):
        return None
    return settings if isinstance(settings, bool | int | float) or settings is None else str(settings)


def _figure_cell(figure: Figure) -> str:
    ends = "" if not math.isfinite(figure.low) else f" [{_short(figure.low)}, {_short(figure.high)}]"
    return _short(figure.value) + ends


def _short(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def _line(text: str) -> str:
    """Text from outside (names of folders and columns) as one line that cannot open a block or a tag."""
    return " ".join(text.split()).replace("<", "&lt;")


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *rest = ([_line(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {_line(sentence)}" for sentence in sentences)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.replace("\r\n", "\n").encode("utf-8", "replace"), digest_size=8).hexdigest()
