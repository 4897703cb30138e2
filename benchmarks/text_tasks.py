"""Text tasks side by side with transformers' Trainer: same weights, items, steps, rates and seeds, on this machine.

    python benchmarks/text_tasks.py --model MINILM --quick          one seed, little data: minutes
    python benchmarks/text_tasks.py --model MINILM --seeds 3        docs/explanation/measured-text-tasks.md: hours
    python benchmarks/text_tasks.py --part zeroshot --mlm MODEL     masked prompts against the majority class
    python benchmarks/text_tasks.py --part adapt --mlm MODEL        adapt, then fine-tune

Each side runs in a process of its own, so that peak memory is its own. The reference is the Trainer in its best
sensible configuration: dynamic padding (to the batch), length grouping, bf16 if that measured faster here
(--reference-precision both tries the two and keeps the faster), fused AdamW (its default), nothing evaluated or saved
while training. Time is training alone on both sides, tokenisation not counted. Both sides keep the last state (ours is
told so: no early stop). Grouping by length is fastest, and makes batches of texts of one kind, which can cost accuracy
in short runs; the Trainer's default shuffles, as ours does, and pads more. Both are run (`--reference-order both`). A
process that gives freed memory back to the system, as Python's does unless told otherwise, pays for fresh pages at
every step: the reference is told to keep it, as ours is (`--reference-memory kept`), or left as its users run it
(`default`).
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
TASKS = {
    "SST-2": {"rows": 8000, "metric": "accuracy"},
    "CoLA": {"rows": 8000, "metric": "matthews"},
    "MRPC": {"rows": 3576, "metric": "f1"},
    "STS-B": {"rows": 5749, "metric": "pearson"},
    "wnut17": {"rows": 3394, "metric": "f1"},
    "policyqa": {"rows": 5000, "metric": "f1"},
}

TOPICS = {
    "weather": "weather",
    "play_music": "music",
    "book_flight": "flights",
    "book_hotel": "hotels",
    "recipe": "cooking",
    "insurance": "insurance",
    "taxes": "taxes",
    "alarm": "alarm",
}
"""CLINC150 intents for the zero-shot topics, chosen before anything was measured, and the word for each."""


def read(name: str, rows: int, dev_rows: int):
    """(training items, validation items) of a task, always the same."""
    from unmask.modalities.text.tasks.answer import as_questions
    from unmask.modalities.text.tasks.conll import as_sentences
    from unmask.modalities.text.tasks.glue import TASKS as GLUE
    from unmask.modalities.text.tasks.glue import find, read_glue

    rng = np.random.default_rng(0)

    def some(items, most):
        chosen = np.sort(rng.permutation(len(items))[:most])
        return [items[i] for i in chosen]

    if name in GLUE:
        train, dev = find(SHARED / "glue", GLUE[name], name)
        return (
            some(read_glue(train, GLUE[name], labelled=True), rows),
            some(read_glue(dev, GLUE[name], labelled=True), dev_rows),
        )
    if name == "wnut17":
        home = SHARED / "ner" / "wnut17"
        return (
            some(as_sentences(home / "wnut17train.conll", labelled=True), rows),
            some(as_sentences(home / "emerging.dev.conll", labelled=True), dev_rows),
        )
    questions = as_questions(SHARED / "qa" / "policyqa" / "dev.json", labelled=True)
    held = as_questions(SHARED / "qa" / "policyqa" / "test.json", labelled=True)
    return some(questions, rows), some(held, dev_rows)


def kind(name: str) -> str:
    return {"wnut17": "tag", "policyqa": "answer"}.get(name, "classify")


def one(arguments: argparse.Namespace) -> dict:
    """One side, one task, one seed, in this process."""
    name, seed = arguments.one, arguments.seed
    train, dev = read(name, arguments.rows, arguments.dev_rows)
    common = {
        "epochs": arguments.epochs,
        "batch": 32,
        "learning_rate": arguments.rate,
        "seed": seed,
        "weight_decay": 0.01,
        "warmup": 0.06,
        "slots": 256 if name == "policyqa" else 128,
    }
    if arguments.side == "ours":
        found = ours(name, train, dev, arguments.model, common, arguments.precision)
    else:
        how = {"order": arguments.reference_order, "memory": arguments.reference_memory}
        found = reference(name, train, dev, arguments.model, common, arguments.precision, **how) | how
    return found | {"task": name, "seed": seed, "side": arguments.side}


def ours(name, train, dev, model, common, precision) -> dict:
    from unmask.modalities.text.tasks.finetune import finetune
    from unmask.modalities.text.tasks.glue import TASKS as GLUE

    problem = {"problem": GLUE[name].problem} if name in GLUE else {}
    result = finetune(
        model, train, task=kind(name), validation=dev, precision=precision, evaluate_every=10**9, **common, **problem
    )
    # The one look at the validation data, at the end, is not part of the reference's time either.
    spent = result["train_seconds"] - result["validation_seconds"]
    return {
        "metric": result["metrics"][TASKS[name]["metric"]],
        "seconds": spent,
        "cpu_seconds": result["cpu_seconds"],
        "steps": result["steps"],
        "peak_memory_mb": result["peak_memory_mb"],
        "precision": result["precision"],
    }


def reference(name, train, dev, model, common, precision, *, order, memory) -> dict:
    """transformers' Trainer on the same examples (tokenised by the same code, so that only the training differs)."""
    import tempfile

    import torch
    import transformers
    from transformers import Trainer, TrainingArguments

    from unmask.memory import keep_freed_memory, peak_memory
    from unmask.modalities.text.network.folder import load_folder
    from unmask.modalities.text.tasks.encoding import ExampleMaker
    from unmask.modalities.text.tasks.registry import task_class
    from unmask.modalities.text.tasks.settings import TaskSettings

    if memory == "kept":
        keep_freed_memory()
    transformers.set_seed(common["seed"])
    transformers.logging.set_verbosity_error()
    text = load_folder(model)
    settings = TaskSettings(**common, problem="regression" if name == "STS-B" else "auto")
    encoder = ExampleMaker(text.tokenizer, slots=common["slots"], types=True)
    task = task_class(kind(name)).from_items(encoder, train, settings)
    training, checked = task.prepare(train, labelled=True), task.prepare(dev, labelled=True)
    heads = {
        "classify": transformers.AutoModelForSequenceClassification,
        "tag": transformers.AutoModelForTokenClassification,
        "answer": transformers.AutoModelForQuestionAnswering,
    }
    options = {} if name == "policyqa" else {"num_labels": task.outputs}
    if name == "STS-B":
        options["problem_type"] = "regression"
    net = heads[kind(name)].from_pretrained(model, **options)

    def features(prepared):
        out = []
        for i, e in enumerate(prepared.examples):
            row = {"input_ids": e.values["token"].tolist(), "token_type_ids": e.values["type"].tolist()}
            if name == "policyqa":
                row["start_positions"], row["end_positions"] = prepared.extra["target"][i].tolist()
            elif name == "wnut17":
                row["labels"] = (np.where(e.values["target"] > 0, e.values["target"] - 1, -100)).tolist()
            else:
                row["labels"] = prepared.extra["target"][i].item()
            out.append(row)
        return out

    def collate(rows):
        width = max(len(r["input_ids"]) for r in rows)
        pad = lambda key, value: torch.tensor([r[key] + [value] * (width - len(r[key])) for r in rows])  # noqa: E731
        batch = {"input_ids": pad("input_ids", 0), "token_type_ids": pad("token_type_ids", 0)}
        batch["attention_mask"] = torch.tensor(
            [[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in rows]
        )
        for key in ("labels", "start_positions", "end_positions"):
            if key in rows[0]:
                batch[key] = pad(key, -100) if isinstance(rows[0][key], list) else torch.tensor([r[key] for r in rows])
        return batch

    class Rows(torch.utils.data.Dataset):
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return self.rows[i]

    with tempfile.TemporaryDirectory() as scratch:
        plan = TrainingArguments(
            output_dir=scratch,
            num_train_epochs=common["epochs"],
            per_device_train_batch_size=32,
            learning_rate=common["learning_rate"],
            weight_decay=common["weight_decay"],
            warmup_steps=common["warmup"],
            lr_scheduler_type="linear",
            seed=common["seed"],
            bf16=precision == "bf16",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            train_sampling_strategy="group_by_length" if order == "grouped" else "random",
        )
        trainer = Trainer(model=net, args=plan, train_dataset=Rows(features(training)), data_collator=collate)
        started, worked = time.perf_counter(), time.process_time()
        outcome = trainer.train()
        seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    net.eval()
    found = [None] * len(checked.examples)
    rows = features(checked)
    order = np.argsort([len(r["input_ids"]) for r in rows])
    with torch.inference_mode():
        for i in range(0, len(order), 64):
            part = order[i : i + 64]
            batch = collate([rows[j] for j in part])
            kept = {k: v for k, v in batch.items() if k in ("input_ids", "token_type_ids", "attention_mask")}
            said = net(**kept)
            for place, j in enumerate(part):
                n = len(rows[j]["input_ids"])
                if name == "policyqa":
                    found[j] = (
                        torch.stack([said.start_logits[place, :n], said.end_logits[place, :n]], -1).float().numpy()
                    )
                elif name == "wnut17":
                    found[j] = torch.log_softmax(said.logits[place, :n].float(), -1).numpy()
                else:
                    found[j] = said.logits[place].float().numpy()
    metrics = task.score(task.decode(found, checked), checked.items)
    return {
        "metric": metrics[TASKS[name]["metric"]],
        "seconds": seconds,
        "cpu_seconds": cpu,
        "steps": outcome.global_step,
        "peak_memory_mb": peak_memory(),
        "precision": precision,
    }


def table(arguments: argparse.Namespace) -> list[dict]:
    """Every task and seed, the two sides in turn, each in a process of its own."""
    results = []
    for name in arguments.tasks:
        rows = min(TASKS[name]["rows"], arguments.rows)
        for seed in range(arguments.seeds):
            turns = [("ours", "auto", "")] if "ours" in arguments.sides else []
            if "reference" in arguments.sides:
                precisions = (
                    ["bf16", "fp32"] if arguments.reference_precision == "both" else [arguments.reference_precision]
                )
                orders = ["grouped", "shuffled"] if arguments.reference_order == "both" else [arguments.reference_order]
                turns += [("reference", precision, order) for precision in precisions for order in orders]
            for side, precision, order in turns if seed % 2 == 0 else turns[::-1]:
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    name,
                    "--side",
                    side,
                    "--seed",
                    str(seed),
                    "--rows",
                    str(rows),
                    "--dev-rows",
                    str(arguments.dev_rows),
                    "--epochs",
                    str(arguments.epochs),
                    "--rate",
                    str(arguments.rate),
                    "--model",
                    arguments.model,
                    "--precision",
                    precision,
                    "--reference-order",
                    order or "grouped",
                    "--reference-memory",
                    arguments.reference_memory,
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(done.stderr[-2000:], file=sys.stderr)
                    continue
                results.append(json.loads(done.stdout.strip().splitlines()[-1]))
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
                Path(arguments.out).write_text(json.dumps(results, indent=1))
    summary(results)
    return results


def summary(results: list[dict]) -> None:
    """Mean and 95 % t interval over seeds; the paired difference; time and memory."""
    from scipy.stats import t

    def interval(values):
        half = (
            t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
            if len(values) > 1
            else float("nan")
        )
        return f"{np.mean(values):.4f} ± {half:.4f}"

    print(
        f"{'task (reference)':20}{'ours':>18}{'reference':>18}{'difference':>20}"
        f"{'s ours':>9}{'s ref':>9}{'ratio':>7}{'MB ours':>9}{'MB ref':>8}"
    )
    references = [r for r in results if r["side"] == "reference"]
    for name, order in dict.fromkeys((r["task"], r["order"]) for r in references):
        mine = {r["seed"]: r for r in results if r["task"] == name and r["side"] == "ours"}
        both = [r for r in references if (r["task"], r["order"]) == (name, order)]
        theirs = {
            s: min((r for r in both if r["seed"] == s), key=lambda r: r["seconds"]) for s in {r["seed"] for r in both}
        }
        seeds = sorted(set(mine) & set(theirs))
        if not seeds:
            continue
        a, b = [mine[s]["metric"] for s in seeds], [theirs[s]["metric"] for s in seeds]
        x, y = np.array([mine[s]["seconds"] for s in seeds]), np.array([theirs[s]["seconds"] for s in seeds])
        what = f"{name} ({order})"
        print(
            f"{what:20}{interval(a):>18}{interval(b):>18}{interval(np.subtract(a, b)):>20}"
            f"{x.mean():9.1f}{y.mean():9.1f}"
            f"{np.median(y / x):7.2f}{np.mean([mine[s]['peak_memory_mb'] for s in seeds]):9.0f}"
            f"{np.mean([theirs[s]['peak_memory_mb'] for s in seeds]):8.0f}"
        )


def zeroshot(arguments: argparse.Namespace) -> list[dict]:
    """Masked prompts against the majority class, calibrated or not, on sentiment and on topics."""
    from unmask.modalities.text.tasks.zeroshot import zero_shot
    from unmask.modalities.text.uses.model import load

    model, out = load(arguments.mlm), []

    def ask(name: str, texts: list[str], truth: list[str], words: dict, templates: list) -> None:
        majority = max(truth.count(x) for x in set(truth)) / len(truth)
        for template in templates:
            row = {"set": name, "template": template, "texts": len(texts), "majority": majority}
            for calibrate in ("none", "context", "batch"):
                found = zero_shot(model, texts, list(words), template=template, verbalisers=words, calibrate=calibrate)
                row[calibrate] = float(np.mean([r["label"] == t for r, t in zip(found, truth, strict=True)]))
            out.append(row)
            print(json.dumps(row), flush=True)

    _, dev = read("SST-2", 100, arguments.dev_rows)
    texts, truth = [i.text for i in dev], [str(i.label) for i in dev]
    verbalisers = {"0": ["bad", "terrible", "poor"], "1": ["good", "great", "excellent"]}
    prompts = ["{text} It was [MASK].", "{text} The film was [MASK].", "A [MASK] film. {text}"]
    ask("SST-2", texts, truth, verbalisers, [*prompts, prompts])
    spoken = json.loads((SHARED / "classification" / "clinc150.json").read_text())["test"]
    chosen = [(text, TOPICS[intent]) for text, intent in spoken if intent in TOPICS]
    prompts = ["{text} This is about [MASK].", "[MASK]: {text}", "A question about [MASK]. {text}"]
    ask("topics", *map(list, zip(*chosen, strict=True)), {n: [n] for n in TOPICS.values()}, [*prompts, prompts])
    return out


def adapt(arguments: argparse.Namespace) -> dict:
    """Adapt to a domain, then fine-tune: both sides over the same seeds.

    pubmed: abstracts of 1979, then the roles of sections; reviews: sentences of film reviews, then SST-2. No text that
    is labelled, or held out, is adapted to.
    """
    import tempfile

    from unmask.modalities.text.tasks.data import read_items
    from unmask.modalities.text.tasks.finetune import compare_domain_adaptation

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.domain == "pubmed":
            home = SHARED / "classification" / "pubmed_section_roles"
            train, dev = (read_items(home / f"{n}.jsonl.gz")[0] for n in ("train", "test"))
            train = [train[i] for i in rng.permutation(len(train))[: arguments.rows]]
            texts, metric = SHARED / "corpora" / "pubmed_1979.jsonl.gz", "f1_macro"
        else:
            whole, dev = read("SST-2", 10**9, 10**9)
            order = rng.permutation(len(whole))
            train, metric = [whole[i] for i in order[: arguments.rows]], "accuracy"
            taken = {i.text for i in (*train, *dev)}
            texts = Path(scratch) / "reviews.txt"
            rest = (whole[i].text for i in order if whole[i].text not in taken and len(whole[i].text.split()) > 3)
            texts.write_text("\n\n".join(dict.fromkeys(rest)))
        found = compare_domain_adaptation(
            arguments.mlm,
            train,
            str(texts),
            task="classify",
            count=arguments.seeds,
            general=str(SHARED / "corpora" / "wikitext2" / "wiki.valid.raw.gz")
            if arguments.general is None
            else arguments.general,
            adaptation={
                "epochs": None,
                "minutes": arguments.adapt_minutes,
                "slots": 128,
                "learning_rate": arguments.adapt_rate,
                "batch_slots": 4096,
            },
            validation=dev[: arguments.dev_rows],
            metric=metric,
            epochs=arguments.epochs,
            learning_rate=arguments.rate,
            slots=128,
        )
    table = {"domain": arguments.domain, "rows": len(train), **found["adaptation"]}
    print(json.dumps(table))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["table", "zeroshot", "adapt"], default="table")
    parser.add_argument("--model", help="encoder folder (MiniLM) for the table")
    parser.add_argument("--mlm", help="masked language model folder for zeroshot and adapt")
    parser.add_argument("--general", help="adapt: general text, to measure forgetting")
    parser.add_argument("--domain", choices=["pubmed", "reviews"], default="pubmed", help="adapt: to what")
    parser.add_argument("--adapt-minutes", type=float, default=10)
    parser.add_argument("--adapt-rate", type=float, default=2e-4)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--dev-rows", type=int, default=10**9)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--reference-precision", choices=["both", "bf16", "fp32"], default="both")
    parser.add_argument("--reference-order", choices=["grouped", "shuffled", "both"], default="both")
    parser.add_argument("--reference-memory", choices=["kept", "default"], default="kept")
    parser.add_argument("--sides", nargs="+", choices=["ours", "reference"], default=["ours", "reference"])
    parser.add_argument("--quick", action="store_true", help="one seed, 640 rows, one epoch")
    parser.add_argument("--out", default="text_tasks.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="auto", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"no data in {SHARED}: set UNMASK_SHARED")
    if arguments.one:
        print(json.dumps(one(arguments)))
        return
    if arguments.quick:
        arguments.seeds, arguments.rows, arguments.dev_rows, arguments.epochs = 1, 640, 300, 1
    found = {"table": table, "zeroshot": zeroshot, "adapt": adapt}[arguments.part](arguments)
    Path(arguments.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
