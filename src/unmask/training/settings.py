"""How a run is trained, as one frozen dataclass, and helpers that fill any settings dataclass from text.

Every value is checked where it is made, so a typing mistake costs no minute of training. torch is not
imported here: `unmask --help` reads these defaults.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.elsewhere import own_settings
from unmask.errors import UnknownSetting, UserError, option, setting, suggest

Settings = TypeVar("Settings")

ENDINGS = ("steps", "epochs", "minutes")
MAY_CHANGE = (
    *ENDINGS,
    "memory",
    "keep",
    "log_every",
    "checkpoint_every",
    "checkpoint_seconds",
    "validate_every",
    "shard",
)
"""What a run may be resumed with other values of: where it ends, how it is watched and how processes share it."""
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What training of any kind is set by, besides how long it takes.

    Attributes:
        memory: gigabytes (10^9 bytes) that the process may hold in all; None takes what the system, or the container's
            limit, leaves.
        beta1: decay of the gradient average.
        beta2: decay of the squared gradient. 0.98 and `epsilon` 1e-6 are RoBERTa's (Liu et al. 2019, section
            3.1): 0.999 forgets too slowly for large batches.
        epsilon: added to the denominator of the update.
        weight_decay: decoupled; biases and norms are exempt.
        clip: largest gradient norm, None for no clipping.
        schedule: 'linear' and 'cosine' fall from the warm-up to the end; 'wsd' holds, then falls over the
            last `decay`; 'constant' holds.
        warmup: fraction of the run over which the rate rises linearly from 0. 0.06 is RoBERTa's.
        decay: fraction of the run that 'wsd' spends falling; refused with another schedule.
        minimum_rate: where the schedule ends, as a fraction of `learning_rate`; refused with 'constant'.
        precision: 'auto' goes by the processor (`training.precision`) and says what it picked, and why.
        device: 'auto' takes CUDA where there is one.
        seed: decides initial weights, data order and what is hidden.
        patience: validations without improvement before the run stops early; None never stops early.
        checkpoint_seconds: seconds between checkpoints.

    Raises:
        UserError: naming the key, the value and what was expected.
    """

    memory: float | None = None
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip: float | None = 1.0
    schedule: Literal["linear", "cosine", "wsd", "constant"] = "linear"
    warmup: float = 0.06
    decay: float = 0.1
    minimum_rate: float = 0.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = 0
    patience: int | None = None
    checkpoint_seconds: float = 120.0

    def __post_init__(self) -> None:
        check_types(self)
        require(self, lambda v: v >= 1, "a whole number, 1 or more, or none", "patience")
        require(self, lambda v: 0 < v < math.inf, "a number above 0", "epsilon", "checkpoint_seconds")
        require(self, lambda v: 0 < v < math.inf, "a number above 0, or none", "clip", "memory")
        require(self, lambda v: 0 <= v < 1, "a number from 0 up to, not including, 1", "beta1", "beta2")
        require(self, lambda v: 0 <= v < math.inf, "a number, 0 or more", "weight_decay")
        require(self, lambda v: 0 <= v <= 1, "a fraction between 0 and 1", "warmup", "decay", "minimum_rate")
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise UserError(
                f"warmup={self.warmup} and decay={self.decay} together exceed the run",
                hint=f"With {setting('schedule', 'wsd')} they must add up to 1 or less.",
            )
        refuse_unread(self, unread_by(self.schedule), f"with {setting('schedule', self.schedule)}")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(RunSettings):
    """How long, how fast and how carefully to train; `RunSettings` has the rest of the attributes.

    Attributes:
        steps: optimiser steps to run; at most one of `steps`, `epochs`, `minutes` (none of them: one epoch).
        epochs: passes over the data; fractions are allowed.
        minutes: wall clock to spend.
        batch_slots: slots in one optimiser step, padding included. 8192 is 64 rows of 128.
        accumulate: micro-batches an optimiser step is split into, at least: more are made where memory is short. The
            result does not change, memory does.
        learning_rate: the peak; right for encoders of a few million parameters, lower it (1e-4) for 100 M
            and up.
        optimiser: 'adamw' (fused), 'stable_adamw' (limits the update per tensor; for runs with loss spikes) or 'muon'
            (makes the updates of the layers' matrices orthogonal; the rest is AdamW's).
        matrix_rate: how many times the `learning_rate` those matrices take ('muon'): what is best for them may be more
            than embeddings bear. One `learning_rate` then suits all optimisers.
        shard: under a launcher of several processes: 'none', each holds the whole model (DDP); 'full', each holds a
            share of the weights, gradients and optimiser states (FSDP2), and checkpoints are written in shards beside
            the loop.
        compile: torch.compile the model, on GPUs; refused on CPUs, where it does not pay.
        validate_every: steps between validations; None means 20 times over the run.
        checkpoint_every: steps between checkpoints; None means by the clock (`checkpoint_seconds`).
        checkpoint_seconds: seconds between checkpoints when `checkpoint_every` is None; more where one takes so long
            that they would cost over 2 % of the time. At most this is lost.
        keep: newest checkpoints kept on disk.
        log_every: steps between lines in metrics.jsonl.
        nan_limit: consecutive steps with a loss or gradient that is not finite before the run stops with an
            error.

    >>> TrainSettings(steps=1000).epochs, TrainSettings().epochs
    (None, 1.0)
    """

    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    batch_slots: int = 8192
    accumulate: int = 1
    learning_rate: float = 1e-3
    optimiser: Literal["adamw", "stable_adamw", "muon"] = "adamw"
    matrix_rate: float = 1.0
    shard: Literal["none", "full"] = "none"
    compile: bool = False
    validate_every: int | None = None
    checkpoint_every: int | None = None
    keep: int = 2
    log_every: int = 10
    nan_limit: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ENDINGS if getattr(self, name) is not None]
        if len(given) > 1:
            listed = " and ".join(f"{name}={getattr(self, name)}" for name in given)
            raise UserError(f"{listed} contradict each other", hint="Give one of steps, epochs and minutes.")
        if not given:
            object.__setattr__(self, "epochs", 1.0)
        require_counts(self, "steps", "batch_slots", "accumulate", "keep", "log_every", "nan_limit")
        require(self, lambda v: v >= 1, "a whole number, 1 or more, or none", "validate_every", "checkpoint_every")
        above = ("epochs", "minutes", "learning_rate", "matrix_rate")
        require(self, lambda v: 0 < v < math.inf, "a number above 0", *above)

    @property
    def ending(self) -> str:
        """What ends a run, in words: '30 minutes', '20000 steps', '3 epochs'."""
        if self.minutes is not None:
            return f"{self.minutes:g} minutes"
        return f"{self.steps} steps" if self.steps is not None else f"{self.epochs:g} epochs"


