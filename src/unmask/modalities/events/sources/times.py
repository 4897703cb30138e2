"""Texts and typed columns -> times. A date without a time of day stands at the end of its day: it was not known
earlier.

Times with a zone become UTC; times without one stay as they are. A date whose order of day and month is open
(01/02/2020) is never guessed.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import MAXYEAR, UTC, date, datetime, timedelta
from typing import Any, Literal

import polars as pl

from unmask.errors import UserError, option

Order = Literal["month-first", "day-first"]
ORDERS: tuple[Order, ...] = ("month-first", "day-first")
END_OF_DAY = timedelta(hours=23, minutes=59, seconds=59)
LAST_ZONE = timedelta(hours=12)
"""How long after UTC's midnight a day ends at the latest (UTC-12). Dates in FHIR have no zone, and times there have
one."""
OPEN = r"^(\d{1,2})[/.-](\d{1,2})[/.-](\d{4})(?:[ T]+(.+))?$"
"""A date that begins with the day or the month."""
COMPACT = r"^((?:1[89]|2\d)\d{2})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?:\.0)?$"
NAMED_MONTH = r"(?i)^(\d{1,2})[- ]([a-z]{3})[- ](\d{4})(?:[ T]+(\d{1,2}:.+))?$"
_YEAR = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
MONTHS = {name: f"{number:02d}" for number, name in enumerate(_YEAR, 1)}
UNCLEAR = r"(?i)^-?\d+(?:[.,]\d*)?(?:e\+?\d+)?$|^\d{1,2}[-/ .](?:[a-z]{3,}|\d{1,2})[-/ .]\d{2}(?:[ T]|$)"
"""Numbers, which may be seconds or days since any day, and dates whose years have two digits."""
YEAR_FIRST = r"^\d{4}-\d{1,2}-\d{1,2}(?: \d{1,2}(?::\d{1,2}){1,2}(?:\.\d+)?)?$"
"""The form that is read, whatever its numbers."""
MANY = 0.01
"""Share of open dates among the times of a chunk from which on the order is asked about; fewer are rejected and
counted."""
_ZONE = r"(?: ?(?:Z|UTC|GMT)| ?[+-]\d{2}(?::?\d{2})?)$"


NONE_YEARS = (1, 2999)
"""Years up to and from which a date stands for none: 0001-01-01, 9999-12-31. MIMIC-IV's go up to the 2210s."""
NONE_DAYS = (date(1900, 1, 1), date(1899, 12, 30), date(1899, 12, 31))
"""Days that spreadsheets and data bases write where there is none; births there are named, for people were born then.
"""
DOUBTFUL_DAYS = (date(2099, 12, 31), date(2100, 1, 1), date(2100, 12, 31))
"""Days that are written for "no end" and that patients whose dates were moved may have: events there are
kept and named.
"""


def may_mean_none(time: pl.Expr, birth: pl.Expr) -> pl.Expr:
    """Whether a time that is kept is one that programs write for none: births of `NONE_DAYS`, others of
    `DOUBTFUL_DAYS`."""
    day = time.dt.date()
    return pl.when(birth).then(day.is_in(list(NONE_DAYS))).otherwise(day.is_in(list(DOUBTFUL_DAYS)))


def means_none(time: pl.Expr, birth: pl.Expr) -> pl.Expr:
    """Whether a time is one that programs write for none."""
    first, last = NONE_YEARS
    year = time.dt.year()
    return (year <= first) | (year >= last) | (time.dt.date().is_in(list(NONE_DAYS)) & ~birth)


def is_none_day(time: datetime) -> bool:
    """As `means_none`, of one event that is no birth."""
    first, last = NONE_YEARS
    return not first < time.year < last or time.date() in NONE_DAYS


