"""Table networks with random weights, as their settings say."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Norm, SinCos
from unmask.modalities.table.distribution.codec import Coding, TableCodec
from unmask.modalities.table.distribution.linear_dims import Dims
from unmask.modalities.table.distribution.mcm import FilterModel
from unmask.modalities.table.distribution.network import RowModel
from unmask.modalities.table.distribution.table_network import TableNetwork, Trunk
from unmask.modalities.table.recipes import TableSettings


def build_network(codings: list[Coding], moments: np.ndarray, settings: TableSettings) -> TableNetwork:
    """A network with random weights made from the seed alone; it has no linear part yet."""
    with seeded(settings.train.seed):
        if settings.network == "cells":
            return _cell_model(codings, settings)
        if settings.network == "filter":
            return FilterModel(codings, settings.width, "l1" if settings.loss == "l1" else "mse")
        trunk = Trunk(len(codings), settings)
        codec = TableCodec(codings, width=settings.cell, state=settings.width, members=settings.members)
        return RowModel(codec, trunk, Dims(codings, moments))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's random numbers from a seed; afterwards they go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _cell_model(codings: list[Coding], settings: TableSettings) -> TableNetwork:
    encoder = EncoderConfig(
        width=settings.width,
        layers=settings.layers,
        feedforward=MLP(inner=4 * settings.width),
        heads=settings.heads,
        norm=Norm(placement="pre", epsilon=1e-5),
        positions=SinCos(),
        dropout=settings.dropout,
    )
    decoder = None
    if settings.architecture == "visible_only":
        decoder = dataclasses.replace(encoder, layers=max(1, settings.layers * 2 // 3))
    codec = TableCodec(codings, width=settings.width, state=settings.width)
    return TableNetwork(codec, make_encoder(encoder), decoder)
