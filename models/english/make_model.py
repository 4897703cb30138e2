"""Train the English model, some minutes at a time, and pack it as a Python package: `make model`.

    python models/english/make_model.py --corpus FOLDER --minutes 60     # again and again, until it is packed

Every call goes on where the last one stopped, bit for bit on a CPU. When the recipe's steps are done the model is
judged on held-out text, written in 16 bits and packed: `pip install dist/unmask_en-*.whl`, then
`unmask.load("unmask-en")`.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from unmask.evaluation.card import card_of

HERE = Path(__file__).resolve().parent
NAME, VERSION = "unmask-en", "0.1.0"
LARGEST = 40_000_000
"""Bytes that the weights may take."""

METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: A small English masked language model, trained with unmask on free text.
License-Expression: CC-BY-SA-3.0
Requires-Python: >=3.11
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


def corpus_files(folder: Path) -> tuple[list[Path], list[dict[str, str]]]:
    """The files of the corpus and what sources.toml says of them."""
    sources = tomllib.loads((HERE / "sources.toml").read_text(encoding="utf-8"))["source"]
    found = [(folder / s["file"], s) for s in sources if (folder / s["file"]).is_file()]
    if not found:
        raise Refused(f"{folder}: none of {', '.join(s['file'] for s in sources)} (models/english/sources.toml)")
    missing = [s["file"] for s in sources if s not in [known for _, known in found]]
    if missing:
        print(f"not there, and left out: {', '.join(missing)}", file=sys.stderr)
    return [path for path, _ in found], [s for _, s in found]


def unmask(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "unmask", *arguments]


def train(files: list[Path], build: Path, minutes: float, recipe: Path) -> bool:
    """Go on with the run for so many minutes; whether it is finished."""
    prepared, out = build / "prepared", build / "run"
    settings = tomllib.loads(recipe.read_text(encoding="utf-8"))
    kept = [f"{name}={settings[name]}" for name in ("slots", "vocabulary", "tokenizer_kind") if name in settings]
    subprocess.run(
        unmask("prepare", "text", *map(str, files), "--out", str(prepared), *(a for k in kept for a in ("--set", k))),
        check=True,
    )
    if (out / "model.safetensors").exists():
        return True
    again = ["--resume"] if (out / "checkpoints").exists() else []
    run = subprocess.Popen(
        unmask("pretrain", "text", str(prepared), "--out", str(out), "--config", str(recipe), *again)
    )
    try:
        run.wait(timeout=60 * minutes)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGTERM)  # a checkpoint is written, and the run ends
        run.wait()
    if run.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise Refused(f"the run ended with exit code {run.returncode}")
    return (out / "model.safetensors").exists()


def pack(build: Path, sources: list[dict[str, str]], out: Path) -> Path:
    """The wheel of the trained model, and of nothing else."""
    module = NAME.replace("-", "_")
    package = build / "package"
    shutil.rmtree(package, ignore_errors=True)
    model = package / module / "model"
    model.parent.mkdir(parents=True)
    subprocess.run(unmask("export", str(build / "run"), "--out", str(model), "--dtype", "bf16"), check=True)
    weights = (model / "model.safetensors").stat().st_size
    if weights > LARGEST:
        raise Refused(f"the weights take {weights:,} bytes; at most {LARGEST:,} are packed")
    (package / module / "__init__.py").write_text(MODULE.format(name=NAME))
    card = card_text(model, module) + "\n" + told(sources)
    (model / "README.md").write_text(card, encoding="utf-8")
    return wheel(package, module, card, out)


def card_text(model: Path, module: str) -> str:
    """The card, with the package's name where a run's has its folder: unmask takes the name, transformers a path."""
    made = card_of(model, name=NAME)
    path = made.use.transformers.replace(f'"{NAME}"', f"str({module}.folder())")
    use = dataclasses.replace(made.use, transformers=f"import {module}\n{path}")
    data = [sentence for sentence in made.data if not sentence.startswith("From ")]  # the prepared folder
    return dataclasses.replace(made, data=data, use=use).text()


def wheel(package: Path, module: str, card: str, out: Path) -> Path:
    """A wheel of the files under `package`, written here so that packing needs no build tool and no network (the format
    is that of the Python packaging user guide, "Binary distribution format")."""
    info = f"{module}-{VERSION}.dist-info"
    texts = {
        "METADATA": METADATA.format(name=NAME, version=VERSION, card=card),
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
    parser.add_argument("--corpus", type=Path, required=True, help="folder with files that sources.toml knows")
    parser.add_argument("--minutes", type=float, default=60.0, help="to train in this call")
    parser.add_argument("--recipe", type=Path, default=HERE / "recipe.toml", help="TOML of settings")
    parser.add_argument("--build", type=Path, default=Path("build") / "english", help="folder of the run")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the package")
    given = parser.parse_args()
    if not given.corpus.is_dir():
        raise Refused(f"--corpus {given.corpus}: no such folder")
    if not given.minutes > 0:
        raise Refused(f"--minutes {given.minutes}: expected more than 0")
    files, sources = corpus_files(given.corpus)
    given.build.mkdir(parents=True, exist_ok=True)
    if not train(files, given.build, given.minutes, given.recipe):
        print(f"not finished: the same command goes on; {given.build / 'run' / 'metrics.jsonl'} says how far it is")
        return
    print(f"packed: {pack(given.build, sources, given.out)}")


if __name__ == "__main__":
    main()
