"""Learning by representations instead of pixels: of other views of a picture, and of its hidden part.

Every view is encoded from its visible patches alone, as in the visible-only architecture, so views are cheap and what
is hidden of one cannot reach its representation. What only training needs (projector, predictor) is thrown away: the
model that is saved is the encoder, with its decoder where pixels are predicted too.

Shape letters: rows (pictures), views, slots (of a view), width, pictures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.hashing import Salt, hash_keys
from unmask.core.model import MaskedEncoder, MaskedModel
from unmask.core.prediction import Prediction
from unmask.encoder.config import EncoderConfig
from unmask.errors import UserError, option, setting
from unmask.kernels.on_host import on_host, to_device
from unmask.modalities.images.network.codec import PatchCodec
from unmask.modalities.images.recipes import ImageSettings


class EncoderOnly(MaskedModel[PatchCodec]):
    """An encoder of pictures that was trained without a decoder: it embeds, and predicts no pixels."""

    @property
    def drops_missing(self) -> bool:
        """Missing patches do not reach the encoder, as in its training."""
        return self.codec.drops_missing

    def forward(self, batch: PackedBatch, hidden: Hidden, wanted: Tensor | None = None) -> Prediction:
        """Refused."""
        raise no_pixels()


def no_pixels(why: str = "it was trained on representations alone") -> UserError:
    """The error where pixels are requested of a model that predicts none."""
    return UserError(
        f"the model predicts no pixels: {why}",
        hint="It embeds, evaluates and is fine-tuned. To fill, score and reconstruct, pretrain with "
        f"{setting('pixel_weight', 1)}, or with {option('recipe', 'mae')} or {option('recipe', 'simmim')}.",
    )


class LatentLearner(MaskedModel[PatchCodec]):
    """A masked image model while it learns from representations; `step_loss` is what a step trains on.

    Rows of its batches hold all views of a picture, one segment each. Of the settings it reads what is learnt from:
    `target`, `shown_views`, `pixel_weight`, and those of the projector and of the losses.
    """

    def __init__(
        self, codec: PatchCodec, encoder: MaskedEncoder, decoder: EncoderConfig | None, settings: ImageSettings
    ) -> None:
        super().__init__(codec, encoder, decoder, bridge=False)
        self.settings = settings
        width, inner = encoder.config.width, settings.projector
        self.projector = nn.Sequential(
            nn.Linear(width, inner),
            nn.LayerNorm(inner),
            nn.GELU(),
            nn.Linear(inner, inner),
            nn.LayerNorm(inner),
            nn.GELU(),
            nn.Linear(inner, settings.projection),
        )
        if settings.target == "latents":
            assert decoder is not None
            self.predictor_out = nn.Linear(decoder.width, width)

    @property
    def drops_missing(self) -> bool:
        """Missing patches do not reach the encoder."""
        return self.codec.drops_missing

    def step_loss(self, batch: PackedBatch, hidden: Hidden) -> Tensor:
        """The loss of a whole batch, times its hidden slots (their weights): the loop divides by these.

        The comparison with other pictures makes it a function of the batch as a whole, so a step is never taken in
        micro-batches (`Job.whole_batch`).
        """
        batch = one_view_per_row(batch, self.settings.shown_views)
        visible = self._visible(batch, hidden)
        states, kept = self._encoded(batch, visible)
        seen = states.flatten(0, 1).index_select(0, to_device(kept, states.device))
        visible = to_device(visible, seen.device)
        pooled = self._pooled(batch, visible, seen)
        loss = self._compared(batch, pooled)
        decoded = self._decoded(batch, visible, seen, hidden) if self.visible_only else None
        if self.settings.target == "latents":
            assert decoded is not None
            loss = loss + self._latents(batch, hidden, decoded)
        loss = loss * hidden.total_weight
        if self.settings.pixel_weight:
            assert decoded is not None
            prediction = self.codec.predict(decoded)
            loss = loss + self.settings.pixel_weight * prediction.loss(self.codec.targets(batch.values, hidden.flat))
        return loss

    def loss_if_alike(self, batch: PackedBatch) -> float:
        """What comparing the views of a batch would cost if all of them had one representation."""
        settings = self.settings
        pictures = int((on_host(batch.segment)[:, 0] != 0).sum())
        if pictures < 2:
            return 0.0
        return float(self._loss_between(batch, torch.zeros(pictures, settings.shown_views, settings.projection)))

    def _visible(self, batch: PackedBatch, hidden: Hidden) -> Tensor:
        """Flat slots of what the encoder sees, on the host."""
        there = (on_host(batch.segment) != 0) & on_host(batch.observed)
        return there.flatten().index_fill(0, on_host(hidden.flat), False).nonzero().flatten()

    def _pooled(self, batch: PackedBatch, visible: Tensor, seen: Tensor) -> Float[Tensor, "pictures views width"]:
        """Mean of each view's visible patches; of a view without one, of its class token."""
        row, special = visible // batch.shape[1], batch.special.flatten()[visible]
        patches = torch.zeros(len(batch.segment), device=seen.device).index_add_(0, row, (~special).float())
        counted = ((~special) | (patches[row] == 0)).to(torch.float32)
        size = torch.zeros_like(patches).index_add_(0, row, counted)
        total = torch.zeros(len(patches), seen.shape[1], device=seen.device)
        total = total.index_add_(0, row, seen.float() * counted[:, None])
        pooled = (total / size.clamp_min(1)[:, None]).view(-1, self.settings.shown_views, seen.shape[1])
        real = on_host(batch.segment)[:: self.settings.shown_views, 0] != 0
        return pooled if bool(real.all()) else pooled[to_device(real.nonzero().flatten(), pooled.device)]

    def _compared(self, batch: PackedBatch, pooled: Float[Tensor, "pictures views width"]) -> Tensor:
        """Views compared in the projector's space, and kept from being all alike."""
        z = self.projector(pooled).float()
        if len(z) < 2:
            return z.sum() * 0.0  # there is nothing to compare one picture with
        with torch.autocast(z.device.type, enabled=False):  # bf16 has three digits: too few to tell pictures apart
            return self._loss_between(batch, z)

    def _loss_between(self, batch: PackedBatch, z: Float[Tensor, "pictures views width"]) -> Tensor:
        settings = self.settings
        if settings.target == "contrast":
            return nt_xent(z, settings.temperature)
        towards = self._directions(batch)
        spread = torch.stack([sigreg(z[:, v], towards) for v in range(settings.shown_views)]).mean()
        if settings.target == "latents":
            return settings.regulariser * spread
        return (1 - settings.regulariser) * invariance_loss(z) + settings.regulariser * spread

    def _directions(self, batch: PackedBatch) -> torch.Generator:
        """Random directions, a pure function of the batch's first and last picture and its size, so that a resumed run
        draws the same."""
        who = on_host(batch.identity)[:, 0].numpy()
        first, last = int(who[0]), int(who[-1])
        key = int(hash_keys(first, last, len(who), Salt.DIRECTIONS) >> 1)
        return torch.Generator().manual_seed(key)

    def _decoded(self, batch: PackedBatch, visible: Tensor, seen: Tensor, hidden: Hidden) -> Tensor:
        """States of the hidden slots, from the visible ones and the positions alone."""
        rows, slots = batch.shape
        inside = self.decoder_in(seen)
        full = self.decoder_mask.to(inside.dtype).expand(rows * slots, -1).index_put((visible,), inside)
        decoded = self.decoder(
            full.view(rows, slots, -1), segment=batch.segment, position=batch.position, wanted=hidden.flat
        )
        return decoded[: len(hidden)]

    def _latents(self, batch: PackedBatch, hidden: Hidden, decoded: Tensor) -> Tensor:
        """Mean squared error of predicted representations of hidden patches: of what the encoder itself makes of them
        in the whole view, normalised, without a gradient."""
        with torch.no_grad():
            whole = self.states(batch).flatten(0, 1).index_select(0, hidden.flat).float()
            target = nn.functional.layer_norm(whole, whole.shape[-1:])
        return (self.predictor_out(decoded).float() - target).square().mean()


