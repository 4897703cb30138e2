"""A fitted table with its schema: what filling, synthesis and evaluation need of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.writing.writers import new_frame, new_table


class FittedTable:
    """A network over coded columns, the schema of the table, and what was learnt of its rows.

    Attributes:
        schema: of all columns, in order.
        table: network, codings and calibration of the modelled ones.
        facts: rows, seconds, steps, held-out losses and notes of the fit.
        like: the kind of table it was fitted to; None for a file.
        extra: further arrays that are saved with the model, by name: patterns of missing cells ("holes"), what few rows
            have ("safety.*"), the outcome of new rows ("outcome.*").
    """

    def __init__(self, schema: Schema, table: CellTable, facts: dict[str, Any]) -> None:
        self.schema, self.table, self.facts = schema, table, facts
        self.like: Frame | None = None
        self.extra: dict[str, np.ndarray] = {}

    def wrap(self, columns: dict[int, list[Any]]) -> Any:
        """New plain values, by column of the schema, as a table of the kind the model was fitted to; texts
        for a file."""
        if self.like is not None and self.like.native is not None:
            return new_table(self.schema, columns, self.like)
        return new_frame(self.schema, columns, self.facts["point"])
