"""Losses between representations, and how to see that representations have collapsed.

Shape letters: n (pictures), views, width (numbers of a representation), directions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

DIRECTIONS = 256
"""Random directions that a step looks along."""
_FURTHEST, _KNOTS = 3.0, 17
"""The characteristic function is compared at so many points between 0 and the furthest one."""


def sigreg(embeddings: Float[Tensor, "n width"], generator: torch.Generator, *, directions: int = DIRECTIONS) -> Tensor:
    """How far embeddings are from a standard normal distribution in all directions: about 1 or less where they follow
    it, of the order of n where they are all alike.

    Along each random direction the Epps-Pulley statistic: n times the squared distance between the embeddings'
    empirical characteristic function and that of the standard normal, weighted by the latter (Balestriero and LeCun
    2025, 'LeJEPA', section 4: sketched isotropic Gaussian regularisation). It is the mean over the directions, and is a
    function of all n embeddings together.

    Args:
        generator: of the directions, on the CPU.
    """
    x = embeddings.float()
    towards = torch.randn(x.shape[1], directions, generator=generator)
    towards = (towards / towards.norm(dim=0)).to(x.device)
    at = torch.linspace(0, _FURTHEST, _KNOTS, device=x.device)
    normal = (-at.square() / 2).exp()
    # The trapezoidal rule over both halves of the line, which are alike.
    step = torch.full_like(at, 2 * _FURTHEST / (_KNOTS - 1))
    step[0] = step[-1] = _FURTHEST / (_KNOTS - 1)
    angle = (x @ towards)[..., None] * at
    apart = (angle.cos().mean(0) - normal).square() + angle.sin().mean(0).square()
    return (apart @ (step * normal)).mean() * len(x)


def agreement(embeddings: Float[Tensor, "n views width"]) -> Tensor:
    """Mean squared distance of a picture's views from their mean: each view predicts that mean (LeJEPA, section 5)."""
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


def effective_rank(vectors: Float[np.ndarray, "n width"]) -> float:
    """How many directions the vectors spread over: the exponential of the entropy of their variances' shares along the
    principal axes (Roy and Vetterli 2007); 0 where all vectors are equal."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    variance = np.linalg.svd(centred, compute_uv=False) ** 2
    total = float(variance.sum())
    if total <= 1e-20 * max(float((vectors.astype(np.float64) ** 2).sum()), 1e-300):
        return 0.0
    share = variance[variance > 0] / total
    return math.exp(-float((share * np.log(share)).sum()))


def relative_spread(vectors: Float[np.ndarray, "n width"]) -> float:
    """How much vectors differ from each other: their deviation over their root mean square; 0 where they are equal, 1
    where their mean is 0."""
    wide = vectors.astype(np.float64)
    return float(np.sqrt(wide.var(0).sum() / max(float((wide**2).sum(1).mean()), 1e-300)))
