"""Text codec: what a hidden token still shows, and what noise may be."""

import numpy as np
import torch

from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.core.model import corrupt
from unmask.core.token_codec import TokenCodec, TokenCodecConfig


def test_a_hidden_token_keeps_its_sentence_and_nothing_else():
    codec = TokenCodec(
        TokenCodecConfig(vocabulary=20, width=8, encoder_width=8, mask_id=4, special_ids=(0, 4), types=2)
    )
    batch = pack(
        [Example(values={"token": np.array([5, 6, 7, 8]), "type": np.array([0, 0, 1, 1])}, identity=0)], slots=4
    )
    hidden = hide(torch.tensor([1, 2]))
    values = corrupt(codec, batch.values, hidden)
    assert values["token"].tolist() == [[5, 0, 0, 8]]
    assert values["type"].tolist() == [[0, 0, 1, 1]]
    masked = torch.tensor([[False, True, True, False]])
    x = codec.embed(values, masked)[0]
    torch.testing.assert_close(x[2], codec.word.weight[4] + codec.token_type.weight[1])
    torch.testing.assert_close(x[1], codec.word.weight[4] + codec.token_type.weight[0])
