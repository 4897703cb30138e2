"""The results of the pages that a command remakes."""

from __future__ import annotations

from verify.result import Result

_MEASURES = "verify.measures"
_ENGINE = ("src/unmask/core", "src/unmask/encoder", "src/unmask/kernels", "src/unmask/training")
_TABLE = tuple(
    f"src/unmask/modalities/table/{part}" for part in ("schema", "distribution", "fitting", "imputation", "model.py")
)
_IMAGES = tuple(
    f"src/unmask/modalities/images/{part}.py"
    for part in (
        "network/codec",
        "network/masking",
        "network/batches",
        "network/augment",
        "network/build",
        "uses/pretrain",
        "network/features",
        "recipes",
    )
)
_EVENTS = tuple(
    f"src/unmask/modalities/events/{part}.py"
    for part in (
        "network/codec",
        "network/clock",
        "records/histories",
        "uses/pretrain",
        "recipes",
        "outcome/outcome",
        "uses/finetune",
        "outcome/features",
        "uses/demo",
    )
)
_TEXT = tuple(
    f"src/unmask/modalities/text/{part}.py"
    for part in (
        "tokens/tokenizer",
        "tokens/units",
        "tokens/cache",
        "tokens/building",
        "tokens/tokenising",
        "tokens/batches",
        "network/folder",
        "network/pretrain",
        "recipes",
    )
)

RESULTS: tuple[Result, ...] = (
    Result(
        name="table-imputation",
        title="Imputing hidden cells of a study",
        says="The German breast cancer study (686 patients, 10 columns; ships with lifelines), a fifth of the "
        "covariates' cells hidden at random; all impute the very table they are fitted to.",
        measure=f"{_MEASURES}:imputation",
        rule="mean or mode",
        seeds=(0, 1, 2),
        sources=("src/unmask/core", *_TABLE),
    ),
    Result(
        name="events-outcome",
        title="Outcome of simulated patients",
        says="600 simulated patients with planted rules, 40 steps of pretraining; a fifth of the patients held out.",
        measure=f"{_MEASURES}:outcome",
        rule="prevalence",
        seeds=(0, 1, 2),
        sources=(*_ENGINE, *_EVENTS),
        given={"patients": 600, "steps": 40},
    ),
    Result(
        name="images-digits",
        title="Features of digits, learnt without labels",
        says="scikit-learn's 1,797 digits of 8 x 8 pixels, two thirds to learn from, 200 steps.",
        measure=f"{_MEASURES}:digits",
        rule="most frequent digit",
        seeds=(0, 1, 2),
        sources=(*_ENGINE, *_IMAGES),
        given={"steps": 200},
    ),
    Result(
        name="text-docstrings",
        title="Hidden tokens of held-out docstrings",
        says="Docstrings of NumPy (1 MB), 5 % held out; a model of 2 layers of 128 after 250 steps of 4,096 tokens.",
        measure=f"{_MEASURES}:hidden_tokens",
        rule="most frequent token",
        seeds=(0, 1, 2),
        sources=(*_ENGINE, *_TEXT),
        given={
            "steps": 250,
            "characters": 1_000_000,
            "shape": {"width": 128, "layers": 2, "heads": 2, "vocabulary": 4096},
        },
    ),
    Result(
        name="text-docstrings-longer",
        title="Hidden tokens of held-out docstrings, longer",
        says="Docstrings of NumPy, SciPy and scikit-learn (8 MB), 5 % held out; a model of 4 layers of 256 after "
        "1,500 steps of 4,096 tokens.",
        measure=f"{_MEASURES}:hidden_tokens",
        rule="most frequent token",
        seeds=(0, 1, 2),
        sources=(*_ENGINE, *_TEXT),
        quick=False,
        given={"steps": 1500, "characters": 8_000_000, "shape": {}},
    ),
    Result(
        name="events-outcome-longer",
        title="Outcome of simulated patients, longer",
        says="1,500 simulated patients with planted rules, 400 steps of pretraining; a fifth of the patients held out.",
        measure=f"{_MEASURES}:outcome",
        rule="prevalence",
        seeds=(0, 1, 2, 3, 4),
        sources=(*_ENGINE, *_EVENTS),
        quick=False,
        given={"patients": 1500, "steps": 400},
    ),
)
"""In the order in which they are remade."""

__all__ = ["RESULTS"]
