"""Train the English model, some minutes at a time, and pack it as a Python package: `make model`.

    python models/english/make_model.py --corpus FOLDER --minutes 60     # again and again, until it is packed

Every call goes on where the last one stopped, bit for bit on a CPU. When the recipe's steps are done the model is
judged on held-out text, written in 16 bits and packed: `pip install dist/unmask_en-*.whl`, then
`unmask.load("unmask-en")`. Texts of your own are taken with `--sources FILE`, which is like models/english/sources.toml
and names each file, its title, licence and address.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.evaluation.card import card_of
from unmask.modalities.text.tokens.prepare import SETTINGS, TRAINED

HERE = Path(__file__).resolve().parent
NAME, VERSION = "unmask-en", "0.1.0"
STEPS = "train.steps"
SAID = ("file", "title", "licence", "address")
"""What is to be known of each text; and, where the file is to be this very one, its sha256."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LARGEST = 40_000_000
"""Bytes that the weights may take."""

METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: A small English masked language model, trained with unmask on free text.
{licence}Requires-Python: >=3.11
Description-Content-Type: text/markdown

{card}"""
WHEEL = "Wheel-Version: 1.0\nGenerator: make_model\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
DATE = (2020, 1, 1, 0, 0, 0)
"""Of all files in the wheel: packed again, it has the same bytes."""
ENTRY = "[unmask.models]\n{name} = {module}:folder\n"

MODULE = '''"""A small English masked language model: `unmask.load("{name}")`."""

from pathlib import Path


def folder() -> Path:
    """Where the model lies: config.json, model.safetensors, tokenizer.json."""
    return Path(__file__).parent / "model"
'''


class Refused(SystemExit):
    """What is wrong, on stderr; exit code 2."""

    def __init__(self, what: str) -> None:
        print(f"make_model: {what}", file=sys.stderr)
        super().__init__(2)


def table_of(path: Path) -> dict[str, Any]:
    """A TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: cannot be read ({error})") from None


def known_sources(path: Path) -> list[dict[str, str]]:
    """What sources.toml, or a file like it, says of each text."""
    sources = table_of(path).get("source") or []
    if not isinstance(sources, list) or not all(isinstance(source, dict) for source in sources):
        raise Refused(f"{path}: source is no list of tables; write [[source]] over each")
    for number, source in enumerate(sources, 1):
        if lacking := [key for key in SAID if not isinstance(source.get(key), str)]:
            raise Refused(f"{path}: source {number} does not say its {', '.join(lacking)}")
    if not sources:
        raise Refused(f"{path}: names no [[source]]")
    return list(sources)


def corpus_files(folder: Path, listed: Path) -> tuple[list[Path], list[dict[str, str]]]:
    """The files of the corpus and what `listed` says of them; what it does not name is left out, and told."""
    sources = known_sources(listed)
    names = [source["file"] for source in sources]
    found = [source for source in sources if (folder / source["file"]).is_file()]
    if not found:
        raise Refused(f"{folder}: none of {', '.join(names)} ({listed}); of texts of your own say what they are there")
    for source in found:
        path = folder / source["file"]
        with path.open("rb") as file:
            have = hashlib.file_digest(file, "sha256").hexdigest()
        if have != str(source.get("sha256", have)).lower():
            raise Refused(f"{path}: not the file that {listed} describes (its SHA-256 begins {have[:12]})")
    tops = {Path(name).parts[0] for name in names}
    missing = [name for name in names if not (folder / name).is_file()]
    undescribed = sorted(path.name for path in folder.iterdir() if path.name not in tops)
    for where, left in ((folder, missing), (listed, undescribed)):
        if left:
            print(f"left out, not in {where}: {', '.join(left)}", file=sys.stderr)
    return [folder / source["file"] for source in found], found


def check_recipe(build: Path, recipe: Mapping[str, Any]) -> None:
    """Keep the recipe beside the run, and refuse another than a run in `build` was begun with. The number of steps may
    be another, but for fewer than were taken: the run goes on to it, and a model of before is not what is asked for."""
    kept, out = build / "recipe.json", build / "run"
    now = flat(recipe)
    if kept.exists() and (out / "checkpoints").exists():
        taken = steps_taken(out / "checkpoints")
        if isinstance(now.get(STEPS), int) and now[STEPS] < taken:
            raise Refused(
                f"{build}: its run has taken {taken:,} steps, and the recipe asks for {now[STEPS]:,}. Choose another "
                "--build"
            )
        before = json.loads(kept.read_text())
        other = sorted(key for key in {*before, *now} - {STEPS} if before.get(key) != now.get(key))
        if other:
            told = ", ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in other)
            raise Refused(f"{build}: its run was begun with another recipe: {told}. Choose another --build")
        if before.get(STEPS) != now.get(STEPS):
            (out / "model.safetensors").unlink(missing_ok=True)
    kept.write_text(json.dumps(now))


