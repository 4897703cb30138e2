"""Images as a modality: where its model, demo and commands are, and which published files are of it."""

from __future__ import annotations

from unmask.modality import Modality, commands_of

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
    commands=commands_of(
        "unmask.cli.images", "describe", "pretrain", "fill", "score", "embed", "evaluate", "finetune", "predict"
    ),
    model_types=("vit_mae", "vit"),
    architectures=("vit_", "deit_"),
    weights=(".safetensors", ".pth", ".pt", ".bin"),
    first=(
        "pictures (a folder, one more for each class where they are labelled)",
        "unmask pretrain images photos/ --out pictures --minutes 1",
        "unmask finetune classify pictures photos/ --out classifier",
    ),
)
