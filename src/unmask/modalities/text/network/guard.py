"""What watches `adapt --for embedding`: a search among held-out texts, before, during and after the training."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from unmask.core.embed import Pooling, embed
from unmask.core.model import MaskedModel
from unmask.core.pooled import PooledReconstruction
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.network.held_out_search import HeldOutSearch, Search, Verdict, gains, ranks, ranks_by_words
from unmask.modalities.text.network.loaded import LoadedText
from unmask.modalities.text.recipes import TextSettings
from unmask.training.precision import computing, resolve_device, resolve_precision

MISSED = "missed"
"""1 - nDCG@10 of the search that weights are chosen by: what a run watches."""

SHARES = (0.75, 0.5, 0.25)
"""Of the way from the start to the trained weights, at which the weights are tried too (Wortsman et al. 2022, 'Robust
fine-tuning of zero-shot models'): what lies between is often better than either end."""


def embedded_slots(folder: TextFolder) -> int:
    """Longest text that the model's vectors are of, in tokens; an adapted one reads as far as its start did."""
    longest = folder.model.encoder.config.longest or 512
    return min(longest, folder.sentences.slots or longest)


class Guard:
    """Judges a model that is trained to make vectors, beside the same model as it was.

    Args:
        folder: the model to be trained; its weights now are the start.
        search: among held-out texts.
        settings: of the training; on the way texts are read as far as it reads them.
    """

    def __init__(self, folder: TextFolder, search: HeldOutSearch, settings: TextSettings) -> None:
        self.folder, self.search, self.slots = folder, search, settings.slots
        self.device = resolve_device(settings.train.device)
        self.precision = resolve_precision(settings.train.precision, self.device).name
        self.start = {name: tensor.detach().cpu().clone() for name, tensor in folder.model.state_dict().items()}
        self.first_ranks: np.ndarray | None = None

    def missed(self, model: Any) -> float:
        """1 - nDCG@10 of the search that weights are chosen by; of the start as its own folder makes vectors."""
        model = model.masked if isinstance(model, PooledReconstruction) else model
        pooling: Pooling = "mean"
        if self.first_ranks is None:
            pooling = cast(Pooling, self.folder.sentences.pooling)
            self.first_ranks = self._ranks(model, self.search.judged, embedded_slots(self.folder), pooling)
        return 1 - float(gains(self._ranks(model, self.search.chosen, self.slots, pooling)).mean())

    def judged(self, model: Any) -> Verdict:
        """Choose a share of the way to the trained weights, put the model there, and judge it; where it is not better,
        the model has the start's weights afterwards."""
        trained = {name: tensor.detach().cpu().clone() for name, tensor in model.masked.state_dict().items()}
        assert self.first_ranks is not None
        share, after = 0.0, self.first_ranks
        if any(not trained[name].equal(tensor) for name, tensor in self.start.items()):
            found = {1.0: self.missed(model)}
            for part in SHARES:
                self._put(model, trained, part)
                found[part] = self.missed(model)
            share = min(found, key=lambda part: (found[part], -part))
            self._put(model, trained, share)
            after = self._ranks(model.masked, self.search.judged, embedded_slots(self.folder), "mean")
        verdict = Verdict(
            share=share,
            before=self.first_ranks,
            after=after,
            by_words=ranks_by_words(self.search.judged, self.search.learnt),
        )
        if not verdict.helped:
            self._put(model, trained, 0.0)
        return verdict

    def _put(self, model: Any, trained: dict[str, Any], share: float) -> None:
        mixed = {
            name: tensor.lerp(trained[name], share) if tensor.is_floating_point() else tensor
            for name, tensor in self.start.items()
        }
        model.masked.load_state_dict(mixed)

    def _ranks(self, model: MaskedModel[Any], search: Search, slots: int, pooling: Pooling) -> np.ndarray:
        loaded = LoadedText(folder=self.folder, device=self.device, precision=self.precision)
        model.to(self.device)
        vectors = []
        with computing(self.precision, self.device):
            for texts in (search.queries, search.documents):
                examples = loaded.examples(texts, max_slots=slots)
                vectors.append(embed(model, examples, slots=slots, pooling=pooling, normalise=True))
        return ranks(vectors[0], vectors[1])
