"""fill, score, embed and evaluate for a model of text."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer

from unmask.cli import common, options
from unmask.cli.common import Result, check_most, embedded, in_parts, on_stderr, scores
from unmask.cli.options import flag
from unmask.errors import UserError, first_of, option, quoted
from unmask.files import check_results, check_there, decoded, read_text, split_lines
from unmask.registry import load
from unmask.writing import write_json_lines


def fill(
    use: options.Loading,
    model: options.Model,
    text: str = options.source(
        "Text with [MASK], or a file with one per line (tables: column text; -: stdin).", text=True
    ),
    top: int = typer.Option(5, help="Candidates per blank."),
    steps: options.FillSteps = 1,
    order: options.FillOrder = "confidence",
    temperature: options.FillTemperature = 0.0,
    candidate: list[str] = typer.Option([], help="Score these answers (one blank, any number of tokens)."),
    longest: int = typer.Option(1, min=1, help="Answers of up to this many tokens for the one blank of a text."),
    out: str = options.rows(".jsonl", "JSON lines to write", None),
    seed: options.Seed = 0,
) -> Result:
    """Fill the blanks of texts."""
    from unmask.modalities.text.uses.filling import BLANK, bare_notes, text_notes

    check_results([out], [text])
    texts = read_lines(text)
    loaded = use.load(model)
    bare = [place for place, one in enumerate(texts) if not one.strip()]
    some = len(bare) < len(texts)  # else refused, as a text without a blank is
    results = loaded.fill(
        [one if one.strip() or not some else BLANK for one in texts],
        top=top,
        steps=steps,
        order=cast(Any, order),
        temperature=temperature,
        seed=seed,
        candidates=candidate or None,
        longest=longest,
    )
    for place in bare:
        results[place] = {"text": texts[place], "filled": texts[place], "slots": [], "log_probability": None}
    written = [one.replace(BLANK, loaded.tokenizer.mask_token) for one in texts]
    notes = text_notes(loaded.tokenizer, written, loaded.tokenizer.ids(written), but=[loaded.tokenizer.mask_token])
    for line in [*notes, *bare_notes(bare, len(texts), "nothing is filled into them")]:
        on_stderr(line)
    if out is not None:
        write_json_lines(results, out)
    lines = []
    for result in results:
        lines.append(result["filled"])
        for number, slot in enumerate(result["slots"], start=1):
            shown = "   ".join(f"{c['value']} {c['probability']:.1%}" for c in slot["candidates"])
            lines.append(f"  blank {number}: {shown}")
    count = sum(len(result["slots"]) for result in results)
    found = {"out": out, "rows": len(results), "filled_slots": count, "results": results}
    return Result(found, lines, loaded)


def score(
    use: options.Loading,
    model: options.Model,
    text: str = options.source("A text, or a file with one text per line (tables: column text; -: stdin).", text=True),
    mode: str = typer.Option("unit", help="unit: later pieces of a word are hidden too; slot: each alone."),
) -> Result:
    """Pseudo-log-likelihood of texts: the higher, the more natural."""
    from unmask.modalities.text.uses.filling import text_notes

    texts = read_lines(text)
    loaded = use.load(model)
    if len(texts) > common.PART:
        loaded.check(texts)  # a text that is too long is named by its place among all
    parts = in_parts(texts, lambda some: loaded.score(some, mode=mode))
    results = [row for part in parts for row in part]
    notes = text_notes(loaded.tokenizer, texts, loaded.tokenizer.ids(texts), then=", and they are not scored")
    for line in [*notes, *_unscored_notes(results)]:
        on_stderr(line)
    lines = []
    for row in results:
        shown = f"{'-':>10}" if row["score"] is None else f"{row['score']:10.3f}"
        lines.append(f"{shown}  {row['slots']:4d} tokens  {row['text']}")
    return scores(loaded, results, lines)


def _unscored_notes(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many texts have no score, in words; nothing where all have one."""
    found = [number for number, row in enumerate(results, start=1) if row["score"] is None]
    if not found:
        return []
    return [
        f"{len(found):,} of {len(results):,} texts have no score, the first is text {found[0]}: they hold nothing but "
        "white space, special and unknown tokens, which are not scored"
    ]


def embed(
    model: options.Model,
    text: str = options.source("A file with one text per line (tables: column text; -: stdin), or a text.", text=True),
    out: str = typer.Option(..., help="Where to write the (texts, width) array, .npy."),
    pooling: str | None = typer.Option(
        None, help="mean, first or max; default what a sentence-transformers folder says, else mean."
    ),
    prompt: str | None = typer.Option(
        None, help="Put in front of every text; default the default prompt of a sentence-transformers folder."
    ),
    prompt_name: str | None = typer.Option(None, help="The folder's name of a prompt: query, passage."),
    precision: str = typer.Option("auto", help="auto, fp32, bf16 or int8."),
    device: options.Device = "auto",
) -> Result:
    """Embed texts, one row per line, order kept."""
    from unmask.modalities.text.uses.filling import cut_notes, text_notes

    check_results([out], [text])
    loaded = load(model, device=device, precision=precision)
    texts = read_lines(text)
    how = {"prompt": prompt, "prompt_name": prompt_name}
    cut, bare = loaded.too_long(texts, **how), "their vectors say nothing of them"
    notes = text_notes(loaded.tokenizer, texts, loaded.tokenizer.ids(texts), bare=bare)
    for line in [*cut_notes(cut, len(texts), loaded.embedded_slots), *notes]:
        on_stderr(line)
    parts = in_parts(texts, lambda some: loaded.embed(some, pooling=pooling, **how))
    return embedded(loaded, parts, len(texts), out, cut=cut)


