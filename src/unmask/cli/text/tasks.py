"""pretrain, prepare and adapt, finetune, predict and evaluate for a model of text and its tasks; recommend."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, in_parts, on_stderr, overrides, run_lines, with_recipe
from unmask.errors import UserError, check_choice, option, suggest
from unmask.evaluation.meanings import figure_lines
from unmask.files import check_results
from unmask.writing import write_json_lines


def pretrain(
    flags: options.RunOptions,
    data: list[str] = options.source(
        "Files, folders, globs (.txt .md .jsonl .csv .parquet, .gz), URLs, hf:NAME; or what prepare made."
    ),
    out: str = typer.Option(..., help="Run folder."),
    recipe: str = typer.Option(None, help="bert, roberta, electra, modern or diffusion (published settings)."),
    tracker: options.Trackers = [],
) -> Result:
    """Pretrain a masked language model on raw text."""
    from unmask.engines.folder import prepared_settings
    from unmask.modalities.text.network.card import RULE
    from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides

    known = with_overrides(TextSettings(), prepared_settings(data, "text"))
    settings = with_recipe(recipe, RECIPES, known, with_overrides, flags.overrides())
    from unmask.modalities.text.network.pretrain import pretrain as run

    finished = run(data, out, settings=settings, resume=flags.resume, trackers=tracker)
    r, share = finished.result, finished.corpus.get("most_frequent")
    rule = "" if share is None else f"; {RULE} {share:.1%}"
    lines = run_lines(
        r,
        out,
        rate=f"{r.slots_per_second:,.0f} real tokens/s",
        held="held out: loss {loss:.4f} nats per hidden token, accuracy {accuracy:.1%}" + rule,
    )
    return Result(finished.to_dict(), lines)


def adapt(
    flags: options.RunOptions,
    model: options.Model,
    data: list[str] = options.source("Domain text: files, folders, globs."),
    out: str = typer.Option(..., help="Folder of the adapted model."),
    for_: str = typer.Option(
        "filling", "--for", help="filling: hidden tokens, as before; embedding: vectors of texts, without labels."
    ),
    general: list[str] = options.source_option("General text to guard against forgetting; may be repeated.", []),
    replay: float = typer.Option(0.0, help="Share of what is learnt from that is general text (half of --general)."),
) -> Result:
    """Continue pretraining on your own text; says what speaks against it, stops early, watches for forgetting.

    The weights with the lowest held-out loss are kept. With --for embedding a search among held-out texts judges, and
    the model stays as it was where that did not get better.
    """
    from unmask.modalities.text.network.adapt import adapt as run
    from unmask.modalities.text.network.adapt import adapt_settings
    from unmask.modalities.text.tasks.adapt_embedding import adapt_embedding, embedding_settings

    check_choice("for", for_, ("filling", "embedding"))
    given, held = flags.overrides(), general or None
    if for_ == "embedding":
        if replay:
            raise UserError(
                f"{option('replay', replay)} with {option('for', 'embedding')}",
                hint="Leave it out: vectors are learnt from the texts alone.",
            )
        chosen = embedding_settings(given)
        found = adapt_embedding(model, data, out, settings=chosen, general=held, resume=flags.resume)
    else:
        settings = adapt_settings(given, model)
        found = run(model, data, out, settings=settings, general=held, replay=replay, resume=flags.resume)
    lines = [f"{'':24}{'before':>10}{'after':>10}"]
    lines += [f"{name:24}{before:>10}{after:>10}" for name, before, after in found.table()]
    lines += [*found.notes(), f"model:  {out}", f"report: {out}/report.html"]
    return Result(found.to_dict(), lines)


def prepare(
    data: list[str] = options.source(
        "Files, folders, globs (.txt .md .jsonl .csv .parquet, .gz), or URLs of these (s3:// gs:// hf://)."
    ),
    out: str = typer.Option(..., help="Folder of the prepared corpus: what `unmask pretrain text` takes as its data."),
    workers: options.Workers = None,
    engine: options.Engine = "local",
    config: options.Config = None,
    set_: options.Set = [],
    recipe: str = typer.Option(None, help="bert, roberta, electra, modern or diffusion: which tokenizer is trained."),
    seed: options.RunSeed = None,
) -> Result:
    """Tokenise a corpus of any size for pretraining, on all cores or on a Ray cluster. Run again, it goes on."""
    from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides
    from unmask.modalities.text.tokens.prepare import prepare as run

    settings = with_recipe(recipe, RECIPES, TextSettings(), with_overrides, overrides(config, set_, seed=seed))
    made = run(data, out, settings=settings, workers=workers, engine=engine, say=on_stderr)
    c = made.counts
    lines = [
        f"{c['documents']:,} documents, {c['duplicates']:,} copies left out",
        f"{c['training']:,} training and {c['held_out']:,} held-out examples, {c['tokens']:,} tokens in "
        f"{c['shards']:,} shard{'s' * (c['shards'] != 1)}, {c['bytes'] / 1e6:,.1f} MB",
        f"prepared: {out} (unmask pretrain text {out} --out RUN)",
    ]
    return Result({"seed": settings.train.seed} | made.to_dict() | {"engine": engine}, lines)


WINDOWED = ("tag", "answer")
"""Tasks whose data has no named columns of texts and labels: long texts are read in windows."""


def finetuned(words: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The case of `finetune`: its task."""
    from unmask.modalities.text.tasks.registry import TASKS

    known = TASKS.names()
    if words and words[0] not in known:
        raise UserError(f"task {words[0]!r}", hint=suggest(words[0], known))
    if len(words) < 2:
        return None
    return words[0] if words[0] in TASKS.built_in else "another package's task"


