"""`unmask finetune` as it comes beside linear baselines, the Trainer's defaults and contrastive tuning, on real sets.

    python benchmarks/text_defaults.py --model MINILM --rows 500 --seeds 1      one column
    python benchmarks/text_defaults.py --model MINILM                           500 and 3 000 rows, 3 seeds: hours
    python benchmarks/text_defaults.py --summary                                the table of what is there

Every cell (set, rows, seed, method) runs in a process of its own and is appended to --out as one line of JSON; cells
that are there are not run again. Training rows are drawn by the seed, test rows are apart and always the same (at most
1 000). Nothing is chosen on them. Seconds are processor seconds of all of it: reading the model, features, choosing,
training; not the scoring of test rows.

Methods: often (the most frequent class, each word's most frequent tag, a sentence of the context, the mean), tfidf
(TF-IDF of words and pairs of words + logistic or ridge regression), frozen (mean vectors of the frozen encoder + the
same; of pairs |u - v|, u * v and cosine), ours (`unmask finetune`,
no settings), trainer (transformers' Trainer: 3 epochs, rate 5e-5, batch 8, all its defaults), contrastive (SetFit's
recipe: pairs of one and of different classes, cosine loss, one epoch, at most 20 pairs per row; then logistic
regression; classes of single texts only).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "text"
GLUE = ("SST-2", "CoLA", "MRPC", "RTE", "STS-B")
SETS = {
    "clinc77": "classify",
    "clinc150": "classify",
    "pubmed_roles": "classify",
    **dict.fromkeys(GLUE, "classify"),
    "wnut17": "tag",
    "wikigold": "tag",
    "BC5CDR": "tag",
    "NCBI-disease": "tag",
    "policyqa": "answer",
    "xquad": "answer",
}
METHODS = ("often", "tfidf", "frozen", "ours", "trainer", "contrastive")
TEST_ROWS = 1000


def read(name: str) -> tuple[list, list]:
    """(training rows, test rows) of a set, all of them."""
    from unmask.modalities.text.tasks.answer import as_questions
    from unmask.modalities.text.tasks.conll import as_sentences
    from unmask.modalities.text.tasks.data import Item, Problems, as_items
    from unmask.modalities.text.tasks.glue import TASKS, find, read_glue

    lenient = Problems(lenient=True, say=lambda line: print(line[:200], file=sys.stderr))
    if name.startswith("clinc"):
        rows = json.loads((SHARED / "classification" / "clinc150.json").read_text())
        kept = set(sorted({label for _, label in rows["train"]})[: int(name[5:])])
        train, test = ([Item(text=t, label=x) for t, x in rows[part] if x in kept] for part in ("train", "test"))
        return train, test
    if name == "pubmed_roles":
        home = SHARED / "classification" / "pubmed_section_roles"
        return as_items(home / "train.jsonl.gz")[0], as_items(home / "test.jsonl.gz")[0]
    if name in GLUE:
        train, dev = find(SHARED / "glue", TASKS[name], name)
        return read_glue(train, TASKS[name], labelled=True), read_glue(dev, TASKS[name], labelled=True)
    if SETS[name] == "tag":
        home = SHARED / "ner" / name
        files = {"wnut17": ("wnut17train.conll", "emerging.dev.conll"), "wikigold": ("wikigold.conll.txt",)}
        found = [
            as_sentences(home / f, labelled=True, problems=lenient) for f in files.get(name, ("train.tsv", "test.tsv"))
        ]
        return (found[0], found[1]) if len(found) == 2 else cut(found[0])
    if name == "policyqa":
        return tuple(as_questions(SHARED / "qa" / name / f"{p}.json", labelled=True) for p in ("dev", "test"))
    return cut(as_questions(SHARED / "qa" / "xquad" / "xquad.en.json", labelled=True))


def cut(items: list) -> tuple[list, list]:
    """The first four fifths and the last fifth: neighbours (questions about one text) stay together but at the cut."""
    edge = len(items) * 4 // 5
    return items[:edge], items[edge:]


def rows_of(name: str, rows: int, seed: int) -> tuple[list, list]:
    train, test = read(name)
    chosen = np.random.default_rng([seed, 1]).permutation(len(train))[:rows]
    fixed = np.random.default_rng(0).permutation(len(test))[:TEST_ROWS]
    return [train[i] for i in chosen], [test[i] for i in fixed]


def cell(arguments: argparse.Namespace) -> dict:
    """One method on one set, in this process."""
    import torch

    torch.manual_seed(arguments.seed)
    train, test = rows_of(arguments.set, arguments.rows[0], arguments.seed)
    began = time.process_time()
    if arguments.method == "ours":
        predictions, work, spent, more = ours(arguments, train, test, began)
    else:
        run = baseline(arguments, train, test)
        predictions, work, spent, more = run
        spent -= began
    scores = work.score(predictions, test)
    draws = []
    rng = np.random.default_rng(0)
    for _ in range(100):
        drawn = rng.integers(len(test), size=len(test))
        draws.append(work.score([predictions[i] for i in drawn], [test[i] for i in drawn])[work.metric])
    low, high = np.quantile(draws, [0.025, 0.975])
    return {
        "set": arguments.set,
        "rows": len(train),
        "asked": arguments.rows[0],
        "seed": arguments.seed,
        "method": arguments.method,
        "metric": work.metric,
        "value": scores[work.metric],
        "low": float(low),
        "high": float(high),
        "cpu_seconds": round(spent, 1),
        "test_rows": len(test),
        **more,
    }


def ours(arguments, train, test, began):
    import tempfile

    from unmask.modalities.text.tasks.finetune import finetune, predict_items
    from unmask.modalities.text.tasks.model import load

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "m"
        task = SETS[arguments.set]
        found = finetune(arguments.model, train, task=task, out=out, seed=arguments.seed, say=print)
        spent = time.process_time() - began
        folder = load(out)
        predictions = predict_items(folder, test)
    return predictions, folder.task, spent, {"kept": found["kept"], "comparison": found["comparison"]}


def baseline(arguments, train, test):
    """Predictions of one of the others, the task that scores them, and the processor time when they were fitted."""
    import torch

    from unmask.modalities.text.network.folder import load_folder
    from unmask.modalities.text.tasks import compare, linear
    from unmask.modalities.text.tasks.baselines import pair_vectors, targets
    from unmask.modalities.text.tasks.classify import KINDS
    from unmask.modalities.text.tasks.encoding import ExampleMaker
    from unmask.modalities.text.tasks.network import TaskModel
    from unmask.modalities.text.tasks.registry import task_class
    from unmask.modalities.text.tasks.settings import TaskSettings

    task, method = SETS[arguments.set], arguments.method
    text = load_folder(arguments.model)
    slots = min(512, text.model.encoder.config.longest or 512)
    encoder = ExampleMaker(text.tokenizer, slots=slots, types=bool(text.model.codec.config.types))
    work = task_class(task).from_items(encoder, train, TaskSettings())
    if method == "trainer":
        return trainer(arguments, work, train, test)
    training, held = work.prepare(train, labelled=True), work.prepare(test, labelled=task == "tag")
    if task != "classify":
        if method != "often":
            raise SystemExit(f"{method} is for classify alone")
        found = compare.rivals(work, None, training, held, found=[], seed=0)
        return found[0].predictions, work, time.process_time(), {}
    target, kind = targets(work, training), KINDS[work.problem]
    if method == "often":
        share = target.mean(0)
        constant = np.log(share.clip(1e-6)) if work.problem == "single" else share
        return work.decode([constant] * len(test), held), work, time.process_time(), {}
    if method == "tfidf":
        from unmask.modalities.text.tasks.baselines import fit_words

        outputs = fit_words(train, target, work.problem).of_texts(test)
        return work.decode(list(outputs), held), work, time.process_time(), {}
    model = TaskModel(text.model, None)
    pair = train[0].text2 is not None
    if pair:
        from unmask.modalities.text.tasks.baselines import fit_pair_vectors

        fitted = fit_pair_vectors(pair_vectors(model, encoder, train), train, target, work.problem)
        at = time.process_time()
        outputs = fitted.of_vectors(pair_vectors(model, encoder, test))
        return work.decode(list(outputs), held), work, at, {}
    from unmask.modalities.text.tasks import probe

    if method == "contrastive":
        contrast(text, training, arguments.seed, slots)
    x = torch.nn.functional.normalize(probe.pooled(model, training, slots)[1], dim=-1).numpy()
    _, strength, _ = linear.cross_validated([x], target, kind, strengths=(1.0, 10.0, 100.0, 1000.0))
    solved = linear.fit(x, target, kind, strength)
    at = time.process_time()
    z = torch.nn.functional.normalize(probe.pooled(model, held, slots)[1], dim=-1).numpy()
    return work.decode(list(solved(z)), held), work, at, {}


def contrast(text, training, seed: int, slots: int, pairs: int = 20, batch: int = 16, rate: float = 2e-5) -> None:
    """SetFit's first stage (Tunstall et al. 2022, sec. 3): squared error of the cosine on pairs of one class (1) and of
    two (0)."""
    import torch
    from torch.nn.functional import cosine_similarity, mse_loss

    from unmask.core.embed import pool_states
    from unmask.modalities.text.tasks.loop import batch_of

    rng, label = np.random.default_rng(seed), training.extra["target"].numpy()
    n = len(label)
    chosen = []
    for i in range(n):
        same, other = np.flatnonzero(label == label[i]), np.flatnonzero(label != label[i])
        for _ in range(min(pairs, max(2, 10_000 // n)) // 2):
            chosen += [(i, int(rng.choice(same)), 1.0), (i, int(rng.choice(other)), 0.0)]
    order = rng.permutation(len(chosen))
    optimiser = torch.optim.AdamW(text.model.encoder.parameters(), lr=rate)
    steps = -(-len(order) // batch)
    text.model.train()
    for step in range(steps):
        here = [chosen[i] for i in order[step * batch : (step + 1) * batch]]
        numbers = [x for a, b, _ in here for x in (a, b)]
        packed = batch_of(training.examples, numbers, slots, text.model.encoder.config.width)
        v = pool_states(text.model.states(packed), packed, len(numbers), "mean", True)
        loss = mse_loss(cosine_similarity(v[::2], v[1::2]), torch.tensor([y for *_, y in here]))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    text.model.eval()


def trainer(arguments, work, train, test):
    """transformers' Trainer as it comes, on the examples of the task (padded to the longest of each batch)."""
    import tempfile

    import torch
    import transformers
    from torch.nn.functional import log_softmax

    training, held = work.prepare(train, labelled=True), work.prepare(test, labelled=False)
    class_name = {"classify": "SequenceClassification", "tag": "TokenClassification", "answer": "QuestionAnswering"}[
        work.name
    ]
    kind = getattr(transformers, f"AutoModelFor{class_name}")
    options = {} if work.name == "answer" else {"num_labels": work.outputs}
    if work.name == "classify":
        options["problem_type"] = work.config()["problem_type"]
    transformers.set_seed(arguments.seed)
    model = kind.from_pretrained(arguments.model, **options)

    def row(prepared, i, labelled):
        e = prepared.examples[i]
        out = {"input_ids": e.values["token"]}
        if "type" in e.values:
            out["token_type_ids"] = e.values["type"]
        if labelled and work.name == "classify":
            out["labels"] = prepared.extra["target"][i].numpy()
        elif labelled and work.name == "tag":
            out["labels"] = e.values["target"] - 1  # -1: none
        elif labelled:
            out["start_positions"], out["end_positions"] = prepared.extra["target"][i].numpy()
        return out

    def collate(rows):
        longest = max(len(r["input_ids"]) for r in rows)
        out = {"attention_mask": torch.zeros(len(rows), longest, dtype=torch.int64)}
        for name in rows[0]:
            if np.ndim(rows[0][name]) and len(rows[0][name]) == len(rows[0]["input_ids"]):
                fill = torch.full((len(rows), longest), -100 if name == "labels" else 0, dtype=torch.int64)
                for i, r in enumerate(rows):
                    value = torch.as_tensor(r[name])
                    fill[i, : len(value)] = torch.where(value < 0, -100, value) if name == "labels" else value
                    out["attention_mask"][i, : len(value)] = 1
                out[name] = fill
            else:
                out[name] = torch.as_tensor(np.stack([r[name] for r in rows]))
        return out

    with tempfile.TemporaryDirectory() as scratch:
        settings = transformers.TrainingArguments(
            output_dir=scratch,
            report_to=[],
            save_strategy="no",
            seed=arguments.seed,
            disable_tqdm=True,
            use_cpu=True,
            logging_strategy="no",
            remove_unused_columns=False,
            max_steps=getattr(arguments, "steps", None) or -1,
        )
        data = [row(training, i, True) for i in range(len(training.examples))]
        transformers.Trainer(model=model, args=settings, train_dataset=data, data_collator=collate).train()
    at = time.process_time()
    model.eval()
    found = []
    with torch.no_grad():
        for i in range(len(held.examples)):
            said = model(**collate([row(held, i, False)]))
            if work.name == "classify":
                found.append(said.logits[0].numpy())
            elif work.name == "tag":
                found.append(log_softmax(said.logits[0], -1).numpy())
            else:
                found.append(torch.stack([said.start_logits[0], said.end_logits[0]], -1).numpy())
    return work.decode(found, held), work, at, {}


