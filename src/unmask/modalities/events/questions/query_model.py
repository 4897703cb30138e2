"""A masked event model that answers questions about what is to come, trained on both beside each other."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.model import MaskedModel
from unmask.modalities.events.network.codec import EventCodec, EventPrediction
from unmask.modalities.events.questions.query_batches import history_of
from unmask.modalities.events.questions.query_head import QueryHead, questions_in


class QueryModel(MaskedModel[EventCodec]):
    """`MaskedModel` with a `QueryHead`.

    The loss of a batch is that of its hidden events and, of the questions that lie beside it, `weight` times theirs:
    both sums, so that parts of a batch add up to the whole of it.
    """

    queries: QueryHead
    weight: float

    def forward(
        self, batch: PackedBatch, hidden: Hidden, wanted: Int[Tensor, " wanted"] | None = None
    ) -> EventPrediction:
        prediction: EventPrediction = super().forward(batch, hidden, wanted)  # type: ignore[assignment]
        asked = questions_in(batch)
        if asked is not None:
            prediction.beside = self.weight * self.question_loss(batch, asked).sum()
        return prediction

    def question_loss(self, batch: PackedBatch, asked: dict[str, Tensor]) -> Float[Tensor, "rows asked"]:
        """Nats of each question, weighted; 0 at padding."""
        values, segment, position = history_of(batch)
        rates = self.rates(values, segment, position, asked)
        loss = self.queries.loss(rates.flatten(0, 1), asked["first"].flatten(), asked["end"].flatten())
        return loss.view(asked["first"].shape) * asked["weight"].float() * (asked["segment"] != 0)

    def rates(
        self, values: dict[str, Tensor], segment: Tensor, position: Tensor, asked: dict[str, Tensor]
    ) -> Float[Tensor, "rows asked bins"]:
        """Of questions about histories in which nothing is hidden."""
        nothing = torch.zeros(segment.shape, dtype=torch.bool, device=segment.device)
        states = self.encoder(self.codec.embed(values, nothing), segment=segment, position=position)
        return self.queries(states, segment, asked)
