"""Law 8 for images: forward and loss equal to transformers' ViTMAE and timm's ViT; three spellings, bit for bit."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from unmask.core.corruption import hide
from unmask.errors import UserError
from unmask.families.vit import canonical, from_published
from unmask.modalities.images.network.batches import image_batch
from unmask.modalities.images.network.build import grid_table
from unmask.modalities.images.network.folder import load_folder, published, save_folder

SHAPE = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 48,
}


@pytest.fixture(params=[True, False], ids=["normalised", "plain"])
def theirs(request, seed):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        **SHAPE, norm_pix_loss=request.param, layer_norm_eps=1e-6, attn_implementation="eager"
    )
    model = transformers.ViTMAEForPreTraining(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    with torch.no_grad():  # current releases fill the position tables wrongly from scratch
        model.vit.embeddings.position_embeddings.copy_(grid_table((4, 4), 24, True)[None])
        model.decoder.decoder_pos_embed.copy_(grid_table((4, 4), 32, True)[None])
    return model


def compare(theirs, model):
    """Their loss and patches, and ours, with the same patches hidden."""
    images, noise = torch.randn(3, 3, 16, 16), torch.rand(3, 16)
    with torch.no_grad():
        found = theirs(images, noise=noise)
    config = model.codec.config
    batch = image_batch(config, images, torch.arange(3).numpy())
    grid = torch.zeros(3, 17, dtype=torch.bool)
    grid[:, 1:] = found.mask.bool()
    with torch.no_grad():
        mine = model(batch, hide(grid.flatten().nonzero().flatten()))
        loss = mine.loss(batch.values["patch"].flatten(0, 1)[grid.flatten()]) / int(grid.sum())
    torch.testing.assert_close(mine.pattern, found.logits[found.mask.bool()], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss, found.loss, atol=1e-4, rtol=1e-4)
    return images


def test_transformers_folder_forward_loss_and_round_trip(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "hf")
    loaded = load_folder(tmp_path / "hf")
    assert loaded.random == []
    assert loaded.ignored == []
    compare(theirs, loaded.model)
    save_folder(tmp_path / "ours", loaded.model)
    again = type(theirs).from_pretrained(tmp_path / "ours", attn_implementation="eager")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert type(theirs).config_class.from_pretrained(tmp_path / "ours").layer_norm_eps == 1e-6


def test_in_memory_names_and_on_disk_names_are_one(theirs, tmp_path):
    memory = theirs.state_dict()
    save_file({k: v.contiguous() for k, v in memory.items()}, tmp_path / "memory.safetensors")
    loaded = load_folder(tmp_path / "memory.safetensors", heads=2, decoder_heads=4, norm_pix=True)
    # The shape of the tensors does not say how the loss is: the folder's config does.
    if theirs.config.norm_pix_loss:
        compare(theirs, loaded.model)
    back = published(loaded.model, "transformers-memory")
    if any(".q_proj." in k for k in memory):
        assert set(back) == set(memory)
        assert all(torch.equal(back[k], memory[k]) for k in memory)
    disk = published(loaded.model, "transformers")
    assert {k: tuple(v.shape) for k, v in canonical(memory).items()} == {k: tuple(v.shape) for k, v in disk.items()}
    # And the spelling transformers 5.23 writes by mistake.
    odd = {k.replace("decoder.decoder_layers.", "decoder.decoder_encoder.layer."): v for k, v in disk.items()}
    state = from_published(odd).state
    assert all(torch.equal(v, state[k]) for k, v in loaded.model.state_dict().items())


def test_official_names_round_trip_bit_for_bit(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    loaded = load_folder(tmp_path)
    official = published(loaded.model, "mae")
    assert {
        "cls_token",
        "pos_embed",
        "mask_token",
        "decoder_pos_embed",
        "blocks.2.attn.qkv.weight",
        "decoder_pred.bias",
    } <= set(official)
    assert official["patch_embed.proj.weight"].shape == (24, 3, 4, 4)
    torch.save({"model": official}, tmp_path / "mae_pretrain.pth")
    again = load_folder(tmp_path / "mae_pretrain.pth", heads=2, decoder_heads=4, norm_pix=True)
    assert again.random == []
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    for name, tensor in published(again.model, "mae").items():
        assert torch.equal(tensor, official[name]), name


def test_a_released_mae_without_decoder_says_what_stayed_random(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    encoder = {
        k: v for k, v in published(load_folder(tmp_path).model, "mae").items() if not k.startswith(("decoder", "mask"))
    }
    torch.save({"model": encoder}, tmp_path / "encoder.pth")
    loaded = load_folder(tmp_path / "encoder.pth", heads=2)
    assert all(n.startswith(("codec.head", "codec.mask")) for n in loaded.random)
    assert loaded.random
    model, pictures = unmask.load(tmp_path / "encoder.pth", heads=2), np.zeros((2, 16, 16, 3), np.uint8)
    assert "loss" not in model.evaluate(pictures)
    for ask in (model.fill, model.score, model.loss):
        with pytest.raises(UserError, match="predicts no pixels: its file holds an encoder alone"):
            ask(pictures)


def test_incomplete_and_foreign_weights_are_named(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    some = next(k for k in weights if "query" in k or "q_proj" in k)
    save_file({k: v for k, v in weights.items() if k != some}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="partners are there"):
        load_folder(tmp_path)
    save_file({"conv1.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="no weights of a vision transformer"):
        load_folder(tmp_path)


def test_the_activation_and_the_processors_standards_are_read(seed, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(**SHAPE, hidden_act="relu", layer_norm_eps=1e-6, attn_implementation="eager")
    theirs = transformers.ViTMAEForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path / "hf")
    transformers.ViTImageProcessor(image_mean=[0.1, 0.2, 0.3], image_std=[0.5] * 3).save_pretrained(tmp_path / "hf")
    loaded = load_folder(tmp_path / "hf")
    compare(theirs, loaded.model)
    assert loaded.model.codec.config.mean == (0.1, 0.2, 0.3)
    assert loaded.model.codec.config.deviation == (0.5,) * 3
    save_folder(tmp_path / "ours", loaded.model, settings={"images": {"ratio": 0.6}})
    saved = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (saved["hidden_act"], saved["mask_ratio"]) == ("relu", 0.6)


@pytest.mark.parametrize("scale", [{}, {"rescale_factor": 1 / 127.5}, {"do_normalize": False}])
def test_pixels_are_scaled_as_the_processor_says(theirs, tmp_path, scale):
    """What the first layer gets: transformers' pixel_values, and ours of the same 8-bit picture."""
    transformers = pytest.importorskip("transformers")
    theirs.save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(do_resize=False, **scale)
    processor.save_pretrained(tmp_path)
    picture = np.arange(24 * 24 * 3, dtype=np.uint8).reshape(24, 24, 3)
    values = processor([picture], return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    codec = load_folder(tmp_path).model.codec.config
    ours = (picture / 255 - np.array(codec.mean)) / np.array(codec.deviation)
    np.testing.assert_allclose(ours, values, rtol=1e-5, atol=1e-4)
    transformers.ViTImageProcessor(do_rescale=False, **scale).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="do_rescale false"):
        load_folder(tmp_path)


