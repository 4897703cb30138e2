"""What unmask brings under a name, and what installed packages add to it by entry points; imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from unmask.errors import UserError, suggest


@dataclass(frozen=True, kw_only=True)
class Plugins:
    """The things of one sort, by name.

    Args:
        group: of the entry points, such as 'unmask.tasks'.
        noun: what one of them is called in messages.
        built_in: name -> 'package.module:name' of those that unmask brings; they are known without metadata too, so
            that it runs from a source tree.
    """

    group: str
    noun: str
    built_in: Mapping[str, str]

    def names(self) -> list[str]:
        """All names: unmask's own first, then those of other packages, sorted. Nothing is imported."""
        return [*self.built_in, *sorted({point.name for point in self._foreign()})]

    def load(self, name: str) -> Any:
        """What stands under a name.

        Raises:
            UserError: nothing does; its package cannot be imported; two packages announce it.
        """
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        points = [point for point in self._foreign() if point.name == name]
        if not points:
            raise UserError(f"{self.noun} {name!r}", hint=suggest(name, self.names()))
        if len({point.value for point in points}) > 1:
            raise UserError(
                f"{self.noun} {name!r} is announced twice: by {' and '.join(map(_package, points))}",
                hint="Uninstall one of them.",
            )
        try:
            return points[0].load()
        except UserError:
            raise
        except Exception as error:  # importing somebody else's package raises anything
            raise UserError(
                f"{self.noun} {name!r} of {_package(points[0])} cannot be imported: {type(error).__name__}: {error}",
                hint="Mend, update or uninstall that package.",
            ) from error

    def _foreign(self) -> list[EntryPoint]:
        return [point for point in entry_points(group=self.group) if point.name not in self.built_in]


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} ({point.value})" if point.dist else point.value
