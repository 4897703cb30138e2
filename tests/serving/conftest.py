"""Tiny models of all kinds, made once, and servers of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from running_server import running
from served_process import Serving
from tiny_folders import folder, sentiment
from unmask.serving.limits import Limits
from unmask.serving.models import load_served
from unmask.serving.verbs import Served

FAST = {"start": "plain", "epochs": 1, "batch": 8, "learning_rate": 3e-3, "precision": "fp32", "dropout": 0.0}
TAGGED = [{"text": "Ada lived in London", "entities": [{"start": 0, "end": 3, "label": "PER"}]}] * 8
ASKED = [
    {
        "question": "Who lived there?",
        "context": "Ada lived in London near the river.",
        "answers": [{"text": "Ada", "answer_start": 0}],
    }
] * 8


@pytest.fixture(scope="session")
def text_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masked model, and ones fine-tuned for a moment: classify, nli, tag, answer."""
    from unmask.modalities.text.tasks.finetune import finetune

    root = tmp_path_factory.mktemp("served-text")
    masked = folder(root / "masked")
    nli = [(a, b, label) for (a, _), (b, label) in zip(sentiment(12), sentiment(12), strict=True)]
    nli = [(a, b, "entailment" if label == "good" else "contradiction") for a, b, label in nli]
    data = {"classify": sentiment(), "nli": nli, "tag": TAGGED, "answer": ASKED}
    for name, rows in data.items():
        finetune(masked, rows, task="classify" if name == "nli" else name, out=root / name, **FAST)
    return {"masked": masked, **{name: root / name for name in data}}


@pytest.fixture(scope="session")
def text_served(text_folders: dict[str, Path]) -> dict[str, Served]:
    names = {name: str(path) for name, path in text_folders.items()}
    return load_served(names, Limits(), device="cpu", precision="fp32")


@pytest.fixture(scope="session")
def text_server(text_served):
    with running(text_served) as asked:
        yield asked


@pytest.fixture(scope="session")
def table_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patients with follow-up; a linear model of them."""
    from tables import patients

    from unmask.modalities.table.model import TableModel

    model = TableModel.fit(patients(150, missing=0.1), duration="time", event="event", steps=0, members=2)
    return model.save(tmp_path_factory.mktemp("served-table") / "m")


@pytest.fixture(scope="session")
def image_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masked image model of six steps, and one fine-tuned for an epoch."""
    from tiny_images import TINY, class_folder
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
    from unmask.modalities.images.classify.classifier_settings import with_overrides as changed
    from unmask.modalities.images.recipes import ImageSettings, with_overrides
    from unmask.modalities.images.uses.finetune import finetune_classify
    from unmask.modalities.images.uses.pretrain import pretrain

    root = tmp_path_factory.mktemp("served-images")
    data = str(class_folder(root / "data"))
    settings = with_overrides(ImageSettings(), {**TINY, "image_size": 12, "patch": 3})
    pretrain(data, root / "m", settings=settings, console=False)
    short = changed(ClassifierSettings(), {"steps": 3, "batch": 16, "precision": "fp32"})
    finetune_classify(root / "m", data, root / "tuned", settings=short, console=False)
    return {"m": root / "m", "tuned": root / "tuned"}


@pytest.fixture(scope="session")
def segmenter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segmenter of grey pictures, trained for a moment: what is bright is 255."""
    import numpy as np

    import unmask
    from tiny_images import TINY

    pictures = np.random.default_rng(0).integers(0, 60, (6, 24, 30)).astype(np.uint8)
    pictures[:, 6:16, 8:20] += 150
    settings = TINY | {"view": "crop", "image_size": 12, "patch": 3, "steps": 1}
    base = unmask.images.pretrain(pictures, console=False, **settings).model
    root = tmp_path_factory.mktemp("segmenter")
    how = {
        "masks": np.where(pictures > 100, 255, 0).astype(np.uint8),
        "steps": 60,
        "precision": "fp32",
        "console": False,
    }
    unmask.images.finetune_segment(base, pictures, root / "m", **how)
    return root / "m"


@pytest.fixture(scope="session")
def segmenter_served(segmenter_folder: Path) -> Served:
    return served_one(segmenter_folder)


@pytest.fixture(scope="session")
def event_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated patients (meds, task), a model of a few steps that answers questions, and one with an outcome head."""
    from unmask.modalities.events.recipes import EventSettings, OutcomeSettings, with_overrides
    from unmask.modalities.events.uses.demo import simulate
    from unmask.modalities.events.uses.finetune import finetune_outcome
    from unmask.modalities.events.uses.pretrain import pretrain

    quick = OutcomeSettings(epochs=1, members=1, hidden=8, trees=0, curve=False, baselines=False)
    root = tmp_path_factory.mktemp("served-events")
    meds = simulate(root, 60, 0)
    small = {
        "slots": 64,
        "batch_slots": 1024,
        "width": 32,
        "steps": 6,
        "precision": "fp32",
        "questions": 4,
        "until": "last",
    }
    pretrain(meds, root / "model", settings=with_overrides(EventSettings(), small), console=False)
    finetune_outcome(root / "model", meds, root / "task", root / "outcome", settings=quick)
    return root


def served_one(folder: Path) -> Served:
    return load_served({"m": str(folder)}, Limits(), device="auto", precision="auto")["m"]


@pytest.fixture(scope="session")
def table_served(table_folder: Path) -> Served:
    return served_one(table_folder)


@pytest.fixture(scope="session")
def images_served(image_folders: dict[str, Path]) -> Served:
    return served_one(image_folders["m"])


@pytest.fixture(scope="session")
def classifier_served(image_folders: dict[str, Path]) -> Served:
    return served_one(image_folders["tuned"])


@pytest.fixture(scope="session")
def deep_served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Of pictures that no browser draws: 5 channels of 16 bits."""
    import numpy as np

    from tiny_images import TINY
    from unmask.modalities.images.recipes import ImageSettings, with_overrides
    from unmask.modalities.images.uses.pretrain import pretrain

    pixels = np.random.default_rng(0).integers(0, 60_000, (8, 5, 12, 12), np.uint16)
    settings = with_overrides(ImageSettings(), TINY | {"patch": 3, "steps": 1, "holdout": 0.0})
    folder = tmp_path_factory.mktemp("deep") / "m"
    pretrain(pixels, folder, settings=settings, console=False)
    return served_one(folder)


@pytest.fixture(scope="session")
def events_served(event_home: Path) -> Served:
    return served_one(event_home / "outcome")


@pytest.fixture
def start():
    """Starts servers, and ends them whatever becomes of the test."""
    made = []

    def one(*arguments, **more):
        made.append(Serving(*arguments, **more))
        return made[-1]

    yield one
    for served in made:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()