@pytest.mark.parametrize("extra", ["blocks.0.ls1.gamma", "blocks.2.attn.q_norm.weight", "vit.encoder.layer.1.lambda1"])
def test_a_layer_that_computes_something_else_is_refused(theirs, tmp_path, extra):
    theirs.save_pretrained(tmp_path)
    spelling = "mae" if extra.startswith("blocks") else "transformers"
    tensors = published(load_folder(tmp_path).model, spelling) | {extra: torch.ones(24)}
    save_file(tensors, tmp_path / "vit.safetensors")
    with pytest.raises(UserError, match=f"tensor {extra} has no place"):
        load_folder(tmp_path / "vit.safetensors", heads=2, decoder_heads=4)


def test_the_position_table_is_the_official_one():
    """Column first, [sin | cos] halves, omega = 10000^(-i / (width / 4)): two entries worked out by hand."""
    table = grid_table((3, 5), 8, True)
    assert table.shape == (16, 8)
    assert torch.equal(table[0], torch.zeros(8))
    row, column = 2, 3
    angles = torch.tensor([column * 1.0, column * 0.01, row * 1.0, row * 0.01])
    expected = torch.cat([angles[:2].sin(), angles[:2].cos(), angles[2:].sin(), angles[2:].cos()])
    torch.testing.assert_close(table[1 + row * 5 + column], expected)


def test_timm_vit_forward_and_strict_loading(tmp_path, seed):
    timm = pytest.importorskip("timm")
    theirs = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=2, mlp_ratio=2, num_classes=0, global_pool="token"
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    save_file(theirs.state_dict(), tmp_path / "vit.safetensors")
    loaded = load_folder(tmp_path / "vit.safetensors", heads=2)
    images = torch.randn(2, 3, 16, 16)
    batch = image_batch(loaded.model.codec.config, images, torch.arange(2).numpy())
    with torch.no_grad():
        torch.testing.assert_close(loaded.model.states(batch), theirs.forward_features(images), atol=1e-4, rtol=1e-4)
    back = published(loaded.model, "timm")
    theirs.load_state_dict(back, strict=True)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, back[name])
    assert not json.loads(json.dumps(loaded.ignored))
