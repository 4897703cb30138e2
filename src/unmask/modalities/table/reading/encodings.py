"""The letters of a text file: UTF-8, UTF-16 by its mark, or what a person says; never guessed."""

from __future__ import annotations

import codecs
from pathlib import Path

from unmask.errors import UserError, option

_OTHERS = ("cp1252", "cp1250", "cp437", "mac_roman")


def letters_of(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """The encoding to open a file with, and the one to write it again with.

    Args:
        encoding: as Python names it; by default UTF-8, or UTF-16 where the file begins with that's mark.
    """
    with path.open("rb") as file:
        start = file.read(200)
    if encoding is not None:
        try:
            name = codecs.lookup(encoding).name
        except LookupError:
            raise UserError(option("encoding", encoding), hint="Expected utf-8, utf-16, cp1252, latin-1, ...") from None
    else:
        name = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"
        if name == "utf-8" and b"\x00" in start:
            raise UserError(
                f"{path}: zero bytes in the text",
                hint=f"UTF-16 without its mark, it seems: {option('encoding', 'utf-16-le')}.",
            )
    return ("utf-8-sig" if name == "utf-8" else name), name


def refuse_letters(path: Path, encoding: str | None, opened: str) -> None:
    """Say where a file is not in its encoding, and how the word there reads in those it may have.

    Args:
        encoding: what a person said it is.
        opened: what it was opened with.
    """
    raw = path.read_bytes()
    try:
        raw.decode(opened)
    except UnicodeError as error:
        marked = 3 if raw.startswith(codecs.BOM_UTF8) else 0  # not in the decoder's count
        at = getattr(error, "start", 0) + marked
        line = raw[:at].count(b"\n") + 1
        if encoding is not None:
            raise UserError(f"{path}:{line}: not {encoding}", hint=f"Give another {option('encoding')}.") from None
        raise UserError(f"{path}:{line}: not UTF-8", hint=_readings(raw, at)) from None


def _readings(raw: bytes, at: int) -> str:
    """How the word at a byte reads in the encodings that spreadsheets write."""
    begin = max(raw.rfind(b, 0, at) for b in (b"\n", b";", b",", b"\t", b" ")) + 1
    ends = [end for b in (b"\n", b"\r", b";", b",", b"\t", b" ") if (end := raw.find(b, at)) >= 0]
    word = raw[begin : min([*ends, len(raw)])][:40]
    read: dict[str, str] = {}
    for name in _OTHERS:
        try:
            read.setdefault(word.decode(name), name)
        except UnicodeDecodeError:
            continue
    shown = ", ".join(f"{name} reads {text!r}" for text, name in read.items())
    return f"Say how it is written: {option('encoding', 'cp1252')}, or save it as UTF-8. Of the word there {shown}."
