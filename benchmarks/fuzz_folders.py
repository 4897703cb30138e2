"""Damage model folders one place at a time and use them: counts refusals, answers, and whatever should not happen.

    python benchmarks/fuzz_folders.py [--count 1000] [--seed 0] [--kind text --kind table --kind images --kind events]

Exit code 1 if a damaged folder gave a traceback, hung for 30 s, answered with what is no number, or took more than 2
GiB. Folders of patient events are tried only where asked for. Each use is first tried on the whole folder, where it
must work.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "modalities" / "table"), str(TESTS / "modalities" / "events")]
LIMIT = 2 * 1024 * 1024
"""Kilobytes that this process may hold."""
Uses = dict[str, list[list[str]]]


def text(home: Path) -> Uses:
    """Text models: our recipes, published families, sentence-transformers, ONNX, fine-tuned."""
    import tiny_folders
    import unmask
    from published import published, task_head
    from unmask.export.folders import to_sentence_transformers
    from unmask.export.onnx import to_onnx

    tiny_folders.folder(home / "bert")
    tiny_folders.folder(home / "modern", recipe="modern", kind="bpe")
    families = (
        "roberta",
        "deberta-v3",
        "albert",
        "longformer",
        "eurobert",
        "electra-projected",
        "mpnet",
        "distilbert",
        "bigbird",
    )
    for name in families:
        published(name, home / name)
    loaded = unmask.load(home / "bert", precision="fp32", device="cpu")
    to_sentence_transformers(loaded, home / "sentences")
    to_onnx(loaded, home / "onnx")
    task_head("bert", "SequenceClassification", home / "published-task")
    rows = tiny_folders.sentiment(12)
    for task, data in {"classify": rows, "similarity": [("quick fox", "lazy dog", i / 4) for i in range(4)]}.items():
        unmask.finetune(home / "bert", _rows(data), task=task, out=home / task, steps=1, precision="fp32", device="cpu")
        (home / task / "report.html").unlink()
    (home / "t.txt").write_text("\n".join(f"The quick brown fox {i} jumps over the lazy dog." for i in range(30)))
    (home / "t.csv").write_text("text,label\n" + "".join(f"{t},{label}\n" for t, label in rows))
    masked = [
        ["fill", "MODEL", "The [MASK] fox."],
        ["score", "MODEL", "The fox."],
        ["embed", "MODEL", "The fox.", "--out", "OUT"],
        ["evaluate", "MODEL", "HOME/t.txt"],
        ["export", "MODEL", "--out", "OUT"],
        ["inspect", "MODEL"],
        ["adapt", "MODEL", "HOME/t.txt", "--out", "OUT", "--steps", "1"],
        ["finetune", "classify", "MODEL", "HOME/t.csv", "--out", "OUT", "--steps", "1"],
    ]
    headed = [
        ["predict", "MODEL", "HOME/t.txt", "--out", "OUT"],
        ["embed", "MODEL", "The fox.", "--out", "OUT"],
        ["inspect", "MODEL"],
    ]
    out = dict.fromkeys(("bert", "modern", *families, "sentences", "onnx"), masked)
    return out | dict.fromkeys(("classify", "similarity", "published-task"), headed)


def _rows(data: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(("text", "label") if len(r) == 2 else ("text", "text2", "label"), r, strict=True)) for r in data]


def table(home: Path) -> Uses:
    from tables import patients

    from unmask.modalities.table.pretrain import pretrain
    from unmask.modalities.table.recipes import settings_of

    patients(80, missing=0.1).to_csv(home / "train.csv", index=False)
    patients(12, seed=1, missing=0.3).to_csv(home / "new.csv", index=False)
    pretrain(home / "train.csv", home / "table", settings=settings_of(steps=3, members=2), console=False)
    (home / "table" / "report.html").unlink()
    return {
        "table": [
            ["impute", "MODEL", "HOME/new.csv", "--out", "OUT.csv"],
            ["score", "MODEL", "HOME/new.csv"],
            ["inspect", "MODEL"],
            ["embed", "MODEL", "HOME/new.csv", "--out", "OUT"],
            ["synthesize", "MODEL", "--rows", "3", "--out", "OUT.csv"],
        ]
    }


def images(home: Path) -> Uses:
    import numpy as np
    from PIL import Image

    from commands import exit_code

    rng = np.random.default_rng(0)
    for label in "ab":
        (home / "pictures" / label).mkdir(parents=True)
        for k in range(8):
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(
                home / "pictures" / label / f"{k}.png"
            )
    small = [f"--set={s}" for s in ("image_size=16", "patch=4", "width=16", "layers=1", "heads=2")]
    assert not exit_code("pretrain", "images", home / "pictures", "--out", home / "images", "--steps", 1, *small)
    assert not exit_code(
        "finetune", "classify", home / "images", home / "pictures", "--out", home / "classifier", "--steps", 1
    )
    seen = [["embed", "MODEL", "HOME/pictures", "--out", "OUT"], ["inspect", "MODEL"]]
    return {
        "images": [*seen, ["fill", "MODEL", "HOME/pictures", "--out", "OUT.png"]],
        "classifier": [*seen, ["predict", "MODEL", "HOME/pictures", "--out", "OUT"]],
    }


def events(home: Path) -> Uses:
    from commands import exit_code
    from unmask.modalities.events.uses.demo import simulate

    simulate(home, patients=60)
    small = [f"--set={s}" for s in ("slots=64", "batch_slots=1024", "width=32")]
    assert not exit_code(
        "pretrain", "events", home / "meds", "--out", home / "events", "--steps", 2, *small, "--precision", "fp32"
    )
    return {"events": [["embed", "MODEL", "HOME/meds", "--out", "OUT"], ["inspect", "MODEL"]]}


def main() -> int:
    from damage import attempt, damage

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=["text", "table", "images", "events"])
    given = parser.parse_args()
    kinds = given.kind or ["text", "text", "table", "images"]
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        tried: list[tuple[str, list[str]]] = []
        for kind in dict.fromkeys(kinds):
            (home / kind).mkdir()
            for name, uses in globals()[kind](home / kind).items():
                tried += [(f"{kind}/{name}", use) for use in uses] * kinds.count(kind)

        def arguments(model: Path, use: list[str], out: Path, kind: str) -> list[str]:
            known = {"MODEL": model, "HOME": home / kind, "OUT": out}
            for name, path in known.items():
                use = [part.replace(name, str(path)) for part in use]
            return use

        for number, (name, use) in enumerate(tried):
            if said := attempt(
                [*arguments(home / name, use, home / f"whole-{number}", name.split("/")[0]), "--json"], 120
            ):
                print(f"whole folder {name}, {use[0]}: {said}")
                wrong += 1
        for seed in range(given.seed, given.seed + given.count):
            name, use = tried[seed % len(tried)]
            work = home / "work"
            work.mkdir()
            shutil.copytree(home / name, work / "m")
            done = damage(work / "m", seed)
            if said := attempt([*arguments(work / "m", use, work / "out", name.split("/")[0]), "--json"]):
                print(f"seed {seed}, {name}, {use[0]}, {done[:120]}: {said}", flush=True)
                wrong += 1
            shutil.rmtree(work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{given.count} damaged folders, {wrong} wrong, peak memory {peak / 1024:.0f} MiB")
    return int(wrong > 0 or peak > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
