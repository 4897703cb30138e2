"""Images as a modality: where its model, demo and commands are, and which published files are of it."""

from __future__ import annotations

from unmask.modality import Modality

_USES, _TASKS = "unmask.cli.images.uses", "unmask.cli.images.tasks"

MODALITY = Modality(
    name="images",
    plural="images",
    load="unmask.modalities.images.uses.model:load",
    demo="unmask.modalities.images.uses.demo:run_demo",
    card="unmask.modalities.images.network.card:card",
    serves="unmask.serving.images:serve",
    commands={
        "describe": "unmask.cli.images.reading:describe",
        "pretrain": "unmask.cli.images.pretrain:pretrain",
        "fill": f"{_USES}:fill",
        "score": f"{_USES}:score",
        "embed": f"{_USES}:embed",
        "evaluate": f"{_USES}:evaluate",
        "finetune": f"{_TASKS}:finetune",
        "predict": f"{_TASKS}:predict",
    },
    model_types=("vit_mae", "vit"),
    architectures=("vit_", "deit_"),
    weights=(".safetensors", ".pth", ".pt", ".bin"),
)