def unread_by(schedule: str) -> tuple[str, ...]:
    """Settings that have no say in a schedule.

    >>> unread_by("cosine"), unread_by("constant")
    (('decay',), ('decay', 'minimum_rate'))
    """
    return {"wsd": (), "constant": ("decay", "minimum_rate")}.get(schedule, ("decay",))


def require(settings: object, holds: Callable[[Any], bool], expected: str, *names: str) -> None:
    """Check fields of a settings dataclass; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not holds(value):
            raise UserError(f"{name}={value}", hint=f"Expected {expected}.")


def refuse_unread(settings: Any, names: Iterable[str], where: str = "with the other settings") -> None:
    """Refuse settings that have another value than their default where nothing reads them.

    Args:
        names: settings that nothing reads; `outer.inner` for a field of a field.
        where: why not, such as "without a window".
    """
    both = {name: (attrgetter(name)(settings), _default(settings, name)) for name in names}
    changed = {name: values for name, values in both.items() if values[0] != values[1]}
    if changed:
        given, default = (", ".join(setting(n, values[i]) for n, values in changed.items()) for i in (0, 1))
        raise UserError(
            f"{given} {where}: nothing reads this", hint=f"Leave it out; where a recipe has it, say {default}."
        )


def _default(settings: Any, name: str) -> Any:
    """Of a field, or of a field of a field."""
    outer, _, inner = name.partition(".")
    field = next(f for f in dataclasses.fields(settings) if f.name == outer)
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return attrgetter(inner)(value) if inner else value


def require_counts(settings: object, *names: str) -> None:
    """`require` whole numbers, 1 or more."""
    require(settings, lambda v: v >= 1, "a whole number, 1 or more", *names)


def require_shares(settings: object, *names: str) -> None:
    """`require` shares from 0 up to, not including, 1."""
    require(settings, lambda v: 0 <= v < 1, "a share from 0 up to, not including, 1", *names)


def require_whole_rows(settings: Any) -> None:
    """Check that the batch of a kind's settings is made of whole rows."""
    size, slots = settings.train.batch_slots, settings.slots
    if size % slots:
        near = max(1, round(size / slots)) * slots
        raise UserError(
            f"batch_slots={size} is not a multiple of slots={slots}", hint=f"Use {setting('batch_slots', near)}."
        )


def check_seed(seed: int | None) -> int | None:
    """A seed that every generator takes, or None where none was given."""
    if seed is not None and not 0 <= seed < 2**63:
        raise UserError(f"seed={seed}", hint="Expected a whole number from 0 up to 2^63 - 1.")
    return seed


