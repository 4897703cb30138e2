"""What a network starts from, by its kind: how values are coded for it, and what is fitted before its first step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from unmask.modalities.table.distribution.build import build_network
from unmask.modalities.table.distribution.cells import box_cox
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.fitting.linear_parts import FitRows, Started, fit_linear_parts
from unmask.modalities.table.fitting.margins import scales_of_all_rows
from unmask.modalities.table.recipes import TableSettings


class Start(ABC):
    """What one kind of network starts from."""

    def __init__(self, settings: TableSettings) -> None:
        self.settings = settings

    def coded(
        self, codings: list[Coding], columns: Sequence[np.ndarray], weight: np.ndarray | None = None
    ) -> list[Coding]:
        """The codings of the columns' values, as this kind wants them.

        Args:
            weight: (rows,) of each row, for bootstrap copies.
        """
        return codings

    @abstractmethod
    def network(self, codings: list[Coding], moments: np.ndarray, rows: FitRows) -> Started:
        """A network with random weights, and what is fitted before it.

        Args:
            moments: (columns, 2) mean and deviation of the seen scores.
        """


class LinearStart(Start):
    """From factor analysis and boosted stumps."""

    def coded(
        self, codings: list[Coding], columns: Sequence[np.ndarray], weight: np.ndarray | None = None
    ) -> list[Coding]:
        return scales_of_all_rows(codings, columns, self.settings, weight)

    def network(self, codings: list[Coding], moments: np.ndarray, rows: FitRows) -> Started:
        return fit_linear_parts(codings, moments, rows, self.settings)


class BareStart(Start):
    """From random weights alone."""

    def network(self, codings: list[Coding], moments: np.ndarray, rows: FitRows) -> Started:
        return Started(network=build_network(codings, moments, self.settings), moments=moments)


class FilterStart(BareStart):
    """From random weights, with quantities Box-Cox transformed as MCM does."""

    def coded(
        self, codings: list[Coding], columns: Sequence[np.ndarray], weight: np.ndarray | None = None
    ) -> list[Coding]:
        return [box_cox(c, x) for c, x in zip(codings, columns, strict=True)]


STARTS: dict[str, type[Start]] = {"rows": LinearStart, "cells": BareStart, "filter": FilterStart}
"""By `TableSettings.network`."""