def evaluate(
    use: options.Loading,
    model: options.Model,
    data: list[str] = options.source(
        "Held-out text: files, folders, globs. Or minimal pairs (BLiMP): .jsonl, .csv, folders, .zip."
    ),
    ratio: float = typer.Option(0.15, help="Share of the tokens to hide."),
    most: int = typer.Option(
        None, help="At most this many documents (default 2000), or pairs of each paradigm, drawn."
    ),
    nelbo_draws: int = typer.Option(4, min=0, help="Passes of the bound on the likelihood; 0 leaves it out."),
    nelbo_tokens: int = typer.Option(16384, min=1, help="Tokens of the documents that the bound is estimated on."),
    column: str = typer.Option(None, help="Text column of jsonl, csv and parquet inputs."),
    document: str = typer.Option(
        None,
        help="Where documents of .txt end: blank (lines), line or file; default blank, or line without blank lines.",
    ),
    seed: options.Seed = 0,
) -> Result:
    """Loss, perplexity and accuracy on the hidden tokens of held-out text; accuracy on minimal pairs."""
    from unmask.modalities.text.reading.documents import ReadReport
    from unmask.modalities.text.reading.sources import drawn, iter_documents
    from unmask.modalities.text.tokens.building import corpus_notes
    from unmask.modalities.text.uses.minimal_pairs import is_minimal_pairs, matching

    check_most(most)
    named = matching(data)
    paired = [source for source in named if is_minimal_pairs(source)]
    if paired:
        if others := [source for source in named if source not in paired]:
            raise UserError(
                f"{first_of(others, 3)}: no such file, or no minimal pairs as {paired[0]} has them",
                hint="Minimal pairs and texts are evaluated apart.",
            )
        of_texts = {"column": column, "document": document, "ratio": ratio != 0.15}
        of_texts |= {"nelbo_draws": nelbo_draws != 4, "nelbo_tokens": nelbo_tokens != 16384}
        if given := [option(name) for name, value in of_texts.items() if value]:
            raise UserError(f"{', '.join(given)}: for texts, and these are minimal pairs", hint="Leave it out.")
        return _evaluate_pairs(use.load(model), paired, most, seed)
    read = ReadReport()
    way = cast(Any, document or "auto")
    documents = iter_documents(data, column=column, report=read, document=way, say=on_stderr)
    texts, some = drawn((d.text for d in documents), most or 2000, seed=seed)
    for line in corpus_notes({"report": vars(read)}):
        on_stderr(line)
    if some:
        on_stderr(f"evaluated: {some} ({option('most', 'N')} takes more)")
    loaded = use.load(model)
    found = loaded.evaluate(
        texts, ratio=ratio, seed=seed, nelbo_draws=nelbo_draws, nelbo_tokens=nelbo_tokens, say=on_stderr
    )
    return Result(found, str(found).splitlines(), loaded)


