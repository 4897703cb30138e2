"""Patient events as a modality: where its model, demo and commands are."""

from __future__ import annotations

from unmask.modality import Case, Command, Modality, commands_of

_TASKS = "unmask.cli.events.tasks"

MODALITY = Modality(
    name="events",
    plural="events",
    load="unmask.modalities.events.uses.model:load",
    demo="unmask.modalities.events.uses.demo:run_demo",
    card="unmask.modalities.events.uses.card:card",
    serves="unmask.serving.events:serve",
    pretrain="unmask.events:pretrain",
    finetune="unmask.events:finetune",
    predict="unmask.events:predict",
    evaluate="unmask.events:evaluate",
    commands=commands_of(_TASKS, "prepare", "pretrain", "predict")
    | commands_of("unmask.cli.events.uses", "fill", "score", "embed", "evaluate", "ask")
    | {
        "finetune": Command(
            cases={
                "outcome": Case(run=f"{_TASKS}:finetune"),
                "next-visit": Case(run=f"{_TASKS}:finetune", without="labels examples"),
            },
            choose=f"{_TASKS}:finetuned",
        ),
    },
    tools=commands_of("unmask.cli.events.tools", "convert", "labels", "audit", "generate", "compare"),
    first=(
        "patients' records (FHIR, OMOP, MIMIC-IV, an event table, MEDS)",
        "unmask events convert fhir/ --out meds",
        "unmask pretrain events meds --out records --minutes 1",
    ),
)
