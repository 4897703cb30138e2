"""The patch codec: exact inverses, the official loss, pixels in their own units."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.modalities.images.network.codec import (
    PatchCodec,
    PatchCodecConfig,
    PatchPrediction,
    fitting_patches,
    patchify,
    unpatchify,
)

sides = st.integers(1, 5)


def config(**changes):
    base = {
        "image": (8, 12),
        "channels": 3,
        "patch": 4,
        "width": 16,
        "head_width": 16,
        "mean": (0.5,) * 3,
        "deviation": (0.2, 0.3, 0.4),
    }
    return PatchCodecConfig(**(base | changes))


@settings(max_examples=40, deadline=None)
@given(sides, sides, sides, sides, st.integers(1, 3))
def test_patchify_and_unpatchify_are_exact_inverses(rows, columns, patch, channels, n):
    images = torch.arange(n * channels * rows * columns * patch * patch).view(
        n, channels, rows * patch, columns * patch
    )
    patches = patchify(images.float(), patch)
    assert patches.shape == (n, rows * columns, patch * patch * channels)
    assert torch.equal(unpatchify(patches, patch, (rows, columns)), images.float())
    # And each patch is the square it should be, channel last.
    row, column = rows - 1, columns - 1
    square = images[0, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
    assert torch.equal(patches[0, -1], square.permute(1, 2, 0).flatten().float())


def test_loss_is_the_official_one_with_the_sample_variance(seed):
    """He et al. 2022: (patch - mean) / sqrt(var + 1e-6) with the n - 1 variance, mean over a patch, then
    over patches."""
    target, predicted = torch.randn(7, 48) * 3 + 1, torch.randn(7, 48)
    loss = PatchPrediction(predicted, None, config()).loss(target) / 7
    mean = target.mean(-1, keepdim=True)
    sample = ((target - mean) ** 2).sum(-1, keepdim=True) / 47
    expected = ((predicted - (target - mean) / (sample + 1e-6).sqrt()) ** 2).mean(-1).mean()
    torch.testing.assert_close(loss, expected)
    population = sample * 47 / 48
    other = ((predicted - (target - mean) / (population + 1e-6).sqrt()) ** 2).mean()
    assert abs(float(loss - other)) > 1e-3


def test_l1_of_raw_pixels_is_simmims(seed):
    target, predicted = torch.randn(5, 48), torch.randn(5, 48)
    loss = PatchPrediction(predicted, None, config(normalised=False, loss="l1")).loss(target) / 5
    torch.testing.assert_close(loss, (target - predicted).abs().sum() / (5 * 16) / 3)


def test_predicted_statistics_bring_the_pattern_back_to_pixels(seed):
    target = torch.randn(4, 48) * 2 + 3
    mean, deviation = target.mean(-1, keepdim=True), target.std(-1, keepdim=True)
    found = PatchPrediction((target - mean) / deviation, torch.cat([mean, deviation], -1), config(statistics=0.1))
    torch.testing.assert_close(found.mode(), target)
    assert float(found.loss(target)) < 1e-6
    flat = PatchPrediction(torch.zeros(1, 48), torch.tensor([[0.0, 0.01]]), config(statistics=0.1))
    assert float(flat.confidence()) > float(found.confidence().max())


def test_pixels_come_back(seed):
    codec = PatchCodec(config())
    pixels = torch.rand(2, 3, 8, 12)
    torch.testing.assert_close(codec.to_pixels((pixels - codec.mean) / codec.deviation), pixels)


def test_a_patch_that_does_not_divide_says_which_would():
    with pytest.raises(UserError, match=r"patch=5 does not divide pictures of 12 x 8") as error:
        config(patch=5)
    assert "[1, 2, 4]" in str(error.value)
    assert fitting_patches(28, 28) == [1, 2, 4, 7, 14]


def test_noise_is_a_function_of_the_bits(seed):
    codec = PatchCodec(config())
    values = {"patch": torch.zeros(1, 6, 48)}
    bits = torch.tensor([3, 3, 5])
    noise = codec.noise(values, torch.arange(3), bits)["patch"]
    assert torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[2])
    many = codec.noise(values, torch.arange(3), torch.arange(400))["patch"]
    assert abs(float(many.mean())) < 0.03
    assert abs(float(many.std()) - 1) < 0.03
    assert np.isfinite(many.numpy()).all()
