"""Text as a modality: where its model, demo and commands are."""

from __future__ import annotations

from unmask.modality import Case, Command, Modality, commands_of

_USES, _TASKS, _EXPORT = "unmask.cli.text.uses", "unmask.cli.text.tasks", "unmask.cli.text.export:export"
_COLUMNS = "text text2 label header"

MODALITY = Modality(
    name="text",
    plural="text",
    load="unmask.modalities.text.uses.model:load",
    demo="unmask.modalities.text.uses.demo:run_demo",
    card="unmask.modalities.text.network.card:card",
    serves="unmask.serving.text.model:serve",
    pretrain="unmask.text:pretrain",
    finetune="unmask.text:finetune",
    predict="unmask.text:predict",
    evaluate="unmask.text:evaluate",
    endings=(
        ".txt",
        ".md",
        ".jsonl",
        ".ndjson",
        ".raw",
        ".conll",
        ".bio",
        ".iob",
        ".iob2",
    ),
    commands=commands_of(_TASKS, "prepare", "pretrain", "adapt", "recommend")
    | commands_of(_USES, "fill", "generate", "score", "embed", "zeroshot")
    | {
        "evaluate": Command(
            cases={
                "glue": Case(run=f"{_TASKS}:glue"),
                "text": Case(run=f"{_USES}:evaluate"),
                "a text task": Case(run=f"{_TASKS}:evaluate"),
                "tag": Case(run=f"{_TASKS}:evaluate", without="text2 header"),
                "answer": Case(run=f"{_TASKS}:evaluate", without=_COLUMNS),
            },
            choose=f"{_TASKS}:evaluated",
        ),
        "finetune": Command(
            cases={
                "classify": Case(run=f"{_TASKS}:finetune"),
                "tag": Case(run=f"{_TASKS}:finetune", without="text2 header metric"),
                "answer": Case(run=f"{_TASKS}:finetune", without=f"{_COLUMNS} metric"),
                "similarity": Case(run=f"{_TASKS}:finetune", without="metric"),
                "another package's task": Case(run=f"{_TASKS}:finetune", without="metric"),
            },
            choose=f"{_TASKS}:finetuned",
        ),
        "predict": Command(
            cases={
                "text": Case(run=f"{_TASKS}:predict"),
                "tag": Case(run=f"{_TASKS}:predict", without="text2 header"),
                "answer": Case(run=f"{_TASKS}:predict", without="text text2 header"),
            },
            choose=f"{_TASKS}:predicted",
        ),
        "export": Command(
            cases={
                "hf": Case(run=_EXPORT, without="pooling quantize texts"),
                "sentence-transformers": Case(run=_EXPORT, without="quantize texts"),
                "onnx": Case(run=_EXPORT),
                "share": Case(run=_EXPORT, without="pooling quantize texts dtype"),
            },
            choose="unmask.cli.text.export:chosen",
        ),
        "surgery": "unmask.cli.text.export:surgery",
    },
    first=(
        "texts (.txt, .md, .jsonl, .csv, .parquet, folders of them)",
        "unmask pretrain text corpus/ --out lm --minutes 1",
        'unmask fill lm "Return the [MASK] of rows."',
    ),
)
