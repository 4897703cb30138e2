"""Every step and use that takes a device gives on the stand-in for CUDA what it gives on the CPU.

Tables are not here: they are fitted on the CPU alone. What a real GPU adds (its kernels, their numerics, their speed)
is for `-m gpu`, which walks the same way there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stand_in
import unmask
from text_corpus import write_corpus
from tiny_folders import folder, sentiment
from tiny_images import NO_DECODER, TINY, bars
from tiny_kinds import hospital
from tiny_run import job
from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Learned, Norm
from unmask.modalities.events.recipes import EventSettings
from unmask.modalities.events.recipes import with_overrides as event_settings
from unmask.modalities.events.uses.pretrain import pretrain as pretrain_events
from unmask.modalities.images.classify import probe_start
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.recipes import with_overrides as image_settings
from unmask.modalities.images.uses.finetune import finetune_classify
from unmask.modalities.images.uses.pretrain import pretrain as pretrain_images
from unmask.modalities.text.network.folder import load_folder
from unmask.modalities.text.network.pretrain import pretrain as pretrain_text
from unmask.modalities.text.recipes import RECIPES, TextSettings
from unmask.modalities.text.recipes import with_overrides as text_settings
from unmask.modalities.text.tasks import analysis
from unmask.modalities.text.tasks.finetune import finetune
from unmask.training.run import run
from unmask.training.settings import TrainSettings

FEW = {"steps": 2, "batch_slots": 128, "dropout": 0.0}
CLOSE = {"fp32": 1e-4, "bf16": 0.02}
Both = Callable[[Callable[[str], Any]], tuple[Any, Any]]


@pytest.fixture(params=["stand-in", pytest.param("GPU", marks=pytest.mark.gpu)])
def both(request: pytest.FixtureRequest) -> Both:
    """A function: what work(device) gives on the CPU, and on the stand-in or (with `-m gpu`) a real GPU."""

    def run_both(work: Callable[[str], Any]) -> tuple[Any, Any]:
        on_cpu = work("cpu")
        with contextlib.nullcontext() if request.param == "GPU" else stand_in.cuda():
            return on_cpu, work("cuda")

    return run_both


@pytest.fixture(params=["fp32", "bf16"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("recipe", ["bert", "modern", "electra"])
def test_text_is_learnt_the_same(both: Both, recipe: str, precision: str, tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus.txt", 20)
    small = {"width": 32, "layers": 2, "heads": 2, "slots": 32, "vocabulary": 300, **RECIPES[recipe]}

    def work(device: str) -> dict[str, float]:
        settings = text_settings(TextSettings(), FEW | small | {"device": device, "precision": precision})
        return pretrain_text(str(corpus), tmp_path / device, settings=settings, console=False).result.validation

    cpu, cuda = both(work)
    assert cuda == pytest.approx(cpu, rel=CLOSE[precision])


@pytest.mark.parametrize("architecture", ["visible_only", "in_place"])
def test_pictures_are_learnt_reconstructed_and_embedded_the_same(
    both: Both, architecture: str, precision: str, tmp_path: Path
):
    def work(device: str) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
        more = {"architecture": architecture, "device": device, "precision": precision, "patch": 2}
        more |= NO_DECODER if architecture == "in_place" else {}
        settings = image_settings(ImageSettings(), TINY | more)
        learnt = pretrain_images(bars(), tmp_path / device, settings=settings, console=False).result.validation
        model = unmask.load(tmp_path / device, device=device, precision=precision)
        return learnt, model.reconstruct(bars(4)).filled, model.embed(bars(4))

    (cpu, filled, vectors), (cuda, cuda_filled, cuda_vectors) = both(work)
    assert cuda == pytest.approx(cpu, rel=CLOSE[precision])
    if precision == "fp32":
        assert np.abs(filled.astype(float) - cuda_filled).max() <= 1
        np.testing.assert_allclose(cuda_vectors, vectors, atol=1e-4)


def test_pictures_are_told_apart_the_same(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe_start, "FOLDED_PENALTIES", (1e-3, 1e-1))  # these fits are on the CPU, on any device
    monkeypatch.setattr(probe_start, "FOLDED_STEPS", 5)

    def work(device: str) -> dict[str, float]:
        out = tmp_path / device
        pretrain_images(bars(), out, settings=image_settings(ImageSettings(), TINY | {"steps": 1}), console=False)
        train = TrainSettings(steps=2, precision="fp32", device=device)
        settings = ClassifierSettings(batch=16, mixup=0.0, drop_path=0.0, train=train)
        tuned = finetune_classify(out, bars(), tmp_path / f"{device}-tuned", settings=settings, console=False)
        return {k: v for k, v in tuned.figures.items() if k.startswith("validation_") and isinstance(v, float)}

    cpu, cuda = both(work)
    assert cpu
    assert cuda == pytest.approx(cpu, rel=1e-4)


def test_events_are_learnt_filled_scored_and_embedded_the_same(both: Both, precision: str, tmp_path: Path):
    meds = hospital(tmp_path)
    small = {"slots": 32, "width": 32, "inner": 32, "layers": 2, "heads": 2, "steps": 2, "batch_slots": 128}

    def work(device: str) -> tuple[dict[str, float], np.ndarray, Any, Any]:
        settings = event_settings(EventSettings(), small | {"device": device, "precision": precision})
        learnt = pretrain_events(meds, tmp_path / device, settings=settings, console=False).result.validation
        model = unmask.load(tmp_path / device, device=device, precision=precision)
        return learnt, model.embed(meds), model.score(meds)["score"].to_numpy(), model.fill(meds)

    (cpu, vectors, scores, filled), (cuda, cuda_vectors, cuda_scores, cuda_filled) = both(work)
    assert cuda == pytest.approx(cpu, rel=CLOSE[precision])
    assert len(filled) == len(cuda_filled)
    if precision == "fp32":
        np.testing.assert_allclose(cuda_vectors, vectors, atol=1e-4)
        np.testing.assert_allclose(cuda_scores, scores, rtol=1e-4)


@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_texts_are_filled_scored_and_embedded_the_same(both: Both, recipe: str, precision: str, tmp_path: Path):
    where = folder(tmp_path / "m", recipe=recipe)
    texts = ["The quick [MASK] fox jumps.", "Readers [MASK] check the [MASK]."]

    def work(device: str) -> tuple[list[float], list[float], np.ndarray]:
        model = unmask.load(where, device=device, precision=precision)
        filled = [f["log_probability"] for f in model.fill(texts, steps=2)]
        return filled, [s["score"] for s in model.score(["The quick brown fox."])], model.embed(["One.", "Two more."])

    (filled, scores, vectors), (cuda_filled, cuda_scores, cuda_vectors) = both(work)
    close = CLOSE[precision]
    assert cuda_filled == pytest.approx(filled, rel=close)
    assert cuda_scores == pytest.approx(scores, rel=close)
    np.testing.assert_allclose(cuda_vectors, vectors, atol=1e-4 if precision == "fp32" else 0.1)


TASKS: dict[str, Any] = {
    "classify": sentiment(12),
    "similarity": [
        (a, b, 0.1 * i) for i, ((a, _), (b, _)) in enumerate(zip(sentiment(8), sentiment(16)[8:], strict=True))
    ],
    "tag": [{"words": ["The", "fox", "jumps"], "tags": ["O", "B-A", "O"]}] * 8,
    "answer": [
        {"question": "What jumps?", "context": "The fox jumps.", "answers": {"text": ["fox"], "answer_start": [4]}}
    ]
    * 8,
}


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_learnt_the_same(both: Both, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(analysis, "attributions", functools.partial(analysis.attributions, steps=2))
    where = folder(tmp_path / "m")

    def work(device: str) -> float:
        options = {"device": device, "precision": "fp32", "epochs": 1.0, "batch": 8, "dropout": 0.0}
        found = finetune(where, TASKS[task], task=task, validation=TASKS[task], out=tmp_path / device, **options)
        unmask.load(tmp_path / device, device=device)
        return float(found["history"][-1].get("loss", found["value"]))

    cpu, cuda = both(work)
    assert cuda == pytest.approx(cpu, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_family_predicts_the_same(both: Both, dtype: torch.dtype, tmp_path: Path, rng: np.random.Generator):
    import published

    for name in published.CASES:
        published.published(name, tmp_path / name)
        model = load_folder(tmp_path / name).model
        examples = [Example(values={"token": rng.integers(5, published.VOCABULARY, n)}, identity=n) for n in (5, 40)]
        batch, hidden = pack(examples, slots=64), hide(torch.tensor([2, 8, 30]))

        def work(device: str, model=model, batch=batch, hidden=hidden) -> torch.Tensor:
            found = model.to(device)
            with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype != torch.float32):
                return found(batch.to(device), hidden.to(device)).logits.float().cpu()

        cpu, cuda = both(work)
        model.to("cpu")
        near = 1e-4 if dtype == torch.float32 else 0.05 * float(cpu.abs().max())
        assert (cpu - cuda).abs().max() <= near, name


def text_run(out: Path, settings: dict[str, Any]) -> None:
    run(job(), out, TrainSettings(**settings), console=False)


def image_run(out: Path, settings: dict[str, Any]) -> None:
    pretrain_images(
        bars(), out, settings=image_settings(ImageSettings(), TINY | {"patch": 2} | settings), console=False
    )


def event_run(out: Path, settings: dict[str, Any]) -> None:
    small = {"slots": 32, "width": 32, "inner": 32, "layers": 2, "heads": 2, "batch_slots": 128}
    meds = out.parent / "meds"
    if not meds.exists():
        hospital(out.parent)
    pretrain_events(meds, out, settings=event_settings(EventSettings(), small | settings), console=False)


@pytest.mark.parametrize(
    ("learn", "format"), [(text_run, "bf16"), (text_run, "fp32"), (image_run, "bf16"), (event_run, "bf16")]
)
def test_a_step_waits_for_the_step_before_it_alone(
    learn: Callable[[Path, dict[str, Any]], None], format: str, tmp_path: Path
):
    def walk(steps: int) -> None:
        rarely = {"log_every": 1000, "validate_every": 1000}
        learn(tmp_path / str(steps), {"steps": steps, "precision": format, "device": "cuda", **rarely})

    assert_one_wait_per_step(walk, 3, 7)


@pytest.mark.parametrize("task", TASKS)
def test_a_step_of_fine_tuning_waits_for_the_step_before_it_alone(task: str, tmp_path: Path):
    where = folder(tmp_path / "m")

    def walk(steps: int) -> None:
        options = {"precision": "bf16", "steps": steps, "epochs": None, "batch": 4, "evaluate_every": 1000}
        more = {"device": "cuda", "start": "plain", "validation": TASKS[task][:1]}
        finetune(where, TASKS[task], task=task, out=tmp_path / str(steps), **options, **more)

    assert_one_wait_per_step(walk, 2, 6)


def test_a_step_of_a_picture_classifier_waits_for_the_step_before_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probe_start, "FOLDED_PENALTIES", (1e-3, 1e-1))
    monkeypatch.setattr(probe_start, "FOLDED_STEPS", 5)
    image_run(tmp_path / "m", {"steps": 1})

    def walk(steps: int) -> None:
        train = TrainSettings(steps=steps, precision="bf16", device="cuda")
        settings = ClassifierSettings(batch=8, mixup=0.8, pooling="mean", gradients=False, train=train)
        finetune_classify(tmp_path / "m", bars(), tmp_path / str(steps), settings=settings, console=False)

    assert_one_wait_per_step(walk, 1, 3)  # of the first epoch: then comes a look at the held-out pictures


def assert_one_wait_per_step(walk: Callable[[int], None], few: int, many: int) -> None:
    """On the stand-in, `many` steps wait once more per step than `few`, for the step before."""

    def waits(steps: int) -> Counter[tuple[str, str]]:
        with stand_in.cuda() as watch:
            walk(steps)
        return Counter(watch.waits)

    more = waits(many)
    more.subtract(waits(few))
    found = {key: count / (many - few) for key, count in more.items() if count}
    assert {reason for reason, _ in found} == {"for an earlier step"}, found
    assert sum(found.values()) <= 1, found


def test_batches_are_packed_while_a_gpu_computes(tmp_path: Path):
    def packed_by(device: str) -> set[str]:
        whole, threads = job(), set()

        def make(*about: Any) -> Any:
            threads.add(threading.current_thread().name)
            return whole.make_batch(*about)

        settings = TrainSettings(steps=3, batch_slots=128, precision="fp32", device=device)
        run(dataclasses.replace(whole, make_batch=make), tmp_path / device, settings, console=False)
        return threads

    measured = {"MainThread"}  # the memory that a step takes
    assert packed_by("cpu") == measured
    with stand_in.cuda():
        assert packed_by("cuda") == {"ahead"} | measured


def test_mixed_devices_are_refused():
    with stand_in.cuda(), pytest.raises(stand_in.MixedDevicesError):
        torch.ones(2, device="cuda") + torch.ones(2)


def test_what_waits_is_counted():
    with stand_in.cuda() as watch:
        x = torch.arange(4.0, device="cuda")
        assert (float(x.sum()), x[x > 1].shape, x.cpu().tolist()) == (6.0, (2,), [0.0, 1.0, 2.0, 3.0])
    assert sorted(reason for reason, _ in watch.waits) == [
        "a copy to the host",
        "a length that depends on values",
        "a number for the host",
    ]


@pytest.mark.parametrize("norm", [Norm(), Norm(kind="rms", placement="pre")])
def test_states_stay_in_half_precision_through_norms(norm: Norm):
    """Autocast would make every norm on a GPU, and all it is added to, fp32: twice the memory traffic."""
    config = EncoderConfig(
        width=32, layers=2, heads=2, positions=Learned(slots=8), feedforward=MLP(inner=64), norm=norm
    )
    seen = set()
    with stand_in.cuda():
        encoder = make_encoder(config).to("cuda")
        for module in encoder.layers.modules():
            module.register_forward_hook(lambda _, x, y: seen.add((x[0].dtype, y.dtype)))
        x = torch.randn(2, 8, 32, device="cuda")
        segment = torch.ones(2, 8, dtype=torch.int64, device="cuda")
        position = torch.arange(8, device="cuda").expand(2, 8)
        with torch.autocast("cuda", torch.bfloat16):
            out = encoder(x, segment=segment, position=position)
        out.float().sum().backward()
    assert seen == {(torch.bfloat16, torch.bfloat16)}