def takes(name: str, method: str) -> bool:
    """Whether a method is for a set."""
    if SETS[name] != "classify":
        return method in ("often", "ours", "trainer")
    return method != "contrastive" or name not in ("MRPC", "RTE", "STS-B")


def summary(path: Path) -> None:
    """Mean over seeds per set and method, with the interval over the test rows of the first seed; seconds."""
    cells = [json.loads(line) for line in path.read_text().splitlines()]
    for rows in sorted({c["asked"] for c in cells}):
        print(f"\n{rows} training rows\n| set | " + " | ".join(METHODS) + " |\n|" + "---|" * (len(METHODS) + 1))
        gains = []
        for name in SETS:
            parts, best = [], {}
            for method in METHODS:
                mine = [c for c in cells if (c["set"], c["asked"], c["method"]) == (name, rows, method)]
                if not mine:
                    parts.append("")
                    continue
                best[method] = float(np.mean([c["value"] for c in mine]))
                seconds = np.mean([c["cpu_seconds"] for c in mine])
                parts.append(
                    f"{best[method]:.3f} [{mine[0]['low']:.3f}, {mine[0]['high']:.3f}] x{len(mine)}, {seconds:.0f} s"
                )
            if any(parts):
                print(f"| {name} | " + " | ".join(parts) + " |")
            linear = [best[m] for m in ("often", "tfidf", "frozen") if m in best]
            if "ours" in best and linear:
                scale = 100 if SETS[name] == "answer" else 1
                gains.append((best["ours"] - max(linear)) / scale)
        if gains:
            print(
                f"\nours above the best linear baseline, mean over {len(gains)} sets: {np.mean(gains):+.4f}; least "
                f"{min(gains):+.4f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a sentence encoder, such as all-MiniLM-L6-v2")
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 3000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--out", type=Path, default=Path("text_defaults.jsonl"))
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--set", help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.summary:
        summary(arguments.out)
        return
    if arguments.set:
        print("CELL " + json.dumps(cell(arguments)))
        return
    if not arguments.model:
        parser.error("--model is needed")
    kept = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    there = {(c["set"], c["asked"], c["seed"], c["method"]) for c in map(json.loads, kept)}
    for seed in range(arguments.seeds):
        for rows in arguments.rows:
            for name in arguments.sets:
                for method in arguments.methods:
                    if (name, rows, seed, method) in there or not takes(name, method):
                        continue
                    command = [
                        sys.executable,
                        __file__,
                        "--model",
                        arguments.model,
                        "--rows",
                        str(rows),
                        "--set",
                        name,
                        "--method",
                        method,
                        "--seed",
                        str(seed),
                    ]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    line = next((x[5:] for x in done.stdout.splitlines() if x.startswith("CELL ")), None)
                    if line is None:
                        print(f"{name} {rows} {seed} {method}: failed\n{done.stderr[-800:]}", file=sys.stderr)
                        continue
                    with arguments.out.open("a") as file:
                        file.write(line + "\n")
                    found = json.loads(line)
                    print(f"{name} {rows} {seed} {method}: {found['value']:.4f}, {found['cpu_seconds']} s", flush=True)
    summary(arguments.out)


if __name__ == "__main__":
    main()
