"""Images as a modality: where its model, demo and commands are, and which published files are of it."""

from __future__ import annotations

from unmask.modality import Case, Command, Modality, commands_of

_USES, _SEGMENT = "unmask.cli.images", "unmask.cli.images_segment"

MODALITY = Modality(
    name="images",
    plural="images",
    load="unmask.modalities.images.uses.model:load",
    demo="unmask.modalities.images.uses.demo:run_demo",
    card="unmask.modalities.images.network.card:card",
    serves="unmask.serving.images:serve",
    pretrain="unmask.images:pretrain",
    finetune="unmask.images:finetune",
    predict="unmask.images:predict",
    evaluate="unmask.images:evaluate",
    endings=(
        ".png",
        ".jpg",
        ".jpeg",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".btf",
        ".tf8",
        ".lsm",
        ".svs",
        ".ndpi",
        ".stk",
        ".dcm",
        ".dicom",
        ".ima",
        ".nii",
        ".npy",
        ".npz",
        ".idx",
    ),
    commands=commands_of(_USES, "describe", "pretrain", "fill", "score", "embed")
    | {
        "finetune": Command(
            cases={"classify": Case(run=f"{_USES}:finetune"), "segment": Case(run=f"{_SEGMENT}:finetune")},
            choose=f"{_SEGMENT}:finetuned",
        ),
    }
    | {
        verb: Command(
            cases={"images": Case(run=f"{_USES}:{verb}"), "a segmenter": Case(run=f"{_SEGMENT}:{verb}")},
            choose=f"{_SEGMENT}:used",
        )
        for verb in ("evaluate", "predict")
    },
    model_types=("vit_mae", "vit"),
    architectures=("vit_", "deit_"),
    weights=(".safetensors", ".pth", ".pt", ".bin"),
    first=(
        "pictures (a folder, one more for each class where they are labelled)",
        "unmask pretrain images photos/ --out pictures --minutes 1",
        "unmask finetune classify pictures photos/ --out classifier",
    ),
)
