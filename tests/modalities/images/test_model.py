"""An image model from pixels to use: pretrain, resume, fill, embed, evaluate, fine-tune; small and on real
code paths."""

import dataclasses
import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import unmask
from tiny_images import NO_DECODER, TINY, bars
from unmask.core.corruption import hide
from unmask.core.pretrain import validate
from unmask.errors import UserError
from unmask.modalities.images.classify.classifier import ClassifierNet, DropPath
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
from unmask.modalities.images.classify.classifier_settings import with_overrides as finetune_with
from unmask.modalities.images.classify.classifier_training import PictureFinetuning, groups
from unmask.modalities.images.network.augment import Augment, mix_batch, smoothed
from unmask.modalities.images.network.batches import image_batch
from unmask.modalities.images.network.build import at_size, codec_config, new_model
from unmask.modalities.images.network.codec import PatchPrediction, standardise
from unmask.modalities.images.network.features import knn_predict, probe_predict
from unmask.modalities.images.network.folder import ImageFolder, save_folder
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.recipes import RECIPES, SIZES, ImageSettings, with_overrides
from unmask.modalities.images.uses.finetune import finetune_classify
from unmask.modalities.images.uses.model import ImageModel
from unmask.modalities.images.uses.pretrain import ImagePretraining, pretrain
from unmask.training.budget import fit_here
from unmask.training.settings import TrainSettings


def settings(**more):
    decoder = NO_DECODER if more.get("architecture") == "in_place" else {}
    return with_overrides(ImageSettings(), TINY | decoder | more)


@pytest.fixture(scope="module", params=["visible_only", "in_place"])
def trained(request, tmp_path_factory):
    """A run of six steps in both architectures; in place it is SimMIM's head, loss and units."""
    out = tmp_path_factory.mktemp("runs") / request.param
    more = {"architecture": request.param}
    if request.param == "in_place":
        more |= {"norm_targets": False, "loss": "l1", "hide": "unit", "unit": 4, "ratio": 0.6, "positions": "learned"}
    return pretrain(bars(), out, settings=settings(patch=2, examples=True, **more), console=False)


