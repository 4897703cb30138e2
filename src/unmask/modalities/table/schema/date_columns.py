"""Columns of dates: how they are written, and which of them may be none."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import numpy as np

from unmask.modalities.table.reading.dates import Dates, dates_of, odd_days
from unmask.modalities.table.reading.findings import Finding, named
from unmask.modalities.table.reading.parse import days
from unmask.modalities.table.schema.raw_column import RawColumn


def date_fields(c: RawColumn) -> dict[str, Any]:
    """Format and bounds of a column of dates; what is odd about them is said."""
    form = c.given.get("format")
    if form is None:
        found = dates_of(dict(zip(c.values.tolist(), c.counts.tolist(), strict=True)))
        form = found.format if found is not None else "%Y-%m-%d"
        if found is not None:
            _date_problem(c, found)
    numeric, bad = days(c.values, form)
    if bad.any() and "format" in c.given:
        c.error("date", " is not a date", f"The schema says format = {form!r}.", c.values[bad])
    fields: dict[str, Any] = {"format": form}
    if not bad.all():
        good = numeric[~bad]
        _odd_days(c, good, c.counts[~bad], form)
        fields |= {"low": float(good.min()), "high": float(good.max())}
        fields |= {"decimals": 0} if bool((good == np.round(good)).all()) else {}  # dates without times stay so
    return fields


def _date_problem(c: RawColumn, found: Dates) -> None:
    first = c.setting(f'format = "{found.format}"')
    hint = f"Say which: {first}" + "".join(f' or "{f}"' for f in found.others)
    if found.problem == "unclear":
        cell = next((v for v in c.values if v.strip() not in found.bad), c.values[0])
        what = f"column {c.name!r}: dates such as {cell!r} could be day or month first, and no cell says which"
        c.findings.append(Finding("error", c.name, "date_unclear", what, hint))
    if found.problem == "short year":
        what = f"column {c.name!r}: dates such as {c.values[0]!r} have years of two digits"
        add = f"{hint} (69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068), or write the years in full."
        c.findings.append(Finding("error", c.name, "short_year", what, add))
        return
    if found.bad:
        mixed = found.problem == "mixed"
        also = f"; some fit {', '.join(found.others)}: two ways of writing dates are mixed" if mixed else ""
        c.error(
            "date_mixed" if mixed else "date_impossible",
            f" is no date written {found.format}",
            f"Most of {c.name!r} is written {found.format}{also}. Correct the cells, or list a spelling of none "
            "under `missing`.",
            [v for v in c.values if isinstance(v, str) and v.strip() in found.bad],
        )
    elif found.format.startswith(("%d/%m", "%m/%d", "%d-%m", "%m-%d")) and found.problem is None:
        first = "day" if found.format.startswith("%d") else "month"
        order = f"dates are read {first} first ({found.format}), the one order all cells allow"
        c.note("date_format", f"{c.name!r}: {order}")


def _odd_days(c: RawColumn, found: np.ndarray, counts: np.ndarray, form: str) -> None:
    def text(day: float) -> str:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(days=day)).strftime(form or "%Y-%m-%d")

    today = (dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.datetime(1970, 1, 1)).days + 1
    holders, later = odd_days(found, counts.tolist(), float(today))
    if holders:
        times = {text(d): int(counts[found == d].sum()) for d in holders}
        listed = ", ".join(f"{t} ({n} cells)" for t, n in times.items())
        what = f"{c.name!r} holds {listed}: read as dates; often a placeholder for none. If so:"
        c.warn("date_placeholder", what, c.setting(f"missing = {json.dumps(list(times))}"))
    if later:
        listed = named([text(d) for d in later])
        c.warn("date_future", f"{c.name!r} holds {len(later)} dates that are still to come: {listed}")
