"""Start-up and first answer: cold processes, ours beside transformers' fill-mask pipeline on the same model folder.

    python benchmarks/text_infer.py [MODEL_FOLDER] [--runs 7]

Without a folder a BERT of 4 layers x 256 with random weights and the tokenizer of the docstring corpus is made:
start-up and first-answer time do not depend on what the weights are.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# flush: the answer counts when it can be read, not when the process has been taken apart.
OURS = (
    "import sys, unmask; print(unmask.load(sys.argv[1]).fill(['the [MASK] of "
    "the'])[0]['slots'][0]['candidates'][0]['value'], flush=True)"
)
THEIRS = (
    "import sys; from transformers import pipeline; print(pipeline('fill-mask', model=sys.argv[1], "
    "tokenizer=sys.argv[1])('the [MASK] of the')[0]['token_str'], flush=True)"
)


def wall(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def first_line(command: list[str]) -> float:
    """Seconds from the start of a process to the first line it prints."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if not process.stdout.readline().strip():
            raise RuntimeError(f"{command[:3]} printed nothing")
        return time.perf_counter() - start


def report(name: str, times: list[float]) -> float:
    middle = statistics.median(times)
    print(f"{name:34}{middle:8.3f} s   ({min(times):.3f} to {max(times):.3f}, {len(times)} runs)", flush=True)
    return middle


def make_model(folder: Path) -> None:
    from unmask.modalities.text.network.folder import new_text_model, save_folder
    from unmask.modalities.text.reading.documents import docstrings
    from unmask.modalities.text.tokens.tokenizer import Tokenizer

    texts = (text for _, text in docstrings(1_000_000))
    tokenizer = Tokenizer.train(texts, kind="wordpiece", vocab_size=8192)
    model, family = new_text_model(
        "bert",
        vocabulary=tokenizer.vocab_size,
        width=256,
        layers=4,
        heads=4,
        inner=1024,
        slots=128,
        tokenizer=tokenizer,
        dropout=0.0,
        decoder=None,
    )
    save_folder(folder, model=model, tokenizer=tokenizer, family=family, settings={})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    python, command = sys.executable, str(Path(sys.executable).parent / "unmask")
    empty = [wall([python, "-c", "pass"]) for _ in range(arguments.runs)]
    report("python -c pass", empty)
    report("import unmask", [wall([python, "-c", "import unmask"]) for _ in range(arguments.runs)])
    report("unmask --help", [wall([command, "--help"]) for _ in range(arguments.runs)])
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.model or made
        if arguments.model is None:
            make_model(Path(made))
        ours, theirs = [], []
        for _ in range(arguments.runs):
            ours.append(first_line([python, "-c", OURS, folder]))
            theirs.append(first_line([python, "-c", THEIRS, folder]))
    mine = report("first answer, unmask", ours)
    other = report("first answer, fill-mask pipeline", theirs)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(f"ratio {mine / other:.3f} (pairwise {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