def one_view_per_row(batch: PackedBatch, views: int) -> PackedBatch:
    """A batch whose rows hold `views` pictures side by side, with a row for each; flat slot numbers stay."""
    return batch if views == 1 else _reshaped(batch, len(batch.segment) * views, batch.shape[1] // views)


def views_together(batch: PackedBatch, views: int) -> PackedBatch:
    """`views` consecutive rows side by side, as segments 1 to `views`."""
    if views == 1:
        return batch
    rows, slots = len(batch.segment) // views, batch.shape[1] * views
    out = _reshaped(batch, rows, slots)
    number = torch.arange(1, views + 1).repeat_interleave(batch.shape[1])
    return replace(out, segment=out.segment * number)


def _reshaped(batch: PackedBatch, rows: int, slots: int) -> PackedBatch:
    def shaped(x: Tensor) -> Tensor:
        return x.reshape(rows, slots, *x.shape[2:])

    names = ("segment", "position", "observed", "special", "unit", "identity", "index")
    parts: dict[str, Any] = {name: shaped(getattr(batch, name)) for name in names}
    return PackedBatch(values={k: shaped(v) for k, v in batch.values.items()}, **parts)


DIRECTIONS = 256
"""Random directions that a step looks along."""
_FURTHEST, _KNOTS = 3.0, 17
"""The characteristic function is compared at so many points between 0 and the furthest one."""


def sigreg(embeddings: Float[Tensor, "n width"], generator: torch.Generator) -> Tensor:
    """How far embeddings are from a standard normal distribution in all directions: about 1 or less where they follow
    it, of the order of n where they are all alike.

    Along each random direction the Epps-Pulley statistic: n times the squared distance between the embeddings'
    empirical characteristic function and that of the standard normal, weighted by the latter (Balestriero and LeCun
    2025, 'LeJEPA', section 4: sketched isotropic Gaussian regularisation). It is the mean over the directions, and is a
    function of all n embeddings together. `generator`: of the directions, on the CPU."""
    x = embeddings.float()
    towards = torch.randn(x.shape[1], DIRECTIONS, generator=generator)
    towards = (towards / towards.norm(dim=0)).to(x.device)
    at = torch.linspace(0, _FURTHEST, _KNOTS, device=x.device)
    normal = (-at.square() / 2).exp()
    # The trapezoidal rule over both halves of the line, which are alike.
    step = torch.full_like(at, 2 * _FURTHEST / (_KNOTS - 1))
    step[0] = step[-1] = _FURTHEST / (_KNOTS - 1)
    angle = (x @ towards)[..., None] * at
    distance = (angle.cos().mean(0) - normal).square() + angle.sin().mean(0).square()
    return (distance @ (step * normal)).mean() * len(x)


def invariance_loss(embeddings: Float[Tensor, "n views width"]) -> Tensor:
    """Mean squared distance of a picture's views from their mean (the prediction loss of LeJEPA, section 5)."""
    x = embeddings.float()
    return (x - x.mean(1, keepdim=True)).square().mean()


def nt_xent(embeddings: Float[Tensor, "n views width"], temperature: float) -> Tensor:
    """Cross-entropy of telling another view of the same picture from all views of all other pictures of the batch, by
    cosine over `temperature`; the mean over all ordered pairs of views of one picture.

    Chen et al. 2020, 'SimCLR', equation 1, and for more than two views each pair by itself, the others of the same
    picture left out.
    """
    n, views, width = embeddings.shape
    x = torch.nn.functional.normalize(embeddings.float(), dim=-1).reshape(n * views, width)
    alike = x @ x.t() / temperature
    picture = torch.arange(n, device=x.device).repeat_interleave(views)
    same = picture[:, None] == picture[None]
    others = alike.masked_fill(same, -torch.inf).logsumexp(1, keepdim=True)
    itself = torch.eye(n * views, dtype=torch.bool, device=x.device)
    positive = alike[same & ~itself].view(n * views, views - 1)
    return (torch.logaddexp(others, positive) - positive).mean()
