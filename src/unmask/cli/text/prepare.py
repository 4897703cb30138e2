"""unmask prepare text DATA... --out DIR"""

from __future__ import annotations

import typer

from unmask.cli import options


def prepare(
    context: typer.Context,
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
    json_: options.Json = False,
) -> None:
    """Tokenise a corpus of any size for pretraining, on all cores or on a Ray cluster. Run again, it goes on."""
    from unmask.cli.common import Output, on_stderr, run_overrides, with_recipe
    from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides
    from unmask.modalities.text.tokens.prepare import prepare as run

    settings = with_recipe(recipe, RECIPES, TextSettings(), with_overrides, run_overrides(context))
    output = Output(json_, settings.train.seed)
    made = run(data, out, settings=settings, workers=workers, engine=engine, say=on_stderr)
    c = made.counts
    lines = [
        f"{c['documents']:,} documents, {c['duplicates']:,} copies left out",
        f"{c['training']:,} training and {c['held_out']:,} held-out examples, {c['tokens']:,} tokens in "
        f"{c['shards']:,} shard{'s' * (c['shards'] != 1)}, {c['bytes'] / 1e6:,.1f} MB",
        f"prepared: {out} (unmask pretrain text {out} --out RUN)",
    ]
    output.write(made.to_dict() | {"engine": engine}, lines)