def same_run_hint() -> str:
    """What to do where a run cannot be gone on with."""
    return f"Resume with the same data and settings (only the run's end may change), or start a new {option('out')}."


def lasting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a kind's settings as plain data, those that a run must be resumed with: all but `MAY_CHANGE` of `train`."""
    return {**settings, "train": {k: v for k, v in settings["train"].items() if k not in MAY_CHANGE}}


def without_endings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides without those that say where a run ends, however they are spelled.

    >>> without_endings({"train.steps": 3, "train": {"epochs": 2, "clip": 1.0}, "minutes": 1, "seed": 0})
    {'train': {'clip': 1.0}, 'seed': 0}
    """
    kept = {k: v for k, v in settings.items() if k.removeprefix("train.") not in ENDINGS}
    return {k: without_endings(v) if k == "train" and isinstance(v, Mapping) else v for k, v in kept.items()}


def check_types(settings: Any) -> None:
    """Check the fields of a settings dataclass against their annotations, and its seed; ints become floats if due."""
    kind: Any = type(settings)
    hints = _hints(kind)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if not isinstance(value, str) or str not in _options(hints[field.name]):
            object.__setattr__(settings, field.name, _convert(field.name, value, hints[field.name]))
    check_seed(getattr(settings, "seed", None))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Of a few classes, of which a wide table makes one object per column."""
    return get_type_hints(kind)


def apply_overrides(settings: Settings, overrides: Mapping[str, Any]) -> Settings:
    """A copy of any settings dataclass with some fields replaced; strings are parsed to the field's type.

    `none` (or an empty string) stands for None, `true`/`false` for booleans, commas separate a tuple, and
    `outer.inner` reaches a field that is itself a dataclass (as does a nested table of a TOML file).

    >>> apply_overrides(TrainSettings(), {"learning_rate": "3e-4", "clip": "none"}).learning_rate
    0.0003
    >>> apply_overrides(TrainSettings(), {"leraning_rate": "3e-4"})
    Traceback (most recent call last):
    unmask.errors.UnknownSetting: unknown setting 'leraning_rate'
      Did you mean 'learning_rate'?
    """
    target: Any = settings
    hints = get_type_hints(type(target))
    fields = {field.name for field in dataclasses.fields(target) if field.init}
    changes: dict[str, Any] = {}
    for key, value in own_settings(overrides, fields).items():
        outer, _, inner = key.partition(".")
        if outer not in fields:
            raise UnknownSetting(key, fields, closest=outer)
        current = changes.get(outer, getattr(target, outer))
        if dataclasses.is_dataclass(current) and (inner or isinstance(value, Mapping)):
            changes[outer] = apply_overrides(current, {inner: value} if inner else value)
        elif inner:
            raise UserError(f"unknown setting '{key}'", hint=f"'{outer}' has no settings of its own.")
        else:
            changes[outer] = _convert(key, value, hints[outer])
    # A run has one ending: naming another one replaces the ending that was there (the default above all).
    endings = [name for name in ENDINGS if changes.get(name) is not None]
    if endings and fields.issuperset(ENDINGS):
        changes = {**dict.fromkeys(ENDINGS), **changes}
    # So does a schedule: what another one read goes back to its default.
    changes = {name: getattr(type(target), name) for name in unread_by(changes.get("schedule", "wsd"))} | changes
    return dataclasses.replace(target, **changes)


def apply_run_overrides(
    settings: Settings, overrides: Mapping[str, Any], *, also: Collection[str] = (), without: Collection[str] = ()
) -> Settings:
    """`apply_overrides` for the settings of a kind of data: keys of its `train` may be given bare (`learning_rate=...`)
    or as `train.learning_rate`.

    Args:
        settings: a dataclass with a field `train`; its own fields come before those of `train`.
        also: further names to suggest from.
        without: keys of `train` that make no sense for this kind.

    Raises:
        UserError: for an unknown key, with the closest known one.
    """
    target: Any = settings
    own = {f.name for f in dataclasses.fields(target)}
    training = {f.name for f in dataclasses.fields(target.train)} - own - set(without)
    here: dict[str, Any] = {}
    there: dict[str, Any] = {}
    for key, value in own_settings(overrides, own | training).items():
        outer, _, inner = key.partition(".")
        if outer == "train" and (inner or isinstance(value, Mapping)):
            there |= {inner: value} if inner else value
        elif outer in own:
            here[key] = value
        elif key in training:
            there[key] = value
        else:
            raise UnknownSetting(key, own | training | set(also))
    for key, value in there.items():
        # Settings read back from a run name every key: one that is never set is welcome as it was.
        if key in without and value != getattr(target.train, key):
            raise UnknownSetting(f"train.{key}", own | training | set(also), closest=key)
    # In one go: some of the kind's own settings are checked against those of `train`.
    found: Any = apply_overrides(target, here | ({"train": there} if there else {}))
    if {"matrix_rate", "train.matrix_rate"} & overrides.keys() and found.train.optimiser != "muon":
        raise UserError(
            f"{setting('matrix_rate', found.train.matrix_rate)} with {setting('optimiser', found.train.optimiser)}: "
            "nothing reads this",
            hint=f"Leave it out, or give {setting('optimiser', 'muon')}, whose matrices have a rate of their own.",
        )
    return found