def read_times(
    when: pl.Series,
    where: str,
    *,
    first: int = 0,
    order: Order | None = None,
    midnight: bool = False,
    start: bool = False,
) -> pl.DataFrame:
    """Columns time (without a zone; null where empty or not readable), given, dated (whether it was a date alone) and
    zone (whether it had one; null without a time of day), of the column `where`, `first` rows of the file before it.

    `order` says how dates such as 01/02/2020 are meant; None asks. With `midnight` a time of 00:00:00 is a date alone
    (as the OMOP CDM says of its *_datetime columns). With `start` dates alone stand at the start of their day (births).
    """
    if when.dtype.is_integer():  # 20180803, as data bases without dates write it; anything else is no date
        written = when.cast(pl.String)
        if when.null_count() == len(when) or written.str.contains(COMPACT).mean() == 1:
            when = written
    if when.dtype.is_numeric():
        raise UserError(
            f"{where}: times are numbers, such as {when.drop_nulls().head(1).to_list()}",
            hint="Give dates, timestamps, or texts such as 2020-01-31 08:30:00.",
        )
    if isinstance(when.dtype, pl.Date | pl.Datetime):
        dates, zoned = when.dtype == pl.Date, bool(getattr(when.dtype, "time_zone", None))
        if zoned:
            when = when.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        read = pl.DataFrame({"time": when.cast(pl.Datetime("us")), "given": when.is_not_null()})
        read = read.with_columns(dated=pl.lit(dates), zone=pl.when("given").then(pl.lit(zoned)))
    else:
        read = _of_text(when.cast(pl.String), where, first, order)
    if midnight:
        read = read.with_columns(pl.col("dated") | (pl.col("time") == pl.col("time").dt.truncate("1d")))
    dated = pl.col("dated").fill_null(False) & pl.col("time").is_not_null()
    moved = pl.when(dated & (not start)).then(pl.col("time").dt.truncate("1d") + END_OF_DAY).otherwise(pl.col("time"))
    return read.select(
        moved.alias("time"), "given", (dated & (not start)).alias("dated"), pl.when(~dated).then("zone").alias("zone")
    )


def _of_text(when: pl.Series, where: str, first: int, order: Order | None) -> pl.DataFrame:
    trimmed = pl.col("text").str.strip_chars()
    frame = when.rename("text").to_frame().select(pl.when(trimmed != "").then(trimmed).alias("text"))
    usual = frame["text"].str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us")
    if usual.null_count() == frame["text"].null_count():
        read = pl.DataFrame({"time": usual, "given": frame["text"].is_not_null()})
        return read.with_columns(dated=pl.lit(False), zone=pl.when("given").then(pl.lit(False)))
    frame = frame.with_columns(pl.col("text").str.contains(OPEN).fill_null(False).alias("open"))
    if frame["open"].any():
        frame = _ordered(frame, where, order)
    frame = _rewritten(frame)
    # One shape: 2020-01-31 or 2020-01-31 08:30[:00[.000]], the zone apart.
    timed = pl.col("text").str.contains(":", literal=True)
    zone = pl.when(timed).then(pl.col("text").str.extract(f"({_ZONE})"))
    body = pl.when(timed).then(pl.col("text").str.replace(_ZONE, "")).otherwise(pl.col("text"))
    body = body.str.replace(r"^(\d{4})/(\d{1,2})/", "${1}-${2}-").str.replace("T", " ", literal=True)
    frame = frame.with_columns(body.alias("body"), zone.str.strip_chars().alias("zone"))
    seconds = pl.col("body").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us")
    minutes = pl.col("body").str.to_datetime("%Y-%m-%d %H:%M", strict=False, time_unit="us")
    days = pl.col("body").str.to_date("%Y-%m-%d", strict=False)
    frame = frame.with_columns(seconds.alias("time"))
    if frame.select((pl.col("time").is_null() & pl.col("text").is_not_null()).any()).item():
        frame = frame.with_columns(days.alias("day")).with_columns(
            pl.coalesce("time", minutes, pl.col("day").cast(pl.Datetime("us"))).alias("time")
        )
    else:
        frame = frame.with_columns(pl.lit(None, dtype=pl.Date).alias("day"))
    unread = frame["time"].is_null()
    unclear = frame["text"].str.contains(UNCLEAR)
    if unread.all():  # then a figure is enough, but for days and hours that there are not
        unclear = frame["text"].str.contains(r"\d") & ~frame["body"].str.contains(YEAR_FIRST)
    unclear = unread & unclear.fill_null(False)
    if unclear.any() and unclear.sum() >= MANY * (len(frame) - frame["text"].null_count()):
        row = int(unclear.arg_max() or 0)
        raise UserError(
            f"{where}, row {first + row + 1}: {frame['text'][row]!r} is no date that can be told "
            f"({int(unclear.sum()):,} such times)",
            hint="Expected 2020-01-31, 20200131 or 31-JAN-2020, with a time of day or without: numbers may be counts "
            "from any day and in any unit, and years of two digits of any century.",
        )
    if frame["zone"].null_count() < len(frame):
        sign = pl.when(pl.col("zone").str.starts_with("-")).then(-1).otherwise(1)
        hours = pl.col("zone").str.extract(r"^[+-](\d{2})").cast(pl.Int64)
        rest = pl.col("zone").str.extract(r"^[+-]\d{2}:?(\d{2})$").cast(pl.Int64)
        offset = pl.duration(minutes=sign * (60 * hours.fill_null(0) + rest.fill_null(0)))
        frame = frame.with_columns(
            pl.col("time") - pl.when(pl.col("zone").is_not_null()).then(offset).otherwise(pl.duration())
        )
    return frame.select(
        "time",
        pl.col("text").is_not_null().alias("given"),
        pl.col("day").is_not_null().alias("dated"),
        pl.when(pl.col("time").is_not_null() & pl.col("day").is_null())
        .then(pl.col("zone").is_not_null())
        .alias("zone"),
    )


