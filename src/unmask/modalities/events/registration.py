"""Patient events as a modality: where its model, demo and commands are."""

from __future__ import annotations

from unmask.modality import Case, Command, Modality

_USES, _TASKS, _TOOLS = "unmask.cli.events.uses", "unmask.cli.events.tasks", "unmask.cli.events.tools"

MODALITY = Modality(
    name="events",
    plural="events",
    load="unmask.modalities.events.uses.model:load",
    demo="unmask.modalities.events.uses.demo:run_demo",
    card="unmask.modalities.events.uses.card:card",
    serves="unmask.serving.events:serve",
    commands={
        "prepare": "unmask.cli.events.pretrain:prepare",
        "pretrain": "unmask.cli.events.pretrain:pretrain",
        "fill": f"{_USES}:fill",
        "score": f"{_USES}:score",
        "embed": f"{_USES}:embed",
        "evaluate": f"{_USES}:evaluate",
        "ask": "unmask.cli.events.uses:ask",
        "finetune": Command(
            cases={
                "outcome": Case(run=f"{_TASKS}:finetune"),
                "next-visit": Case(run=f"{_TASKS}:finetune", without="labels examples"),
            },
            choose=f"{_TASKS}:finetuned",
        ),
        "predict": f"{_TASKS}:predict",
    },
    tools={"convert": f"{_TOOLS}:convert", "audit": f"{_TOOLS}:audit"},
)