def settings_from(
    default: Settings,
    given: Settings | TrainSettings | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    change: Callable[[Settings, Mapping[str, Any]], Settings] = apply_overrides,
    recipes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """The settings of a verb in Python, which takes `settings=` and, as keywords, the keys of `--set`.

    Args:
        default: those of a run that is given none.
        given: an object of that class, a `TrainSettings` for its `train`, or keys and values.
        overrides: keys and values that are put in place of those.
        change: replaces values by key: `with_overrides` of a kind, where it has one.
        recipes: of the kind: `recipe=` puts the values of one in place first, as --recipe does.

    >>> settings_from(TrainSettings(), {"seed": 1}, {"steps": 60}).steps
    60
    """
    target: Any = default
    chosen: Any = given
    if given is None or isinstance(given, Mapping):
        chosen, overrides = default, {**(given or {}), **overrides}
    elif isinstance(given, TrainSettings) and hasattr(target, "train"):
        chosen = dataclasses.replace(target, train=given)
    elif not isinstance(given, type(target)):
        raise UserError(
            f"settings={given!r:.60}: a {type(given).__name__}",
            hint=f"Give them as keywords (steps=60), as a dict, or as a {type(target).__name__}.",
        )
    if recipes is not None and "recipe" in overrides:
        recipe, overrides = overrides["recipe"], {key: v for key, v in overrides.items() if key != "recipe"}
        if recipe not in recipes:
            raise UserError(f"recipe={recipe!r}", hint=suggest(str(recipe), recipes))
        chosen = change(chosen, recipes[recipe])
    return change(chosen, overrides) if overrides else chosen


def parse_set(pairs: Iterable[str]) -> dict[str, str]:
    """Split `key=value` texts, as given to `--set`; a later one replaces an earlier one.

    >>> parse_set(["learning_rate=3e-4", "schedule = cosine"])
    {'learning_rate': '3e-4', 'schedule': 'cosine'}
    """
    parsed: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {pair!r}", hint="Expected key=value, for example learning_rate=3e-4.")
        parsed[key.strip()] = value.strip()
    return parsed


def load_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of settings."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", hint="Expected a TOML file with settings.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="Expected a TOML file in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: {error}", hint='Expected TOML, for example: schedule = "cosine"') from None


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _convert(key: str, value: Any, hint: Any) -> Any:
    """`value` as one of the types `hint` allows, tried in the order written."""
    options = _options(hint)
    if isinstance(value, str) and value.strip().lower() in ("none", "null", "") and type(None) in options:
        return None
    for kind in options:
        try:
            return _convert_one(key, value, kind)
        except (ValueError, TypeError):
            continue
    raise UserError(f"{key}={value}", hint=f"Expected {' or '.join(_describe(option) for option in options)}.")


def _convert_one(key: str, value: Any, kind: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any or (value is None and kind is type(None)):
        return value
    if origin is Literal:
        for choice in get_args(kind):
            if (value == choice and type(value) is type(choice)) or value == str(choice):
                return choice
        raise ValueError
    if kind is bool:
        if isinstance(value, bool):
            return value
        return _BOOLEANS[str(value).lower()] if str(value).lower() in _BOOLEANS else _refuse()
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        if kind is float:
            number = float(value)
            return number if not math.isnan(number) else _refuse()
        if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                value = float(value)  # "1e4" is a natural way to write a number of steps
        return int(value) if math.isfinite(value) and value == int(value) else _refuse()
    if origin in (tuple, list):
        items = value.split(",") if isinstance(value, str) else list(value)
        kinds = get_args(kind)
        if origin is list or kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(items)
        if len(kinds) != len(items):
            raise ValueError
        parts = (
            _convert(key, item.strip() if isinstance(item, str) else item, k)
            for item, k in zip(items, kinds, strict=True)
        )
        return tuple(parts) if origin is tuple else list(parts)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, origin or kind):
        return value
    raise ValueError


def _refuse() -> Any:
    raise ValueError


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple and get_args(kind)[-1] is not Ellipsis:
        return f"a list of {len(get_args(kind))}"
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none", str: "text"}
    return names.get(kind) or str(getattr(kind, "__name__", kind))
