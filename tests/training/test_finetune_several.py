"""Fine-tuning in several processes: what one does, and a checkpoint that any number of them goes on from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from several import together
from tiny_folders import folder
from tiny_images import bars
from tuned_stages import tuned, tuned_parts, weights
from unmask.errors import UserError
from unmask.modalities.images.recipes import ImageSettings, with_overrides
from unmask.modalities.images.uses.pretrain import pretrain
from unmask.modalities.text.tasks.finetune import finetune

KINDS = ["text-plain", "text-probe", "images"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict]]:
    """Of each kind a run in one process, `alone`; in two; and one that a signal ended in two and that one went on
    with."""
    home = tmp_path_factory.mktemp("runs")
    folder(home / "model")
    small = {"patch": 4, "width": 16, "layers": 2, "heads": 2, "steps": 1, "precision": "fp32", "device": "cpu"}
    pretrain(bars(20), home / "pictures", settings=with_overrides(ImageSettings(), small), console=False)
    models = {kind: home / ("pictures" if kind == "images" else "model") for kind in KINDS}
    parts = [
        (kind, models[kind], home / f"{kind}-{name}", more)
        for kind in KINDS
        for name, more in (("two", {}), ("mixed", {"stop_at": 4}))
    ]
    found = together(2, tuned_parts, *parts)
    figures = {}
    for number, kind in enumerate(KINDS):
        figures[f"{kind}-two"], figures[f"{kind}-stopped"] = found[0][2 * number : 2 * number + 2]
        assert found[1][2 * number + 1]["stopped"] == "signal"
        figures[f"{kind}-mixed"] = tuned(kind, models[kind], home / f"{kind}-mixed", resume=True)
        figures[f"{kind}-alone"] = tuned(kind, models[kind], home / f"{kind}-alone")
    return home, figures


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["two", "mixed"])
def test_weights_and_held_out_score_are_those_of_one_process(kind, name, runs):
    home, figures = runs
    alone, found = figures[f"{kind}-alone"], figures[f"{kind}-{name}"]
    assert (figures[f"{kind}-stopped"]["stopped"], found["stopped"]) == ("signal", "finished")
    assert (found["steps"], found["kept_step"]) == (alone["steps"], alone["kept_step"])
    if kind == "images":
        assert found["validation_accuracy"] == pytest.approx(alone["validation_accuracy"], abs=1e-4)
    else:
        assert found["value"] == pytest.approx(alone["value"], abs=1e-4)
    expected, trained = weights(home / f"{kind}-alone"), weights(home / f"{kind}-{name}")
    for part, value in expected.items():
        np.testing.assert_allclose(trained[part], value, atol=1e-4, err_msg=part)


def test_the_first_process_alone_writes(runs):
    home, _ = runs
    names = {f"{kind}-{name}" for kind in KINDS for name in ("alone", "two", "mixed")}
    assert {path.name for path in home.iterdir()} == names | {"model", "pictures"}


def contrasted(model: Path) -> str:
    """What is said of a loss that compares the texts of a step with each other."""
    with pytest.raises(UserError) as refused:
        finetune(model, ["a fox", "a dog"] * 8, task="similarity", loss="simcse", device="cpu", start="plain")
    return refused.value.what


def test_a_loss_that_compares_all_texts_of_a_step_takes_one_process(tmp_path):
    said = together(2, contrasted, folder(tmp_path / "model"))
    assert said == ["a loss that compares all texts of a step takes one process, the launcher started 2"] * 2