def steps_taken(checkpoints: Path) -> int:
    """At the newest checkpoint."""
    numbers = (path.name.removeprefix("step-") for path in checkpoints.glob("step-*"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def flat(recipe: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """Settings of all tables under dotted names."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found |= flat(value, f"{of}{key}.") if isinstance(value, Mapping) else {f"{of}{key}": value}
    return found


def unmask(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "unmask", *arguments]


def done(*arguments: str) -> None:
    """Run a command that says itself what is wrong."""
    if code := subprocess.run(unmask(*arguments)).returncode:
        print(f"make_model: unmask {' '.join(arguments[:2])} ended with exit code {code}", file=sys.stderr)
        raise SystemExit(code)


def train(files: list[Path], build: Path, minutes: float, recipe: Path) -> bool:
    """Go on with the run for so many minutes; whether it is finished."""
    prepared, out = build / "prepared", build / "run"
    settings = table_of(recipe)
    check_recipe(build, settings)
    decided = [f"{name}={settings[name]}" for name in (*SETTINGS, *TRAINED, "sentences") if name in settings]
    done("prepare", "text", *map(str, files), "--out", str(prepared), *(a for k in decided for a in ("--set", k)))
    if (out / "model.safetensors").exists():
        return True
    again = ["--resume"] if (out / "checkpoints").exists() else []
    command = unmask("pretrain", "text", str(prepared), "--out", str(out), "--config", str(recipe), *again)
    code, told = run_for(command, 60 * minutes)
    if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise Refused(f"the run ended with exit code {code}")
    return not told and (out / "model.safetensors").exists()


def run_for(command: list[str], seconds: float) -> tuple[int, bool]:
    """Run a command that writes a checkpoint and ends at SIGTERM, which it is sent when the time is over, and when this
    process is told to end; told again, it ends at once.

    Returns:
        Its exit code, and whether this process was told to end.
    """
    told: list[int] = []
    kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()  # under nohup
    numbers = [number for number in ENDING if number not in kept]
    handlers = {n: signal.signal(n, lambda number, _: told.append(number)) for n in numbers}
    try:
        # In a group of its own: a terminal sends Ctrl-C to all of a group, and a second signal ends a run at once.
        run, end, sent = subprocess.Popen(command, process_group=0), time.monotonic() + seconds, 0
        while (code := run.poll()) is None:
            if sent < max(len(told), time.monotonic() > end):
                run.send_signal(signal.SIGTERM)
                sent += 1
            time.sleep(0.1)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code, bool(told)


def pack(build: Path, sources: list[dict[str, str]], out: Path) -> Path:
    """The wheel of the trained model, and of nothing else."""
    module = NAME.replace("-", "_")
    package = build / "package"
    shutil.rmtree(package, ignore_errors=True)
    model = package / module / "model"
    model.parent.mkdir(parents=True)
    done("export", str(build / "run"), "--out", str(model), "--dtype", "bf16")
    weights = (model / "model.safetensors").stat().st_size
    if weights > LARGEST:
        raise Refused(f"the weights take {weights:,} bytes; at most {LARGEST:,} are packed")
    (package / module / "__init__.py").write_text(MODULE.format(name=NAME))
    card = card_text(model, module) + "\n" + told(sources)
    (model / "README.md").write_text(card, encoding="utf-8")
    return wheel(package, module, card, out, licence_of(sources))


def card_text(model: Path, module: str) -> str:
    """The card, with the package's name where a run's has its folder: unmask takes the name, transformers a path."""
    made = card_of(model, name=NAME)
    path = made.use.transformers.replace(f'"{NAME}"', f"str({module}.folder())")
    use = dataclasses.replace(made.use, transformers=f"import {module}\n{path}")
    data = [sentence for sentence in made.data if not sentence.startswith("From ")]  # the prepared folder
    return dataclasses.replace(made, data=data, use=use).text()


def licence_of(sources: list[dict[str, str]]) -> str:
    """The wheel's licence, where all texts have one of which the SPDX identifier is given; else the card alone says."""
    known = {source.get("spdx", "") for source in sources}
    return f"License-Expression: {known.pop()}\n" if len(known) == 1 and "" not in known else ""


def wheel(package: Path, module: str, card: str, out: Path, licence: str = "") -> Path:
    """A wheel of the files under `package`, written here so that packing needs no build tool and no network (the format
    is that of the Python packaging user guide, "Binary distribution format")."""
    info = f"{module}-{VERSION}.dist-info"
    texts = {
        "METADATA": METADATA.format(name=NAME, version=VERSION, card=card, licence=licence),
        "WHEEL": WHEEL,
        "entry_points.txt": ENTRY.format(name=NAME, module=module),
    }
    files = {p.relative_to(package).as_posix(): p.read_bytes() for p in sorted(package.rglob("*")) if p.is_file()}
    files |= {f"{info}/{name}": text.encode() for name, text in texts.items()}
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items())
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{module}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (*files.items(), (f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode())):
            archive.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED)
    return path


def digest(data: bytes) -> str:
    """SHA-256 as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def told(sources: list[dict[str, str]]) -> str:
    """What it learnt from, for the package's README."""
    lines = [f"- {s['title']}: {s['licence']}, {s['address']}" for s in sources]
    return "\n".join(["## What it learnt from", "", *lines, "", "The weights are under the licence of that text.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder with files that --sources names")
    parser.add_argument("--sources", type=Path, default=HERE / "sources.toml", help="TOML that says what the files are")
    parser.add_argument("--minutes", type=float, default=60.0, help="to train in this call")
    parser.add_argument("--recipe", type=Path, default=HERE / "recipe.toml", help="TOML of settings")
    parser.add_argument("--build", type=Path, default=Path("build") / "english", help="folder of the run")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the package")
    given = parser.parse_args()
    if not given.corpus.is_dir():
        raise Refused(f"--corpus {given.corpus}: no such folder")
    if not given.minutes > 0:
        raise Refused(f"--minutes {given.minutes}: expected more than 0")
    files, sources = corpus_files(given.corpus, given.sources)
    given.build.mkdir(parents=True, exist_ok=True)
    if not train(files, given.build, given.minutes, given.recipe):
        print(f"not finished: the same command goes on; {given.build / 'run' / 'metrics.jsonl'} says how far it is")
        return
    print(f"packed: {pack(given.build, sources, given.out)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("make_model: interrupted; the same command goes on", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
