"""How a person says that the cells of tables are meant; what is not said is not guessed."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.modalities.events.sources.times import Order


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was said of the cells.

    Attributes:
        order: how dates such as 01/02/2020 are meant; None asks.
        static: rows of a plain table without a time are facts, deaths and codes that have a time elsewhere too.
    """

    order: Order | None = None
    static: bool = False
