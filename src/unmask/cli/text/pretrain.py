"""unmask pretrain text DATA... --out DIR, and unmask adapt MODEL DATA... --out DIR"""

from __future__ import annotations

import typer

from unmask.cli import options
from unmask.cli.common import Result, on_stderr, overrides, run_lines, with_recipe
from unmask.errors import UserError, check_choice, option


def pretrain(
    flags: options.RunOptions,
    data: list[str] = typer.Argument(
        ..., help="Files, folders, globs (.txt .md .jsonl .csv .parquet, .gz), URLs, hf:NAME; or what prepare made."
    ),
    out: str = typer.Option(..., help="Run folder."),
    recipe: str = typer.Option(None, help="bert, roberta, electra, modern or diffusion (published settings)."),
    tracker: options.Trackers = [],
) -> Result:
    """Pretrain a masked language model on raw text."""
    from unmask.modalities.text.network.card import RULE
    from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides
    from unmask.modalities.text.tokens.prepare import prepared_settings

    known = with_overrides(TextSettings(), prepared_settings(data))
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
    data: list[str] = typer.Argument(..., help="Domain text: files, folders, globs."),
    out: str = typer.Option(..., help="Folder of the adapted model."),
    for_: str = typer.Option(
        "filling", "--for", help="filling: hidden tokens, as before; embedding: vectors of texts, without labels."
    ),
    general: list[str] = typer.Option([], help="General text to guard against forgetting; may be repeated."),
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
    data: list[str] = typer.Argument(
        ..., help="Files, folders, globs (.txt .md .jsonl .csv .parquet, .gz), or URLs of these (s3:// gs:// hf://)."
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
