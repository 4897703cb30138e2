"""Columns of dates: how they are written, and which of them may be none."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import numpy as np

from unmask.modalities.table.reading.dates import Dates, dates_of, odd_days
from unmask.modalities.table.reading.findings import Finding, named, setting
from unmask.modalities.table.reading.parse import days
from unmask.modalities.table.schema.number_columns import Cells


def date_fields(cells: Cells) -> dict[str, Any]:
    """Format and bounds of a column of dates; what is odd about them is said."""
    form = cells.given.get("format")
    if form is None:
        found = dates_of(dict(zip(cells.values.tolist(), cells.counts.tolist(), strict=True)))
        form = found.format if found is not None else "%Y-%m-%d"
        if found is not None:
            _date_problem(cells, found)
    numeric, bad = days(cells.values, form)
    if bad.any() and "format" in cells.given:
        cells.error("date", " is not a date", f"The schema says format = {form!r}.", cells.values[bad])
    fields: dict[str, Any] = {"format": form}
    if not bad.all():
        good = numeric[~bad]
        today = (dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.datetime(1970, 1, 1)).days + 1
        _odd_days(cells, good, cells.counts[~bad], float(today), form)
        fields |= {"low": float(good.min()), "high": float(good.max())}
        fields |= {"decimals": 0} if bool((good == np.round(good)).all()) else {}  # dates without times stay so
    return fields


def _date_problem(cells: Cells, found: Dates) -> None:
    first = setting(cells.name, f'format = "{found.format}"')
    hint = f"Say which: {first}" + "".join(f' or "{f}"' for f in found.others)
    if found.problem == "unclear":
        cell = next((v for v in cells.values if v.strip() not in found.bad), cells.values[0])
        cells.findings.append(
            Finding(
                severity="error",
                column=cells.name,
                code="date_unclear",
                text=f"column {cells.name!r}: dates such as {cell!r} could be day or month first, and no cell says "
                "which",
                add=hint,
            )
        )
    if found.problem == "short year":
        cells.findings.append(
            Finding(
                severity="error",
                column=cells.name,
                code="short_year",
                text=f"column {cells.name!r}: dates such as {cells.values[0]!r} have years of two digits",
                add=f"{hint} (69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068), or write the years in full.",
            )
        )
        return
    if found.bad:
        wrong = [v for v in cells.values if isinstance(v, str) and v.strip() in found.bad]
        also = (
            f"; some fit {', '.join(found.others)}: two ways of writing dates are mixed"
            if found.problem == "mixed"
            else ""
        )
        cells.error(
            "date_mixed" if found.problem == "mixed" else "date_impossible",
            f" is no date written {found.format}",
            f"Most of {cells.name!r} is written {found.format}{also}. Correct the cells, or list a spelling of none "
            f"under `missing`.",
            wrong,
        )
    elif found.format.startswith(("%d/%m", "%m/%d", "%d-%m", "%m-%d")) and found.problem is None:
        first = "day" if found.format.startswith("%d") else "month"
        cells.note(
            "date_format",
            f"{cells.name!r}: dates are read {first} first ({found.format}), the one order all cells allow",
        )


def _odd_days(cells: Cells, found: np.ndarray, counts: np.ndarray, today: float, form: str) -> None:
    def text(day: float) -> str:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(days=day)).strftime(form or "%Y-%m-%d")

    holders, later = odd_days(found, counts.tolist(), today)
    if holders:
        times = {text(d): int(counts[found == d].sum()) for d in holders}
        listed = ", ".join(f"{t} ({n} cells)" for t, n in times.items())
        cells.warn(
            "date_placeholder",
            f"{cells.name!r} holds {listed}: read as dates; often a placeholder for none. If so:",
            setting(cells.name, f"missing = {json.dumps(list(times))}"),
        )
    if later:
        cells.warn(
            "date_future",
            f"{cells.name!r} holds {len(later)} dates that are still to come: {named([text(d) for d in later])}",
            "",
        )
