"""Models that learn from representations: losses, views, collapse, runs, and what they refuse."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unmask
from latent_cases import TARGETS, latent_settings, learner, view_batch
from tiny_images import TINY, bars, class_folder
from unmask.core.pretrain import with_loss
from unmask.errors import UserError
from unmask.evaluation.metrics import effective_rank
from unmask.modalities.images.network.folder import ImageFolder
from unmask.modalities.images.network.latents import (
    invariance_loss,
    nt_xent,
    one_view_per_row,
    sigreg,
    views_together,
)
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.recipes import with_overrides as settings_with
from unmask.modalities.images.uses.model import ImageModel
from unmask.modalities.images.uses.neighbours import nearest
from unmask.modalities.images.uses.pretrain import make_job, pretrain, spread_of, warned
from unmask.modalities.images.uses.report import places
from unmask.training.compute import fit_memory


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_sigreg_is_small_for_normal_embeddings_alone(seed: int):
    normal = drawn(seed, 512, 8)
    found = {
        name: float(sigreg(x, torch.Generator().manual_seed(1)))
        for name, x in {
            "normal": normal,
            "all alike": torch.zeros(512, 8),
            "too wide": normal * 3,
            "one direction": normal[:, :1].expand(-1, 8),
            "two lumps": normal[:, :1].sign().expand(-1, 8),
        }.items()
    }
    assert found["normal"] < 2
    assert all(value > 3 * found["normal"] for name, value in found.items() if name != "normal"), found
    assert found["all alike"] > 100


def test_sigreg_equals_the_statistic_worked_out_by_hand(seed: int):
    """One dimension has one direction: n times the integral of |phi_n - phi|^2 times phi."""
    x = drawn(seed, 50, 1)
    at = torch.linspace(-3, 3, 2001, dtype=torch.float64)
    found = torch.exp(1j * at[:, None] * x.flatten().double()).mean(1)
    apart = (found - torch.exp(-(at**2) / 2)).abs() ** 2 * torch.exp(-(at**2) / 2)
    expected = 50 * torch.trapezoid(apart, at)
    assert float(sigreg(x, torch.Generator().manual_seed(0))) == pytest.approx(float(expected), rel=1e-3)


def test_nt_xent_of_two_views_is_the_papers(seed: int):
    x = drawn(seed, 5, 2, 4)
    z = torch.nn.functional.normalize(x.reshape(10, 4), dim=1)
    alike = z @ z.t() / 0.3
    rows = []
    for i in range(10):
        others = [j for j in range(10) if j != i]
        rows.append(alike[i, others].logsumexp(0) - alike[i, i ^ 1])
    assert float(nt_xent(x, 0.3)) == pytest.approx(float(torch.stack(rows).mean()), rel=1e-5)


def test_nt_xent_of_three_views_leaves_the_third_out(seed: int):
    x = drawn(seed, 4, 3, 4)
    pairs = [nt_xent(x[:, [a, b]], 0.5) for a, b in ((0, 1), (0, 2), (1, 2))]
    # The others of a pair alone are two views of each other picture, of three all three.
    assert float(nt_xent(x, 0.5)) > float(torch.stack(pairs).mean())
    assert float(invariance_loss(x[:, :1].expand(-1, 3, -1))) == pytest.approx(0, abs=1e-12)


def test_effective_rank_counts_directions(seed: int):
    rng = np.random.default_rng(seed)
    assert effective_rank(rng.normal(size=(4000, 6))) == pytest.approx(6, abs=0.1)
    assert effective_rank(rng.normal(size=(400, 1)) @ np.ones((1, 6))) == pytest.approx(1)
    assert effective_rank(np.ones((5, 3))) == 0
    assert warned(spread_of(np.ones((50, 8)) + 1e-4 * rng.normal(size=(50, 8)))).startswith("warning")
    assert not warned(spread_of(rng.normal(size=(50, 8))))
    assert not warned({})


def test_views_side_by_side_are_rows_again(seed: int):
    model = learner("views", seed)
    batch, hidden = view_batch(model, seed)
    assert batch.shape == (8, 4 * 37)
    assert batch.segment.unique().tolist() == [1, 2, 3, 4]
    apart = one_view_per_row(batch, 4)
    again = views_together(apart, 4)
    assert torch.equal(again.values["patch"], batch.values["patch"])
    assert apart.shape == (32, 37)
    per_view = torch.bincount(hidden.flat // 37, minlength=32)
    assert per_view.unique().tolist() == [18]  # of 36 patches, the same number in each
    flat = hidden.flat.reshape(32, 18) % 37
    assert len({tuple(row) for row in flat.tolist()}) > 28  # each view hides its own


def test_views_and_directions_are_a_function_of_the_pictures(seed: int):
    model = learner("views", seed)
    losses = [float(model.step_loss(*view_batch(model, seed, epoch=e)).detach()) for e in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("target", TARGETS)
def test_pictures_are_compared_in_fp32_in_a_bf16_run(target: str, seed: int):
    model = learner(target, seed)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model._compared(
            one_view_per_row(view_batch(model, seed)[0], model.settings.shown_views), drawn(seed, 8, 4, 32)
        )
    assert loss.dtype == torch.float32
    assert float(loss.detach()) != float(loss.detach().bfloat16())


@pytest.mark.parametrize("target", TARGETS)
def test_every_part_learns(target: str, seed: int):
    model = learner(target, seed, pixel_weight=0.5)
    loss, _ = with_loss(model)(*view_batch(model, seed))
    loss.backward()
    still = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert still == []


@pytest.fixture(scope="module", params=TARGETS)
def trained(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("latents") / request.param
    return pretrain(bars(120), out, settings=latent_settings(request.param, examples=True), console=False)


def test_a_run_says_how_far_embeddings_are_spread(trained):
    lines = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert any("effective_rank" in line and "relative_spread" in line for line in lines)
    assert trained.data["effective_rank"] > 0
    page = (trained.folder / "report.html").read_text()
    assert "Nearest neighbours" in page
    assert "Map of the embedding" in page
    assert "Original, masked, reconstructed" not in page


def test_the_saved_model_is_the_encoder(trained):
    names = set(load_file(trained.folder / "model.safetensors"))
    assert not any("projector" in n or "decoder" in n or "predictor" in n for n in names)
    model = unmask.load(trained.folder)
    assert model.embed(bars(7)[0]).shape == (7, 32)
    assert model.attention(bars(2)[0]).shape == (2, 2, 6, 6)
    assert "loss" not in model.evaluate(bars(60))
    assert not model.inspect()["predicts_pixels"]
    model.save(trained.folder.with_name(trained.folder.name + "-again"))
    again = unmask.load(trained.folder.with_name(trained.folder.name + "-again"))
    assert np.array_equal(again.embed(bars(7)[0]), model.embed(bars(7)[0]))


@pytest.mark.parametrize("more", [{"view": "tile", "image_size": 6, "overlap": 2}, {"store": "disk"}, {"steps": 2}])
def test_reports_show_the_embedding_of_any_pictures_model(tmp_path, more):
    chosen = settings_with(ImageSettings(), TINY | {"patch": 2, "steps": 1, "examples": True} | more)
    run = pretrain(class_folder(tmp_path / "photos", 24), tmp_path / "m", settings=chosen, console=False)
    assert "Map of the embedding" in (run.folder / "report.html").read_text()


@pytest.mark.parametrize("use", ["fill", "reconstruct", "score", "loss"])
def test_pixels_of_a_model_that_predicts_none_are_refused(trained, use: str):
    with pytest.raises(UserError, match="predicts no pixels"):
        getattr(unmask.load(trained.folder), use)(bars(4)[0])


def test_with_pixels_beside_it_fills(tmp_path):
    pretrain(bars(60), tmp_path / "m", settings=latent_settings("views", pixel_weight=1.0), console=False)
    model = unmask.load(tmp_path / "m")
    assert model.fill(bars(4)[0]).shape == (4, 12, 12, 1)
    assert np.isfinite(model.loss(bars(20)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_resumed_run_ends_in_the_same_bytes(target: str, tmp_path):
    more = {"schedule": "constant", "jitter": 0.2, "pixel_weight": 0.5}
    for name, ends in (("whole", [4]), ("parted", [2, 4])):
        for number, steps in enumerate(ends):
            chosen = latent_settings(target, steps=steps, **more)
            pretrain(bars(80), tmp_path / name, settings=chosen, resume=number > 0, console=False)
    whole, parted = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "parted"))
    assert all(torch.equal(whole[name], parted[name]) for name in whole)


def test_without_the_regulariser_it_collapses_and_says_so(tmp_path, capsys):
    more = {"steps": 30, "learning_rate": 5e-3, "batch": 32, "crop": (0.5, 1.0)}
    found = {}
    for weight in (0.0, 0.2):
        chosen = latent_settings("views", regulariser=weight, **more)
        found[weight] = pretrain(bars(160), tmp_path / str(weight), settings=chosen, console=False).data
    assert found[0.0]["relative_spread"] < 0.25 * found[0.2]["relative_spread"]


def test_a_step_is_not_split(tmp_path):
    with pytest.raises(UserError, match="compares all of a step"):
        pretrain(bars(60), tmp_path / "m", settings=latent_settings("contrast", accumulate=2), console=False)


def test_several_processes_are_refused(seed: int):
    settings = latent_settings("views", seed=seed)
    images = ImageSet(pixels=bars(20)[0][..., None], labels=None, classes=[])
    job, settings = make_job(learner("views", seed), images, np.arange(20), np.arange(0), settings)
    several = SimpleNamespace(processes=2, device=torch.device("cpu"), precision=SimpleNamespace(name="fp32"))
    with pytest.raises(UserError, match="2 processes"):
        fit_memory(job, several, settings.train, None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"target": "views", "views": 1}, "views=1"),
        ({"target": "pixels", "views": 2}, "views=2"),
        ({"target": "pixels", "pixel_weight": 1.0}, "pixel_weight"),
        ({"target": "views", "architecture": "in_place"}, "in_place"),
        ({"target": "views", "regulariser": 2.0}, "regulariser"),
        ({"target": "contrast", "temperature": 0.0}, "temperature"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, told):
    with pytest.raises(UserError, match=told):
        latent_settings(**changes)


def test_neighbours_and_places(seed: int):
    rng = np.random.default_rng(seed)
    lumps = np.repeat(np.eye(3), 4, 0) + 0.01 * rng.normal(size=(12, 3))
    near, _ = nearest(lumps, np.arange(12), 3)
    assert (near // 4 == np.arange(12)[:, None] // 4).all()
    assert not (near == np.arange(12)[:, None]).any()
    where, how = places(lumps)
    assert how == "principal components"
    assert where.min() == 0
    assert where.max() == 1
    apart = np.linalg.norm(where[:4].mean(0) - where[4:8].mean(0))
    assert apart > 5 * np.linalg.norm(where[:4] - where[:4].mean(0), axis=1).max()


def test_grid_pooling_keeps_what_is_where(seed: int):
    model = ImageModel(ImageFolder(model=learner("views", seed).eval()), torch.device("cpu"), "fp32")
    pixels = bars(3)[0]
    found = model.embed(pixels, pooling="grid")
    assert found.shape == (3, 16 * 32)
    batch = next(iter(model.batches(model.read(pixels))))[1]
    states = model.model.states(batch)[:, 1:].reshape(3, 6, 6, 32)
    # The first of four cells over six patches takes patches 0 and 1 in each direction.
    np.testing.assert_allclose(found[:, :32], states[:, :2, :2].mean((1, 2)).detach().numpy(), rtol=1e-5, atol=1e-6)
