"""Model folders, damaged in one place by a seeded hand: what a download cut short, an editor or an attacker leaves
behind."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

WEIRD: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    10**6,
    10**12,
    -(10**9),
    1e308,
    float("nan"),
    float("inf"),
    0.5,
    "",
    "x",
    "32",
    "../../etc/passwd",
    [],
    ["x"],
    [1, 2],
    [[]],
    {},
    {"x": 1},
    {"a": ["x"]},
    "é\ud800",
)
ADDED = {
    "config.json": {
        "quantization_config": "x",
        "is_decoder": "x",
        "id2label": ["a"],
        "architectures": "x",
        "torch_dtype": 3,
        "rope_parameters": "x",
    },
    "unmask.json": {"kind": ["x"], "task": {"name": "similarity"}, "decoder": "x", "format": None, "family": 3},
}


def damage(folder: Path, seed: int) -> str:
    """Damage a folder in place; says what was done."""
    rng = random.Random(seed)
    files = sorted(
        p for p in folder.rglob("*") if p.is_file() and p.suffix in (".json", ".safetensors", ".txt", ".onnx")
    )
    path = rng.choice([p for p in files if p.name != "metrics.jsonl"])
    name = path.relative_to(folder).as_posix()
    draw = rng.random()
    if draw < 0.2:
        return f"{name}: {_file(path, rng)}"
    if path.suffix == ".json":
        return f"{name}: {_json(path, rng)}"
    if path.suffix == ".safetensors":
        return f"{name}: {_safetensors(path, rng)}"
    return f"{name}: {_bytes(path, rng)}"


def _file(path: Path, rng: random.Random) -> str:
    how = rng.choice(["gone", "empty", "folder", "dangling", "loop", "fifo", "renamed", "cut", "bytes"])
    if how in ("cut", "bytes"):
        return _bytes(path, rng)
    if how == "renamed":
        path.rename(path.with_name(f"other{path.suffix}"))
        return how
    path.unlink()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "folder":
        path.mkdir()
    elif how == "dangling":
        path.symlink_to("/nowhere/at/all")
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "fifo":
        os.mkfifo(path)
    return how


def _bytes(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        cut = rng.randrange(len(data)) if data else 0
        path.write_bytes(data[:cut])
        return f"cut at {cut} of {len(data)}"
    for _ in range(rng.choice([1, 8, 200])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)
    return "bytes changed"


def _json(path: Path, rng: random.Random) -> str:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return _bytes(path, rng)
    draw = rng.random()
    if draw < 0.08:
        text = rng.choice(
            [
                "",
                "null",
                "[]",
                "3",
                '"x"',
                "{}",
                "[" * 100_000,
                '{"a":' * 5_000,
                "\xff\xfe",
                "NaN",
                '[{"idx": 0}]',
                '{"a": {}}',
            ]
        )
        path.write_bytes(text.encode("latin-1"))
        return f"whole: {text[:20]}"
    more = ADDED.get(path.name, {})
    if more and draw < 0.2 and isinstance(value, dict):
        key = rng.choice(sorted(more))
        value[key], done = more[key], f"{key} = {more[key]!r}"
    else:
        value, done = changed(value, rng)
    path.write_text(json.dumps(value), encoding="utf-8")
    return done


def changed(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A value with one leaf or branch replaced, removed or added; says which."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        new = rng.choice(WEIRD)
        return new, f"= {new!r}"
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys[:40])
    draw = rng.random()
    if draw < 0.15:
        del value[key]
        return value, f"{key} removed"
    value[key], done = changed(value[key], rng)
    return value, f"{key} {done}"


def _safetensors(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    draw = rng.random()
    if draw < 0.15:
        wrong = rng.choice([0, 1, size - 1, size + 1, 2**31, 2**63 - 1, 2**64 - 1])
        path.write_bytes(struct.pack("<Q", wrong) + data[8:])
        return f"length of the header {wrong}"
    if draw < 0.3:
        tied = rng.choice(['["x"]', "3", '{"a": "b"}', '{"a": ["b"]}', "x", "null", '"x"'])
        header["__metadata__"] = {"format": "pt", "tied": tied}
        done = f"tied {tied}"
    elif draw < 0.45:
        name = rng.choice([k for k in header if k != "__metadata__"])
        header[name]["dtype"] = rng.choice(["I32", "F16", "BF16", "F64", "I64", "U8", "F8_E4M3", "BOOL", "x"])
        done = f"{name} is {header[name]['dtype']}"
    elif draw < 0.55:
        name = rng.choice([k for k in header if k != "__metadata__"])
        header[f"{name}.x"] = header.pop(name)
        done = f"{name} renamed"
    elif draw < 0.65:
        numbers = bytearray(body)
        for _ in range(3):
            place = rng.randrange(len(body) // 4) * 4
            numbers[place : place + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), 1e38]))
        body, done = bytes(numbers), "numbers that are none"
    else:
        header, done = changed(header, rng)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return done


class Hung(BaseException):
    """A command that did not end; no `except Exception` swallows it."""


def attempt(arguments: list[Any], seconds: int = 30) -> str:
    """Run the command on a folder that may be damaged; says what is wrong with how it ended, '' where nothing is: it
    worked and its JSON holds numbers alone, or it was refused with exit code 2 and a message of ours."""
    import contextlib
    import io
    import signal

    from commands import exit_code

    def hung(*_: object) -> None:
        raise Hung

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = exit_code(*arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if code == 0:
        try:
            json.loads(out.getvalue().splitlines()[-1], parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError, IndexError):
            return f"exit code 0 and no JSON of numbers: {out.getvalue()[-200:]!r}"
        return ""
    said = [line for line in err.getvalue().splitlines() if line.startswith("unmask: ")]
    return "" if code == 2 and len(said) == 1 else f"exit code {code}: {err.getvalue()[-300:]!r}"
