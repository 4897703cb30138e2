"""Masks of real images: exact and equal counts, aligned with the patches, units and rectangles whole."""

import numpy as np
import pytest
import torch

from unmask.core.corruption import Corruption
from unmask.errors import UserError
from unmask.modalities.images.network.batches import image_batch
from unmask.modalities.images.network.codec import PatchCodecConfig, patchify
from unmask.modalities.images.network.masking import (
    Rectangles,
    hidden_count,
    image_corruption,
    patches_in_mask,
    pixels_in_box,
    pixels_in_mask,
    random_patches,
)


def config(image=(28, 28), patch=4, cls=True):
    return PatchCodecConfig(
        image=image, channels=1, patch=patch, width=16, head_width=16, mean=(0.0,), deviation=(1.0,), class_token=cls
    )


def drawn(c, corruption, n=6, seed=0, epoch=0, block=1):
    batch = image_batch(c, torch.randn(n, 1, *c.image), np.arange(n) + 10, block=block)
    return batch, corruption.draw(batch, seed=seed, epoch=epoch)


@pytest.mark.parametrize("hide", ["patch", "block"])
@pytest.mark.parametrize("ratio", [0.3, 0.6, 0.75])
@pytest.mark.parametrize("image", [(28, 28), (16, 40)])
@pytest.mark.parametrize("cls", [True, False])
def test_every_image_hides_exactly_as_many_patches(hide, ratio, image, cls):
    c = config(image, cls=cls)
    for epoch in range(3):
        batch, hidden = drawn(c, image_corruption(c, hide=hide, ratio=ratio), epoch=epoch)
        grid = hidden.grid(batch.shape)
        assert (grid.sum(1) == hidden_count(c.patches, ratio)).all()
        assert not grid[:, : int(cls)].any()


def test_the_visible_count_is_the_official_one():
    for patches in (16, 49, 64, 196, 256):
        for ratio in (0.4, 0.5, 0.6, 0.75, 0.9):
            assert patches - hidden_count(patches, ratio) == int(patches * (1 - ratio) + 1e-9)


def test_hidden_targets_are_the_patches_of_the_image():
    """Alignment with the class token in front: what is predicted is what was hidden."""
    c = config()
    images = torch.randn(3, 1, 28, 28)
    batch = image_batch(c, images, np.arange(3))
    hidden = image_corruption(c).draw(batch, seed=1)
    patches = patchify(images, 4)
    row, slot = hidden.flat // c.slots, hidden.flat % c.slots
    assert torch.equal(batch.values["patch"].flatten(0, 1)[hidden.flat], patches[row, slot - 1])
    assert torch.equal(batch.position.flatten()[hidden.flat], slot)


def test_units_of_32_pixels_are_hidden_whole():
    c = config((128, 128), 16)
    batch, hidden = drawn(c, image_corruption(c, hide="unit", unit=32, ratio=0.6), block=2)
    grid = hidden.grid(batch.shape)[:, 1:].view(6, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(6, 16, 4)
    assert torch.equal(grid.all(-1), grid.any(-1))
    assert (grid.any(-1).sum(-1) == 10).all()  # ceil(0.6 x 16), as in the official SimMIM
    with pytest.raises(UserError, match="multiple of patch"):
        image_corruption(c, hide="unit", unit=24)
    with pytest.raises(UserError, match="unit=128 leaves one unit"):
        image_corruption(c, hide="unit", unit=128)


def test_rectangles_hang_together():
    c = config((64, 64), 4)
    block, scattered = (
        drawn(c, image_corruption(c, hide=h, ratio=0.4), n=20)[1].grid((20, 257))[:, 1:].view(20, 16, 16)
        for h in ("block", "patch")
    )

    def neighbours(grid):
        return float((grid[:, 1:] & grid[:, :-1]).sum() / grid.sum())

    assert neighbours(block) > 0.75 > 0.5 > neighbours(scattered)


def test_rectangles_hide_every_place_about_equally_often():
    c = config((32, 32), 4)
    select = Corruption(select=Rectangles(ratio=0.4, rows=8, columns=8))
    total = sum(drawn(c, select, n=50, epoch=e)[1].grid((50, 65))[:, 1:].sum(0) for e in range(8))
    assert (total > 0.7 * 0.4 * 400).all()
    assert (total < 1.4 * 0.4 * 400).all()


def test_boxes_and_masks():
    c = config()
    box = patches_in_mask(c, pixels_in_box(c.image, (3, 0, 6, 4), "the picture")).reshape(7, 7)
    assert box[0, :3].all()
    assert box.sum() == 3
    mask = np.zeros((28, 28))
    mask[27, 27] = 1
    assert patches_in_mask(c, mask).nonzero()[0].tolist() == [48]
    assert pixels_in_mask(c, np.eye(7)).sum() == 7 * 16
    for bad in ((0, 0, 0, 3), (20, 0, 10, 3), (-1, 0, 3, 3)):
        with pytest.raises(UserError, match="does not lie within"):
            pixels_in_box(c.image, bad, "the picture")
    with pytest.raises(UserError, match="shape"):
        pixels_in_mask(c, np.ones((5, 5)))


def test_random_patches_are_exact_and_repeatable():
    c = config()
    first = random_patches(c, 5, 0.75, 3)
    assert (first.sum(1) == 37).all()
    assert np.array_equal(first, random_patches(c, 5, 0.75, 3))
    assert not np.array_equal(first, random_patches(c, 5, 0.75, 4))
