"""What a model answers when it is served: verbs, the shapes of their requests and answers, and the work behind them.

A modality says it by `Modality.serves`: a function that makes a `Served` of a model folder. Nothing here knows of HTTP,
of torch or of a kind of data, so that a package's own modality is served as those of unmask are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.errors import UserError
from unmask.serving.shapes import REQUIRED, Anything, Field, ListOf, Open, Shape, checked

BATCH_SLOTS = 4096
"""Slots (tokens, cells, patches, events) that are worked on at a time."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A request made ready: its items, each of a size, and what answers them.

    Items of several requests are worked on in one batch, so `run` must give each item the answer it would have alone.

    Args:
        items: what `run` takes.
        slots: size of each item, for the budget of a batch.
        run: some of the items, and of the items of others -> an answer of each, in order. Called in the model's thread.
        finish: the answers of all items, in order -> a JSON value.
        together: requests with the same value may share a batch; None: this one shares with none.
    """

    items: Sequence[Any]
    slots: Sequence[int]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    finish: Callable[[Sequence[Any]], Any]
    together: Hashable = None


def alone(run: Callable[[], Any], slots: int) -> Work:
    """Work of one piece, which shares no batch: what is drawn depends on all that is asked for together."""
    return Work(items=[None], slots=[slots], run=lambda _: [run()], finish=lambda answers: answers[0])


@dataclass(frozen=True, kw_only=True)
class Verb:
    """Something that a model answers.

    Args:
        about: one sentence for people.
        request: shape of the body.
        answer: shape of the answer.
        prepare: the body, read as `request` -> the work. Called beside the model's thread: reads, checks and tokenises.
        raw: a body that is not JSON (its bytes) -> one that is; None: such bodies are refused.
        telling: whether a body can be meant for this verb alone, where the address does not say which.
        example: a body, for the documentation.
    """

    about: str
    request: Shape
    answer: Shape = field(default_factory=Anything)
    prepare: Callable[[Any], Work]
    raw: Callable[[bytes], Any] | None = None
    telling: Callable[[Any], bool] | None = None
    example: Any = None


LONGEST_WARNING = 4000
"""Characters of a header: what stands in front of a server takes about 8 000 for all."""


@dataclass(frozen=True)
class Warned:
    """An answer whose form has no place for warnings, which go into the header `x-unmask-warning`."""

    value: Any
    warnings: Sequence[str]

    @property
    def header(self) -> str:
        """The warnings in one line of ASCII."""
        line = "; ".join(" ".join(warning.split()) for warning in self.warnings)
        return re.sub("[^ -~]", lambda found: found[0].encode("unicode_escape").decode(), line)[:LONGEST_WARNING]


@dataclass(frozen=True, kw_only=True)
class Served:
    """A loaded model as the server sees it.

    Args:
        kind: of its modality; the page at / has a part for each of unmask's.
        about: what people and the page may know of it: size, columns, labels. JSON.
        verbs: name -> verb, answered at /models/MODEL/NAME; the first one is what it is for.
        dialects: 'DIALECT/TASK' -> verb in the words of clients that speak it already: 'openai/embeddings',
            'tei/embed', 'huggingface/fill-mask', and 'huggingface/' for what is sent to the bare address of the model.
        task: what it is for, in the words of the Hugging Face hub, such as 'fill-mask'.
        batch_slots: budget of a batch.
        warm: makes what would else be made at the first request; called before the process is copied, so that all
            copies share it. It must start no thread.
        close: called when the server ends.
    """

    kind: str
    about: Mapping[str, Any]
    verbs: Mapping[str, Verb]
    dialects: Mapping[str, Verb] = field(default_factory=dict)
    task: str | None = None
    batch_slots: int = BATCH_SLOTS
    warm: Callable[[], object] = lambda: None
    close: Callable[[], None] = lambda: None

    def described(self) -> dict[str, Any]:
        """As JSON: everything but the work."""
        verbs, dialects = (
            {
                name: {
                    "about": verb.about,
                    "request": verb.request,
                    "answer": verb.answer,
                    "example": verb.example,
                    "raw": verb.raw is not None,
                }
                for name, verb in some.items()
            }
            for some in (self.verbs, self.dialects)
        )
        about = dict(self.about)
        return {"kind": self.kind, "about": about, "task": self.task, "verbs": verbs, "dialects": dialects}


def records(about: str = "", default: Any = REQUIRED, /, **fields: Field) -> Field:
    """A list of open records with these fields, as answers have them."""
    return Field(ListOf(Open(**fields)), about, default)


def adapted(
    verb: Verb,
    *,
    about: str,
    request: Shape,
    ask: Callable[[Any], Any],
    answer: Callable[[Any, Any], Any],
    shape: Shape | None = None,
    **more: Any,
) -> Verb:
    """A verb in other words; its `warnings` go into a header (`Warned`).

    Args:
        ask: the body in these words -> the body of `verb`.
        answer: (the answer of `verb`, the body in these words) -> the answer in these words.
        shape: of that answer.
        more: `raw`, `telling` and `example` of the new verb.
    """

    def prepare(body: Any) -> Work:
        work = verb.prepare(checked(verb.request, ask(body)))

        def finish(answers: Sequence[Any]) -> Any:
            found = work.finish(answers)
            warnings = found.get("warnings") if isinstance(found, Mapping) else None
            value = answer(found, body)
            return Warned(value, warnings) if warnings else value

        return dataclasses.replace(work, finish=finish)

    return Verb(about=about, request=request, answer=shape or Anything(), prepare=prepare, **more)


def chosen_by_shape(verbs: Mapping[str, Verb], default: str, *, about: str) -> Verb:
    """What a body at an address without a task of the hub is: the one whose `telling` says so, else the default one."""

    def prepare(body: Any) -> Work:
        sure = [verb for verb in verbs.values() if verb.telling is not None and verb.telling(body)]
        verb = sure[0] if len(sure) == 1 else verbs[default]
        try:
            return verb.prepare(checked(verb.request, body))
        except UserError as error:
            if verb is verbs[default] and len(verbs) > 1:
                others = ", ".join(f"pipeline/{name} below this address" for name in verbs if name != default)
                error.hint = f"{error.hint} This was read as {default}; others: {others}.".strip()
            raise

    raws = [verb.raw for verb in verbs.values() if verb.raw is not None]
    return Verb(about=about, request=Anything(), prepare=prepare, raw=raws[0] if raws else None)