def _evaluate_pairs(loaded: Any, data: Sequence[str], most: int | None, seed: int) -> Result:
    """What `evaluate` says of minimal pairs."""
    from unmask.modalities.text.uses.minimal_pairs import evaluate_minimal_pairs, read_minimal_pairs, some_of_each

    pairs = read_minimal_pairs(*data)
    if most is not None:
        pairs = some_of_each(pairs, most, seed=seed)
    found = evaluate_minimal_pairs(loaded, pairs, seed=seed, say=on_stderr)
    interval = "" if found["low"] is None else f" ({found['low']:.1%} to {found['high']:.1%})"
    lines = [
        f"right pairs: {found['accuracy']:.1%}{interval}, {found['pairs']:,} pairs, {found['ties']} of them ties",
        f"chance: 50.0%; always the shorter sentence: {found['shorter']:.1%}",
    ]
    lines += [f"  {name:28}{share:7.1%}" for name, share in found["by_field"].items()]
    return Result({"rows": found["pairs"]} | found, lines, loaded)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How texts are drawn."""

    prefix: str = flag("", "What the texts begin with; kept as it is.")
    suffix: str = flag("", "What they end with; with a prefix what lies between is filled in.")
    length: int | None = flag(
        None, "Tokens to draw; default a training text's length; before a suffix the likeliest.", min=1
    )
    number: int = flag(1, "How many.", min=1)
    temperature: float = flag(1.0, "Below 1 keeps to the common; 0 takes the likeliest.", min=0)
    top_k: int | None = flag(None, "Draw among the k likeliest tokens alone.", min=1)
    steps: int | None = flag(None, "Passes of the model; default one for each token (remask: two).", min=1)
    order: str = flag("random", "Which tokens come first: random, confidence or left_to_right.")
    remask: float = flag(0.0, "Share of the drawn tokens that each pass takes back, to be drawn anew.")
    remask_by: str = flag("random", "Which are taken back: random, or the least likely (confidence).")


def generate(
    drawing: Drawing,
    use: options.Loading,
    model: options.Model,
    out: str = options.rows(".jsonl", "JSON lines to write", None),
    seed: options.Seed = 0,
) -> Result:
    """Draw new texts: all tokens are hidden, and filled in a few at a time."""
    from unmask.modalities.text.uses.generating import shown_little, unknown_given

    check_results([out], [])
    loaded = use.load(model)
    known = (shown_little(loaded), unknown_given(loaded, drawing.prefix, drawing.suffix))
    warnings = [warning for warning in known if warning is not None]
    for warning in warnings:
        on_stderr(f"warning: {warning}")
    results = loaded.generate(seed=seed, **vars(drawing))
    if out is not None:
        write_json_lines(results, out)
    found = {"out": out, "rows": len(results), "results": results, "warnings": warnings}
    return Result(found, [r["text"] for r in results], loaded)


def read_lines(source: str) -> list[str]:
    """The lines of a UTF-8 text file or of stdin (-), the texts of a table, or the text itself where it cannot be meant
    for a file.

    A single word without a blank that has a slash or a file's suffix is taken for a path. Of a .jsonl, .csv, .tsv or
    .parquet, gzipped or not, the column `text` is read.
    """
    if not source:
        raise UserError("the text is empty", hint="Give a text, or a text file with one text per line.")
    if source == "-":
        return _some(split_lines(decoded(sys.stdin.buffer.read(), "stdin")), "stdin")
    check_there(source, "Give a text file with one text per line, or the text itself.", text=True)
    return file_lines(source) if os.path.exists(source) else [source]


TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def table_texts(path: str) -> list[str]:
    """The column `text` of a table."""
    from unmask.modalities.text.tasks.row_files import Columns, read_rows

    rows = read_rows(path, Columns(header=True), trim=False)  # as many results as rows
    if not any("text" in row for _, row in rows):
        named = ", ".join(dict.fromkeys(name for _, row in rows for name in row))
        raise UserError(
            f"{path}: no column text among {named}", hint="Name it so, or give a text file with one text per line."
        )
    found = [(where, row.get("text")) for where, row in rows]
    if wrong := [f"{where}: text is {text!r:.60}" for where, text in found if not isinstance(text, str)]:
        raise UserError(f"{first_of(wrong)}: no text", hint="Leave these rows out, or write their texts.")
    return [str(text) for _, text in found]


def file_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 text file, or the texts of a table; .gz or not."""
    if str(path).lower().removesuffix(".gz").endswith(TABLES):
        return table_texts(str(path))
    return _some(split_lines(read_text(path, hint="Give a text file with one text per line.")), path)


def _some(lines: list[str], source: str | Path) -> list[str]:
    if not lines:
        raise UserError(f"{source}: empty", hint="Give one text per line.")
    return lines


def zeroshot(
    use: options.Loading,
    model: options.Model,
    data: str = options.source("A file with one text per line (tables: column text; -: stdin), or a text.", text=True),
    label: list[str] = typer.Option(..., help="A label; give two or more."),
    template: list[str] = typer.Option(
        [], help="Prompt with {text} and [MASK], or hypothesis with {label} for NLI models; several are averaged."
    ),
    words: list[str] = typer.Option([], help="LABEL=word,word: what stands for a label in the prompt."),
    calibrate: str = typer.Option(
        None,
        help="Divide by what the prompt says without a text (context), by the mean over the texts (batch), or none.",
    ),
    out: str = options.rows(".jsonl", "Where the predictions go, .jsonl", None),
    seed: options.Seed = 0,
) -> Result:
    """Classify texts without training: by an NLI head where the model has one, else by masked prompts."""
    from unmask.modalities.text.tasks.zeroshot import zero_shot

    check_results([out], [data])
    verbalisers: dict[str, list[str]] = {}
    for pair in words:
        name, equals, listed = pair.partition("=")
        if not equals or name not in label:
            raise UserError(
                f"--words {pair!r}", hint=f"Expected LABEL=word,word with one of {', '.join(map(quoted, label))}."
            )
        verbalisers.setdefault(name, []).extend(w.strip() for w in listed.split(",") if w.strip())
    rows = zero_shot(
        model,
        read_lines(data),
        label,
        template=template,
        verbalisers=verbalisers or None,
        calibrate=calibrate,
        say=on_stderr,
        **vars(use),
    )
    if out is not None:
        write_json_lines(rows, out)
    lines = list(map(_line, rows)) if out is None else [out]
    return Result({"results": rows, **rows.about}, lines)


def _line(row: Mapping[str, Any]) -> str:
    label, chance = ("-", "-") if row["label"] is None else (quoted(row["label"]), f"{row['probability']:.3f}")
    return f"{label}  {chance}  {row['text'][:90]}"