def _rewritten(frame: pl.DataFrame) -> pl.DataFrame:
    """20200131 and 31-JAN-2020 rewritten year first; what follows them stays."""
    texts = pl.col("text")
    if frame.select(texts.str.contains(COMPACT).any()).item():
        frame = frame.with_columns(texts.str.replace(COMPACT, "${1}-${2}-${3}"))
    if frame.select(texts.str.contains(NAMED_MONTH).any()).item():
        month = texts.str.extract(NAMED_MONTH, 2).str.to_uppercase().replace_strict(MONTHS, default=None)
        day, year, rest = (texts.str.extract(NAMED_MONTH, i) for i in (1, 3, 4))
        rest = pl.when(rest.is_not_null()).then(pl.lit(" ") + rest).otherwise(pl.lit(""))
        frame = frame.with_columns(
            pl.coalesce(pl.format("{}-{}-{}{}", year, month, day.str.zfill(2), rest), "text").alias("text")
        )
    return frame


def _ordered(frame: pl.DataFrame, where: str, order: Order | None) -> pl.DataFrame:
    """Dates that begin with the day or the month, rewritten year first where the order is known."""
    if order is None:
        given = frame["text"].drop_nulls()
        if frame["open"].sum() >= MANY * len(given):
            shown = frame.filter("open")["text"][0]
            raise UserError(
                f"{where}: {shown!r} may be month first or day first",
                hint=f"Say {option('dates', 'month-first')} or {option('dates', 'day-first')}.",
            )
        return frame  # a few among many: they are not read, and counted
    first, second = (pl.col("text").str.extract(OPEN, i).str.zfill(2) for i in (1, 2))
    month, day = (first, second) if order == "month-first" else (second, first)
    numbers = frame.filter("open").select("text", m=month.cast(pl.Int64), d=day.cast(pl.Int64))
    wrong = numbers.filter((pl.col("m") > 12) & (pl.col("d") <= 12))
    if len(wrong) and len(wrong) >= MANY * len(numbers):
        other = next(o for o in ORDERS if o != order)
        raise UserError(
            f"{where}: {wrong['text'][0]!r} has no month {order} ({len(wrong):,} of {len(numbers):,} dates)",
            hint=f"Say {option('dates', other)}, or mend the dates.",
        )
    clock = pl.col("text").str.extract(OPEN, 4).str.to_uppercase()
    half = pl.coalesce(
        clock.str.to_time("%I:%M:%S %p", strict=False), clock.str.to_time("%I:%M %p", strict=False)
    ).dt.strftime("%H:%M:%S")
    whole_date = pl.concat_str(pl.col("text").str.extract(OPEN, 3), month, day, separator="-")
    whole = pl.concat_str(whole_date, pl.coalesce(half, clock), separator=" ")
    return frame.with_columns(pl.when("open").then(pl.coalesce(whole, whole_date)).otherwise("text").alias("text"))


def fhir_time(value: Any, *, start: bool = False) -> tuple[datetime | None, bool]:
    """A FHIR date, dateTime or instant as UTC without zone, and whether it was no more than a day, month or year.

    Such a one stands at the end of its day, month or year in the last zone where that ends (`LAST_ZONE`): whichever
    zone it was written in, it is never early. With `start` it stands at its start, with a time of day (a birthDate has
    none) at the start of the day as written.
    """
    if not isinstance(value, str):
        return None, False
    try:
        if len(value) > 10:
            found = datetime.fromisoformat(value)
            if start:
                return datetime(found.year, found.month, found.day), True
            return (found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)), False
        found = datetime.fromisoformat(value + {4: "-01-01", 7: "-01"}.get(len(value), ""))
    except (ValueError, OverflowError):
        return None, False
    if start or found.year == MAXYEAR:
        return found, True
    if len(value) == 4:
        found = found.replace(month=12, day=31)
    elif len(value) == 7:
        found = found.replace(day=monthrange(found.year, found.month)[1])
    return found + END_OF_DAY + LAST_ZONE, True


def unzoned(value: str) -> bool:
    """Whether a FHIR time that was read has a time of day and no zone, which FHIR demands."""
    return len(value) > 10 and datetime.fromisoformat(value).tzinfo is None