def test_a_run_folder_has_all_it_should(trained):
    names = {p.name for p in trained.folder.iterdir()}
    assert {"config.json", "model.safetensors", "metrics.jsonl", "report.html", "unmask.json"} <= names
    assert json.loads((trained.folder / "unmask.json").read_text())["kind"] == "images"
    kinds = [json.loads(line)["kind"] for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    page = (trained.folder / "report.html").read_text()
    assert "data:image/png" in page
    assert "Original, masked, reconstructed" in page
    assert {"train", "validation"} <= set(kinds)
    json.dumps(trained.to_dict(), allow_nan=False)


def test_a_description_that_cannot_be_is_refused(trained, tmp_path):
    """An epsilon that is none was taken: predictions were no numbers, or ended in a traceback."""
    folder = shutil.copytree(trained.folder, tmp_path / "m")
    about = json.loads((folder / "unmask.json").read_text())
    about["encoder"]["norm"]["epsilon"] = -1.0
    (folder / "unmask.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"norm\.epsilon=.* cannot be"):
        unmask.load(folder)


def test_a_report_without_held_out_pictures_says_so_and_draws_those_of_the_training(tmp_path):
    run = pretrain(bars(20), tmp_path / "run", settings=settings(steps=2, holdout=0.0, examples=True), console=False)
    page = (run.folder / "report.html").read_text()
    assert "none held out" in page
    assert ">nan<" not in page
    assert "pictures of the training, for none are held out" in page
    assert "data:image/png" in page


def test_the_live_probe_is_on_the_reports_curve(tmp_path):
    run = pretrain(bars(150), tmp_path / "run", settings=settings(steps=2), console=False)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    probes = [line for line in lines if line["kind"] == "probe"]
    assert probes
    assert all(0 <= p["knn_accuracy"] <= 1 and 0 <= p["probe_accuracy"] <= 1 for p in probes)
    assert "Accuracy of frozen features" in (run.folder / "report.html").read_text()


def test_the_loaded_model_is_the_trained_one(trained):
    again = unmask.load(trained.folder)
    for name, tensor in trained.model.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert again.config == trained.model.model.codec.config
    shown = repr(again)
    assert shown.startswith("ImageModel(")
    assert "pictures of 12 x 12, 1 channels" in shown
    assert repr(trained.drawn).startswith(f"ImageSet({len(trained.drawn)} pictures of 12 x 12, 1 channels, ")
    assert "MaskedModel(" not in repr(trained)


@pytest.mark.parametrize(
    "options", [{"ratio": 0.5}, {"box": (2, 2, 5, 5)}, {"mask": np.eye(12)}, {"steps": 4}, {"sweeps": 1}]
)
def test_fill_changes_hidden_pixels_only_and_keeps_the_units(trained, options):
    model = unmask.load(trained.folder)
    pixels, _ = bars(5, seed=7)
    r = model.reconstruct(pixels, **options)
    assert r.filled.dtype == np.uint8
    assert np.array_equal(r.filled[~r.hidden], r.original[~r.hidden])
    assert r.hidden.any()
    # And what stood there does not matter.
    other = np.where(r.hidden, 255 - pixels, pixels)
    assert np.array_equal(model.reconstruct(other, **options).filled[r.hidden], r.filled[r.hidden])


@pytest.mark.parametrize("box", [(3, 3, 5, 5), (1, 2, 1, 1), (0, 0, 12, 12)])
def test_a_box_or_mask_of_pixels_changes_nothing_outside_it(trained, box):
    model, pixels = unmask.load(trained.folder), bars(4)[0]
    left, top, wide, high = box
    inside = np.zeros((12, 12), bool)
    inside[top : top + high, left : left + wide] = True
    for chosen in ({"box": box}, {"mask": inside}, {"mask": np.stack([inside] * 4)}):
        found = model.reconstruct(pixels, **chosen)
        assert (found.hidden == inside).all()
        assert np.array_equal(found.filled[:, ~inside], found.original[:, ~inside])


def test_as_many_patches_are_hidden_as_in_training_unless_told_otherwise(tmp_path):
    """A model that always saw most of a picture is not asked, and judged, with most of it gone."""
    run = pretrain(bars(40), tmp_path / "run", settings=settings(steps=2, ratio=0.4), console=False)
    model, (pixels, _) = unmask.load(run.folder), bars(5, seed=7)
    by_patch = model.reconstruct(pixels).hidden[:, ::2, ::2]
    assert (by_patch.reshape(5, -1).sum(1) == int(model.config.patches) - int(model.config.patches * 0.6)).all()
    assert model.loss(pixels) == model.loss(pixels, ratio=0.4) != model.loss(pixels, ratio=0.8)
    del model.folder.settings["images"]["ratio"]  # a published folder does not say
    assert model.hidden_ratio == 0.75


def test_by_default_views_are_compared_and_pixels_predicted():
    """The same in Python as on the command line: the recipe `small`."""
    made = unmask.images.Settings()
    assert ImagePretraining(bars(20), None).settings == made == with_overrides(made, RECIPES["small"])
    assert (made.target, made.shown_views, made.predicts_pixels, made.train.optimiser) == ("contrast", 2, True, "muon")
    assert made.scale == (0.3, 1.0)
    native = with_overrides(made, {"view": "crop", "image_size": 12})  # nothing is resized there
    assert native.scale == (1.0, 1.0)


class TruePattern(torch.nn.Module):
    """Predicts every hidden patch's own normalised pattern."""

    visible_only = True

    def __init__(self, model):
        super().__init__()
        self.codec, self.encoder, self.truth = model.codec, model.encoder, torch.zeros(0)

    def forward(self, batch, hidden, wanted=None):
        patches = self.truth.flatten(0, 1)[hidden.flat if wanted is None else wanted]
        return PatchPrediction(standardise(patches)[0], None, self.codec.config)


@pytest.mark.parametrize(("depth", "top"), [(np.uint8, 255), (np.uint16, 65535), (np.float32, 9.0)])
def test_reconstruction_is_in_pixels_under_normalised_targets(depth, top, seed):
    """With the true pattern and statistics as prediction the original comes back, in every depth."""
    pixels = (np.random.default_rng(0).random((3, 8, 8)) * top).astype(depth)
    s = settings(statistics=0.0)
    perfect = TruePattern(new_model(s, codec_config(s, (8, 8), 1, (0.4,), (0.2,))))
    model = ImageModel(ImageFolder(model=perfect, depth=np.dtype(depth).name), torch.device("cpu"), "fp32")
    _, batch = next(model.batches(model.read(pixels)))
    perfect.truth = batch.values["patch"]
    found = model.reconstruct(pixels, statistics="truth").filled[..., 0]
    np.testing.assert_allclose(found.astype(float), pixels.astype(float), atol=1 if depth != np.float32 else 0.03)
    with pytest.raises(UserError, match="neighbours"):
        model.reconstruct(pixels, statistics="predicted")
    assert np.isfinite(model.reconstruct((pixels / top).astype(np.float32)).filled).all()


def test_embeddings_keep_the_order_and_do_not_depend_on_company(trained):
    model = unmask.load(trained.folder)
    pixels, _ = bars(7)
    whole = model.embed(pixels)
    assert whole.shape == (7, 32)
    np.testing.assert_allclose(model.embed(pixels[[3, 1]]), whole[[3, 1]], atol=1e-5)
    np.testing.assert_allclose(
        np.linalg.norm(model.embed(pixels, pooling="first", normalise=True), axis=1), 1, rtol=1e-5
    )
    with pytest.raises(UserError, match="pooling='middle'"):
        model.embed(pixels, pooling="middle")
    assert model.attention(pixels).shape == (7, 2, 6, 6)
    assert model.resized((16, 8)).embed(np.zeros((2, 16, 8), np.uint8)).shape == (2, 32)


def test_floats_are_compared_with_the_models_depth(trained):
    model = unmask.load(trained.folder)
    pixels, _ = bars(4)
    with pytest.raises(UserError, match="divide 8-bit pixels by 255"):
        model.embed(pixels.astype(np.float32))
    np.testing.assert_allclose(model.embed((pixels / 255).astype(np.float32)), model.embed(pixels), atol=1e-4)
    np.testing.assert_array_equal(model.embed((pixels // 4).astype(np.int64)), model.embed(pixels // 4))


def test_validation_and_live_probe_see_every_class(seed, monkeypatch):
    """Folders come sorted by class: what is cut is taken from all over."""
    from unmask.modalities.images.uses import pretrain as room

    pixels, labels = bars(3000)
    order = labels.argsort(kind="stable")
    images = ImageSet(pixels=pixels[order][..., None], labels=labels[order])
    seen = []
    monkeypatch.setattr(room, "features", lambda model, part, *_: seen.append(part.labels) or np.eye(3)[part.labels])
    train, held_out = np.arange(0, 3000, 2), np.arange(1, 3000, 2)
    found = room.live_probe(images, train, held_out, (12, 12))(torch.nn.Linear(1, 1))
    assert [np.unique(s).tolist() for s in seen] == [[0, 1, 2]] * 2
    assert found["knn_accuracy"] == 1
    monkeypatch.setattr(room, "VALIDATION", 60)
    s = settings()
    model = new_model(s, codec_config(s, (12, 12), 1, (0.0,), (1.0,)))
    job, _ = room.make_job(model, images, train, held_out, s)
    shown = np.concatenate([b.identity[:, 0].numpy() for b in job.validation])
    assert np.unique(images.labels[shown]).tolist() == [0, 1, 2]


def test_evaluate(trained):
    model = unmask.load(trained.folder)
    found = model.evaluate(bars(90, seed=3))
    assert 0 <= found["knn_accuracy"] <= 1
    assert found["probe_accuracy"] > 0.5
    assert found["test_pictures"] == 18
    assert np.isfinite(found["loss"])
    assert "knn_accuracy" not in model.evaluate(bars(20)[0])
    pixels, _ = bars(8)
    with pytest.raises(UserError, match="of one class"):
        model.evaluate((pixels, np.zeros(8, int)))


def test_resume_equals_an_uninterrupted_run(tmp_path):
    """Crops, masks and order are functions of (seed, epoch, picture): two halves are the whole, bit for bit."""
    data = bars()
    whole = pretrain(data, tmp_path / "whole", settings=settings(schedule="constant"), console=False)
    half = settings(steps=3, schedule="constant", checkpoint_every=3)
    pretrain(data, tmp_path / "parts", settings=half, console=False)
    resumed = pretrain(data, tmp_path / "parts", settings=settings(schedule="constant"), resume=True, console=False)
    assert resumed.result.steps == whole.result.steps == 6
    for name, tensor in whole.model.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.model.state_dict()[name]), name
    with pytest.raises(UserError, match=r"other data or settings: ratio=0\.5, was 0\.75"):
        pretrain(data, tmp_path / "parts", settings=settings(ratio=0.5), resume=True, console=False)


def test_the_encoder_never_sees_hidden_patches(seed):
    """Visible only: as many slots go in as are visible, no more; 75 % hidden is a quarter of the encoder's work."""
    s = settings()
    model = new_model(s, codec_config(s, (16, 16), 1, (0.0,), (1.0,)))
    seen = []
    model.encoder.layers[0].register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape)))
    batch = image_batch(model.codec.config, torch.randn(2, 1, 16, 16), np.arange(2))
    patches = model.codec.config.patches
    flat = torch.cat(
        [torch.arange(1, patches * 3 // 4 + 1), model.codec.config.slots + torch.arange(1, patches * 3 // 4 + 1)]
    )
    model(batch, hide(flat))
    assert seen == [(2, 1 + patches // 4, 32)]


@pytest.mark.parametrize("name", RECIPES)
def test_published_recipes_are_settings(name):
    made = with_overrides(ImageSettings(), RECIPES[name])
    assert made.size in SIZES
    assert with_overrides(ImageSettings(), dataclasses.asdict(made)) == made
    if name == "mae":
        assert (made.decoder_width, made.decoder_layers, made.decoder_heads, made.statistics) == (512, 8, 16, 0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ratio": 1.5}, "between 0 and 1"),
        ({"size": "gigantic"}, "Known|Did you"),
        ({"patchs": 4}, "Did you mean 'patch'"),
        ({"crop": "0.9,0.2"}, "low,high"),
        ({"width": 30}, "multiple of 4"),
        ({"image_size": "0"}, "pixels"),
        ({"heads": 5}, "divide"),
    ],
)
def test_bad_settings_are_named(change, match):
    def build():
        s = settings(**change)
        return new_model(s, codec_config(s, (8, 8), 1, (0.0,), (1.0,)))

    with pytest.raises(UserError, match=match):
        build()


def test_a_patch_that_does_not_divide_stops_before_training(tmp_path):
    with pytest.raises(UserError, match=r"Use patch= one of \[1, 2, 3, 4, 6\]"):
        pretrain(bars(), tmp_path / "run", settings=settings(patch=5), console=False)
    assert not (tmp_path / "run").exists()


def test_another_picture_size_keeps_the_class_tokens_place(seed):
    s = settings()
    model = new_model(s, codec_config(s, (16, 16), 1, (0.0,), (1.0,)))
    large = at_size(model, (32, 16))
    assert large.codec.config.grid == (2 * model.codec.config.grid[0], model.codec.config.grid[1])
    tables = [m.encoder.stem.positions.weight for m in (model, large)]
    assert torch.equal(tables[0][0], tables[1][0])


# Augmentation and fine-tuning


def test_augmentation_is_a_function_of_the_key_and_the_picture(seed):
    images = torch.rand(6, 3, 10, 14)
    augment = Augment(scale=(0.3, 1.0))
    identity = np.array([5, 9, 5, 1, 2, 3])
    first = augment(images, identity, key=(0, 1))
    assert first.shape == images.shape
    assert torch.equal(first[3:], augment(images[3:], identity[3:], key=(0, 1)))
    assert not torch.equal(first, augment(images, identity, key=(0, 2)))
    same = Augment(scale=(1.0, 1.0), flip=False)
    assert torch.equal(same(images, identity, key=(0, 0)), images)
    flipped = Augment(scale=(1.0, 1.0))(images.repeat(40, 1, 1, 1), np.arange(240), key=(0, 0))
    turned = (flipped == images.repeat(40, 1, 1, 1).flip(-1)).flatten(1).all(1)
    kept = (flipped == images.repeat(40, 1, 1, 1)).flatten(1).all(1)
    assert (turned ^ kept).all()
    assert 80 < int(turned.sum()) < 160
    boxes = augment.boxes(np.arange(5000), (0, 0))
    area = boxes[:, 2] * boxes[:, 3]
    assert 0.25 < area.min() < 0.35
    assert 0.6 < area.mean() < 0.68
    assert (boxes[:, 0] - boxes[:, 2] / 2 > -1e-9).all()
    assert (boxes[:, 1] + boxes[:, 3] / 2 < 1 + 1e-9).all()


def test_a_crop_shows_that_part_of_the_picture():
    ramp = torch.linspace(0, 1, 32)[None, None, None].expand(1, 1, 32, 32).contiguous()
    augment = Augment(scale=(0.25, 0.25), aspect=(1.0, 1.0), flip=False)
    for number in range(5):
        x, _, w, _, _ = augment.boxes(np.array([number]), (0, 0))[0]
        found = augment(ramp, np.array([number]), key=(0, 0))
        assert abs(float(found.mean()) - (x * 32 - 0.5) / 31) < 0.02
        assert w == pytest.approx(0.5)


def test_crops_of_larger_pictures_are_as_smooth_as_shrunk_ones(seed):
    noise = torch.rand(20, 1, 48, 40)
    shrunk = torch.nn.functional.interpolate(noise, (12, 10), mode="bicubic", antialias=True)
    crops = Augment(scale=(1.0, 1.0))(noise, np.arange(20), key=(0, 0), size=(12, 10))
    assert crops.shape == shrunk.shape
    assert 0.75 < float(crops.std() / shrunk.std()) < 1.25


def test_mixing_keeps_targets_adding_up_to_one(seed):
    images, labels = torch.rand(8, 1, 12, 12), torch.arange(8) % 3
    target = smoothed(labels, 3, 0.1)
    torch.testing.assert_close(target.sum(1), torch.ones(8))
    torch.testing.assert_close(target[0], torch.tensor([0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3]))
    for options in ({"mixup": 0.8, "cutmix": 0.0}, {"mixup": 0.0, "cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}):
        for number in range(6):
            mixed, wanted = mix_batch(images, target, generator=torch.Generator().manual_seed(number), **options)
            torch.testing.assert_close(wanted.sum(1), torch.ones(8))
            if options["cutmix"] and not options["mixup"]:
                foreign = (mixed[0] != images[0]).float().mean()
                share = (wanted[0] - target[0]).abs().sum() / (target.flip(0)[0] - target[0]).abs().sum()
                torch.testing.assert_close(foreign, share, atol=1e-5, rtol=1e-5)


def net_of(**more):
    s = settings(**more)
    model = new_model(s, codec_config(s, (12, 12), 1, (0.0,), (1.0,)))
    return ClassifierNet(model, 3, drop_path=0.5)


def test_layer_decay_falls_by_the_layer(seed):
    net = net_of()
    rates = groups(net, rate=1.0, layer_decay=0.5, weight_decay=0.1)
    rate = {id(p): g["lr"] for g in rates for p in g["params"]}
    assert rate[id(net.head.weight)] == rate[id(net.norm.weight)] == 1.0
    layers = net.masked.encoder.layers
    assert [rate[id(layer.attention.qkv.weight)] for layer in layers] == [0.25, 0.5]
    assert rate[id(net.masked.codec.patch.weight)] == rate[id(net.masked.codec.cls)] == 0.125
    assert id(net.masked.codec.head.weight) not in rate
    assert id(net.masked.encoder.stem.positions.weight) not in rate  # fixed sines
    assert all(g["weight_decay"] == (0.1 if g["params"][0].ndim > 1 else 0.0) for g in rates)


def test_drop_path_leaves_whole_rows_out_on_average_unbiased(seed):
    block = torch.nn.Identity().train()
    out = DropPath(0.25)(block, None, torch.ones(4000, 2, 3))
    rows = out.flatten(1)
    assert ((rows == 0).all(1) | (rows == 1 / 0.75).all(1)).all()
    assert abs(float(rows.mean()) - 1) < 0.05
    assert torch.equal(DropPath(0.25)(block.eval(), None, torch.ones(4, 2, 3)), torch.ones(4, 2, 3))


def test_fine_tuning_in_parts_that_fit_is_that_of_the_whole_batch(tmp_path, monkeypatch):
    pretrain(bars(30), tmp_path / "m", settings=settings(patch=2, steps=1, precision="fp32"), console=False)
    found, asked = [], []

    def split(*given, **more):
        fitted = fit_here(*given, **more)
        asked.append(fitted)
        return dataclasses.replace(fitted, parts=4, rows=5) if len(asked) == 2 else fitted

    monkeypatch.setattr("unmask.modalities.images.classify.classifier_training.fit_here", split)
    for name in ("whole", "parts"):
        train = TrainSettings(steps=3, precision="fp32")
        tune = ClassifierSettings(drop_path=0.5, mixup=0.8, batch=18, pooling="mean", gradients=False, train=train)
        done = finetune_classify(tmp_path / "m", bars(40), tmp_path / name, settings=tune, console=False)
        found.append((done.figures, load_file(tmp_path / name / "model.safetensors")))
    (whole, a), (parts, b) = found
    assert (whole["micro_batches"], parts["micro_batches"]) == (1, 4)
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], atol=2e-5, rtol=1e-3, msg=name)
    assert asked[0].need.row > 12 * 12 * 4  # a picture's own pixels at least
    assert whole["expected_memory_mb"] > asked[0].held / 1e6


def test_fine_tuning_that_cannot_fit_is_refused_before_it_starts(tmp_path):
    pretrain(bars(30), tmp_path / "m", settings=settings(patch=2, steps=1), console=False)
    tune = ClassifierSettings(train=TrainSettings(steps=3, memory=0.01))
    with pytest.raises(UserError, match="too little memory: training with one picture at a time"):
        finetune_classify(tmp_path / "m", bars(40), tmp_path / "c", settings=tune, console=False)
    assert not (tmp_path / "c" / "model.safetensors").exists()


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_finetune_learns_saves_and_predicts(tmp_path, pooling):
    s = settings(patch=2)
    save_folder(tmp_path / "base", new_model(s, codec_config(s, (12, 12), 1, (0.2,), (0.3,))))
    chosen = {
        "epochs": 25,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "pooling": pooling,
        "mixup": 0.2,
        "cutmix": 1.0,
        "batch": 32,
        "crop": "1,1",
        "flip": False,
        "layer_decay": 1.0,
    }
    done = finetune_classify(
        tmp_path / "base",
        bars(240),
        tmp_path / "out",
        validation=bars(60, seed=5),
        console=False,
        settings=finetune_with(ClassifierSettings(), chosen),
    )
    assert done.figures["validation_accuracy"] > 0.6
    again = unmask.load(tmp_path / "out")
    pixels, labels = bars(60, seed=5)
    found = again.predict(pixels)
    np.testing.assert_allclose(again.probabilities(pixels), done.model.probabilities(pixels), atol=1e-5)
    right = np.mean([p["label"] == str(y) for p, y in zip(found, labels, strict=True)])
    assert right == pytest.approx(again.evaluate((pixels, labels))["accuracy"])
    assert right == pytest.approx(done.figures["validation_accuracy"])
    scores = again.evaluate((pixels, labels))
    assert np.trace(scores["confusion"]) == round(right * 60)
    assert [row["n"] for row in scores["by_class"]] == np.bincount(labels, minlength=3).tolist()
    assert "What is taken for what" in (tmp_path / "out" / "report.html").read_text()
    assert again.embed(pixels).shape == (60, 32)
    few = [again.evaluate((pixels, labels // 2), most=20, seed=n) for n in (0, 0, 1)]
    assert few[0] == few[1] != few[2]
    assert few[0]["pictures"] == 20


def test_fine_tuning_goes_on_from_a_signal_to_the_same_weights(tmp_path, monkeypatch):
    s = settings(patch=2)
    torch.manual_seed(0)
    save_folder(tmp_path / "base", new_model(s, codec_config(s, (12, 12), 1, (0.2,), (0.3,))))
    train = TrainSettings(epochs=3, precision="fp32")
    tune = ClassifierSettings(drop_path=0.5, mixup=0.8, batch=16, gradients=False, train=train)
    given = {"settings": tune, "console": False, "checkpoints": True}
    finetune_classify(tmp_path / "base", bars(60), tmp_path / "whole", **given)
    really, calls = PictureFinetuning.backward, []

    def backward(self, *items, **about):
        calls.append(about["step"])
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return really(self, *items, **about)

    monkeypatch.setattr(PictureFinetuning, "backward", backward)
    out = tmp_path / "parts"
    stopped = finetune_classify(tmp_path / "base", bars(60), out, **given).figures
    assert (stopped["stopped"], stopped["steps"]) == ("signal", 5)
    assert not (out / "model.safetensors").exists()
    with pytest.raises(UserError, match="checkpoint of an interrupted run"):
        finetune_classify(tmp_path / "base", bars(60), out, **given)
    with pytest.raises(UserError, match="the training pictures: not the same"):
        finetune_classify(tmp_path / "base", bars(50), out, resume=True, **given)
    finetune_classify(tmp_path / "base", bars(60), out, resume=True, **given)
    assert calls == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert not list(tmp_path.glob(".parts*"))


def test_finetune_with_one_picture_a_class_holds_none_out(tmp_path, seed):
    s = settings()
    save_folder(tmp_path / "base", new_model(s, codec_config(s, (12, 12), 1, (0.2,), (0.3,))))
    chosen = finetune_with(ClassifierSettings(), {"epochs": 1, "precision": "fp32"})
    done = finetune_classify(tmp_path / "base", bars(3), tmp_path / "out", settings=chosen, console=False)
    assert "validation_accuracy" not in done.figures
    assert unmask.load(tmp_path / "out").classes == ["0", "1", "2"]


def test_from_scratch_keeps_nothing_of_the_pretrained_weights(tmp_path, seed):
    """Norms and class token too: what is trained from scratch does not depend on the model it takes its shape from."""
    s = settings()
    made = []
    for value in (0.0, 5.0):
        model = new_model(s, codec_config(s, (12, 12), 1, (0.2,), (0.3,)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(value)
        save_folder(tmp_path / f"base{value}", model)
        chosen = finetune_with(ClassifierSettings(), {"steps": 1, "precision": "fp32", "from_scratch": True})
        out = tmp_path / f"out{value}"
        made.append(finetune_classify(tmp_path / f"base{value}", bars(30), out, settings=chosen, console=False))
    first, second = (d.model.net.state_dict() for d in made)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_finetune_names_what_is_wrong(tmp_path, seed):
    s = settings()
    save_folder(tmp_path / "base", new_model(s, codec_config(s, (12, 12), 1, (0.2,), (0.3,))))
    pixels, labels = bars(12)
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no classes"):
        finetune_classify(tmp_path / "base", pixels, out, console=False)
    with pytest.raises(UserError, match="of one class"):
        finetune_classify(tmp_path / "base", (pixels, labels * 0), out, console=False)
    with pytest.raises(UserError, match="class '2' is not one"):
        finetune_classify(tmp_path / "base", (pixels, labels % 2), out, validation=(pixels, labels), console=False)
    for change in ({"layer_decy": 1}, {"patience": 3}, {"train.optimiser": "stable_adamw"}, {"train": {"keep": 5}}):
        with pytest.raises(UserError, match="unknown setting"):
            finetune_with(ClassifierSettings(), change)
    with pytest.raises(UserError, match="already holds a model"):
        finetune_classify(tmp_path / "base", (pixels, labels), tmp_path / "base", console=False)
    assert not out.exists()


def test_probes_know_separable_classes(rng):
    centre = rng.normal(size=(3, 8)) * 4
    labels = rng.integers(0, 3, 300)
    x = (centre[labels] + rng.normal(size=(300, 8))).astype(np.float32)
    for predict in (knn_predict, probe_predict):
        assert (predict(x[:200], labels[:200], x[200:]) == labels[200:]).mean() > 0.95
        shuffled = rng.permutation(labels[:200])
        assert (predict(x[:200], shuffled, x[200:]) == labels[200:]).mean() < 0.6


@pytest.mark.parametrize(
    ("sizes", "found"),
    [([(12, 12)], (12, 12)), ([(48, 48)], (48, 48)), ([(150, 300)], (128, 256)), ([(30, 40), (200, 140)], (128, 128))],
)
def test_pictures_of_any_size_are_pretrained_on_without_a_word(tmp_path, sizes, found):
    """As they are where they are small and of one size, else shrunk, which is said; patches divide what comes out."""
    rng, said = np.random.default_rng(0), []
    pictures = [rng.integers(0, 255, (*sizes[n % len(sizes)], 3), np.uint8) for n in range(8)]
    for number, picture in enumerate(pictures):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "photos" / f"{number}.png")
    for data in (pictures, tmp_path / "photos"):
        kind = ImagePretraining(data, ImageSettings())
        kind.prepare(tmp_path, resume=False, first=True, say=said.append)
        kind.job(tmp_path, said.append)
        assert (kind.size, kind.images.size) == (found, found)
        assert kind.model.codec.config.patches <= 400
        assert any("shrunk to" in line for line in said) == (found != sizes[0])


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_the_loss_of_pretraining_stands_beside_that_of_the_mean(tmp_path, seed, norm):
    """What taking each hidden patch for the mean of the visible pixels would score, computed here from the pictures."""
    pixels, labels = bars(40, seed=seed)
    pixels = np.stack([pixels, pixels[:, ::-1], pixels // 2], -1)
    kind = ImagePretraining((pixels, labels), settings(patch=2, norm_targets=norm, statistics=0.0, seed=seed))
    kind.prepare(tmp_path, resume=False, first=True, say=lambda line: None)
    job = kind.job(tmp_path, lambda line: None)
    errors = []
    for batch in job.validation:
        drawn = job.validation_corruption.draw(batch, seed=0, epoch=0).flat.numpy()
        slots = batch.segment.shape[1]
        for row in range(len(batch.segment)):
            hidden = drawn[drawn // slots == row] % slots
            visible = np.setdiff1d(np.flatnonzero(batch.maskable[row].numpy()), hidden)
            patches = batch.values["patch"][row].double().numpy().reshape(slots, -1, 3)
            for patch in patches[hidden]:
                if norm:
                    variance = ((patch - patch.mean()) ** 2).sum() / (patch.size - 1)
                    errors.append((((patch - patch.mean()) ** 2) / (variance + 1e-6)).mean())
                else:
                    errors.append(((patch - patches[visible].mean((0, 1))) ** 2).mean())
    assert kind.account["rules"] == {"the mean of the visible pixels": pytest.approx(np.mean(errors), rel=1e-4)}


@pytest.mark.parametrize("target", ["contrast", "views", "latents"])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_loss_of_representations_stands_beside_that_of_one_for_all(tmp_path, target, weight):
    """What a model scores whose projector and patterns are zero: its views are alike, its patches flat."""
    chosen = {"target": target, "pixel_weight": weight, "statistics": 0.0, "jitter": 0.4}
    chosen |= {} if weight or target == "latents" else NO_DECODER
    kind = ImagePretraining(bars(60), settings(patch=2, **chosen))
    kind.prepare(tmp_path, resume=False, first=True, say=lambda line: None)
    job = kind.job(tmp_path, lambda line: None)
    for module in (kind.model.projector, getattr(kind.model.codec, "head", None)):
        for parameter in [] if module is None else module.parameters():
            torch.nn.init.zeros_(parameter)
    kind.model._latents = lambda *_: torch.zeros(())  # what is the same for all pictures is predicted right
    found = validate(kind.model, job.validation, job.validation_corruption)["loss"]
    ((name, loss),) = kind.account["rules"].items()
    assert loss == pytest.approx(found, rel=1e-4)
    assert name.startswith("representations that are all alike")
    assert ("mean" in name) == bool(weight)
    if target == "contrast" and not weight:
        assert loss == pytest.approx(np.log(2 * len(kind.held_out) - 1), rel=1e-6)
