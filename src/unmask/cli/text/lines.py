"""Texts that a command is given: a text, a file with one per line, a table, or stdin."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from unmask.errors import UserError, first_of
from unmask.files import decoded, read_text, split_lines
from unmask.modalities.text.tasks.data import Columns, read_rows


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
    if not os.path.exists(source):
        if re.fullmatch(r"[^\s\[\]<>]*(/[^\s\[\]<>]*|\.[A-Za-z][A-Za-z0-9]*)", source):
            raise UserError(
                f"{source}: no such file", hint="Give a text file with one text per line, or the text itself."
            )
        return [source]
    return file_lines(source)


TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


def table_texts(path: str) -> list[str]:
    """The column `text` of a table."""
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