def predicted(words: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The case of `predict`: by the task that the model is for."""
    from unmask.modalities.text.tasks.registry import task_of

    if not words:
        return None
    task = task_of(words[0])
    return task if task in WINDOWED else "text"


def evaluated(words: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The case of `evaluate`: glue, the task that the model is for, queries and documents, or texts."""
    from unmask.modalities.text.tasks.registry import task_of

    if not words:
        return None
    task = "glue" if words[0] == "glue" else task_of(words[0])
    if task == "glue":
        return "glue"
    if task is None:
        return "a text task" if len(words) > 1 and _is_collection(words[1]) else "text"
    return task if task in WINDOWED else "a text task"


def _one_or_several(names: Sequence[str]) -> str | Sequence[str] | None:
    return names[0] if len(names) == 1 else tuple(names) or None


def _is_collection(data: str) -> bool:
    """Whether a place is a folder of queries and documents, as BEIR has them."""
    return os.path.isfile(os.path.join(data, "queries.jsonl"))  # not Path.is_file, which fails where a name is too long


def finetune(
    flags: options.RunOptions,
    task: str = typer.Argument(..., help="classify, tag, answer or similarity."),
    model: str = options.model(),
    train: str = options.source("Labelled texts: csv, tsv, jsonl, parquet, CoNLL, SQuAD json, hf:NAME."),
    out: str = typer.Option(..., help="Where the fine-tuned folder goes."),
    validation: options.Validation = None,
    text: options.Text = None,
    text2: options.Text2 = None,
    label: options.Label = [],
    header: options.Header = None,
    metric: str = typer.Option(None, help="What early stopping goes by (classify)."),
    seeds: int = typer.Option(1, help="Runs with as many seeds: mean and interval; the best is kept."),
    lenient: options.Lenient = False,
    adapt: list[str] = options.source_option("Texts of the domain: adapt the model to them first, and compare.", []),
    examples: options.Examples = False,
    baseline: str = typer.Option(
        None, "--baseline", "--model", help="Save tfidf, frozen or lookup of the comparison in place of the encoder."
    ),
    json_: options.Json = False,
) -> Result:
    """Fine-tune a model of text for a task; the folder loads in transformers too."""
    from unmask.modalities.text.tasks import finetune as tuning
    from unmask.modalities.text.tasks.row_files import Columns

    settings = flags.overrides(examples=examples or None, baseline=baseline)
    if flags.resume and (adapt or seeds > 1):
        raise UserError("--resume", hint="One fine-tuning run can be resumed: no --seeds, no --adapt.")
    chosen: dict[str, Any] = {
        "validation": validation,
        "columns": Columns(text=text, text2=text2, label=_one_or_several(label), header=header),
        "metric": metric,
        "lenient": lenient,
        "console": not json_,
        "say": on_stderr,
        **settings,
    }
    if adapt:
        found = tuning.compare_domain_adaptation(model, train, adapt, task=task, count=seeds, out=out, **chosen)
    elif seeds > 1:
        found = tuning.seeds(model, train, task=task, count=seeds, out=out, **chosen)
    else:
        found = tuning.finetune(model, train, task=task, out=out, checkpoints=True, resume=flags.resume, **chosen)
    about: dict[str, Any] = {"seed": int(settings.get("seed") or 0), "folder": out}
    found = about | found
    if found["stopped"] == "signal":
        return Result(found)
    lines = figure_lines(found["metrics"], [n for n, v in found["metrics"].items() if isinstance(v, float)])
    if "over_seeds" in found:
        o = found["over_seeds"]
        lines.append(f"{found['metric']} over {o['seeds']} seeds: {o['mean']:.4f} [{o['low']:.4f}, {o['high']:.4f}]")
    lines += found.pop("lines", [])
    lines.append(
        f"{out}: {found['steps']} steps in {found['train_seconds']:.1f} s, {found['precision']}, report.html inside"
    )
    return Result(found | {"report": f"{out}/report.html"}, lines)


def predict(
    use: options.Loading,
    model: options.Tuned,
    data: str = options.source(
        "Texts: .txt one per line, csv, tsv, jsonl, parquet, CoNLL, SQuAD json; a text; or -: stdin, one per line.",
        text=True,
        stdin=".txt",
    ),
    out: str = options.rows(".jsonl", "Where the predictions go, .jsonl", "-"),
    text: options.Text = None,
    text2: options.Text2 = None,
    header: options.Header = None,
    seed: options.Seed = 0,
) -> Result:
    """Predict with a fine-tuned model of text: one JSON object per input, in order."""
    from itertools import chain

    from unmask.modalities.text.tasks import finetune as tuning
    from unmask.modalities.text.tasks.row_files import Columns

    check_results([out], [data])
    columns = Columns(text=text, text2=text2, header=header)
    folder, items = tuning.to_predict(model, data, columns=columns, say=on_stderr, **vars(use))
    rows = in_parts(items, lambda some: tuning.predictions(folder, some))
    write_json_lines(chain.from_iterable(rows), out)
    found = {"out": out, "rows": len(items), "task": folder.about["name"]}
    return Result(found, [f"{out}: {len(items)} predictions"], folder)


def evaluate(
    use: options.Loading,
    model: options.Tuned,
    data: list[str] = options.source("Labelled data, or a BEIR folder of queries and documents."),
    text: options.Text = None,
    text2: options.Text2 = None,
    label: options.Label = [],
    header: options.Header = None,
    lenient: options.Lenient = False,
    set_: options.Set = [],
    seed: options.Seed = 0,
) -> Result:
    """The metrics of a fine-tuned model of text on labelled data; of any model on queries and documents: retrieval."""
    from unmask.modalities.text.tasks import analysis
    from unmask.modalities.text.tasks import finetune as tuning
    from unmask.modalities.text.tasks.row_files import Columns
    from unmask.training.settings import parse_set

    if len(data) != 1:
        raise UserError(f"{len(data)} files", hint="Give one labelled file.")
    given = parse_set(set_)
    for name in given:
        if name != "group":
            raise UserError(f"--set {name}=", hint=suggest(name, ["group"]))
    found = tuning.evaluate(
        model,
        data[0],
        columns=Columns(text=text, text2=text2, label=_one_or_several(label), header=header, group=given.get("group")),
        seed=seed,
        lenient=lenient,
        say=on_stderr,
        **vars(use),
    )
    shown = found | found.get("metrics", {})
    ends = {found["metric"]: [found.get("low"), found.get("high")]}
    names = [n for n, v in shown.items() if isinstance(v, float) and n not in ("value", "low", "high")]
    lines = figure_lines(shown | {"intervals": ends}, names, rules=analysis.rules(found))
    lines += analysis.lines(found)
    return Result(found, lines)


def glue(
    use: options.Loading,
    model: str = typer.Argument(..., help="The word glue."),
    data: list[str] = options.source("The folder that holds the folders of the tasks."),
    glue_model: str = typer.Option(None, "--model", help="The model to fine-tune on each task."),
    out: str = typer.Option(None, help="Where test predictions go, in the leaderboard's format."),
    set_: options.Set = [],
    seed: options.Seed = 0,
) -> Result:
    """Fine-tune a model on the nine tasks of GLUE, and evaluate it on each."""
    from unmask.modalities.text.tasks.glue import evaluate_glue

    if glue_model is None:
        raise UserError("evaluate glue needs a model", hint="unmask evaluate glue DIR --model M [--out PREDICTIONS]")
    if len(data) != 1:
        raise UserError(f"{len(data)} folders", hint="Give the one folder that holds the tasks' folders.")
    chosen = overrides(None, set_, seed=seed, **vars(use))
    found = evaluate_glue(glue_model, data[0], out=out, say=on_stderr, **chosen)
    lines = [f"{name:8}{row['metric']:12}{row['value']:.4f}" for name, row in found["tasks"].items()]
    return Result(found, [*lines, f"mean {found['mean']:.4f}"])


def recommend(
    languages: str | None = typer.Option(None, help="ISO codes with commas, such as en,de."),
    context: int | None = typer.Option(None, help="Tokens a text may have."),
    size: str | None = typer.Option(
        None, help="tiny, small, base or large: at most 30, 100, 310 or 1000 million parameters."
    ),
    domain: str | None = typer.Option(None, help="general, biomedical, clinical, scientific, legal, finance, code."),
    head: bool = typer.Option(True, help="fill and score must work without training."),
    ask: bool = typer.Option(False, "--ask", help="Ask for what is not given."),
    json_: options.Json = False,
) -> Result:
    """Which family and checkpoint to start from, with the reasons and the memory."""
    from unmask.families import catalogue

    def answer(given: Any, question: str, default: Any) -> Any:
        if given is not None:
            return given
        return typer.prompt(question, default=default, type=type(default)) if ask and not json_ else default

    found = catalogue.recommend(
        languages=tuple(answer(languages, "Languages (ISO codes)", "en").replace(" ", "").split(",")),
        context=answer(context, "Longest text in tokens", 512),
        size=answer(size, f"Size ({', '.join(catalogue.SIZES)})", "base"),
        domain=answer(domain, f"Domain ({', '.join(catalogue.DOMAINS)})", "general"),
        head=head,
    )
    # A wish that not even the first meets is said first.
    notes = list(found[0]["unmet"])
    lines = [f"not met: {note}" for note in notes]
    for c in found:
        memory = ", ".join(f"{name} {mb} MB" for name, mb in c["memory_mb"].items())
        lines += [f"{c['name']}  ({c['family']}, {c['parameters'] / 1e6:.0f} M parameters: {memory})"]
        lines += [f"    {reason}" for reason in c["reasons"]]
        lines += [f"    source: {c['source']}"]
    return Result({"results": found, "unmet": notes}, lines)
