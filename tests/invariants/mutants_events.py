"""Broken copies of the event room's masking code; see `mutants`."""

from __future__ import annotations

from mutants import MODEL, mutant

CODEC, HISTORIES, TIES, EVIDENCE = (
    "modalities/events/network/codec.py",
    "modalities/events/records/histories.py",
    "modalities/events/records/histories.py",
    "modalities/events/network/codec.py",
)
QUERIES, QUERY_BATCHES = "modalities/events/questions/queries.py", "modalities/events/questions/queries.py"

MUTANTS = [
    mutant(
        1,
        "events: the event is embedded behind the mask",
        (MODEL, "tensor.view(-1, *tensor.shape[2:])[hidden.masked] = 0", "pass"),
        (CODEC, "torch.where(masked[..., None], self.mask, x)", "x + self.mask * masked[..., None]"),
    ),
    mutant(
        1,
        "events: the time of a hidden event is told",
        (MODEL, "tensor.view(-1, *tensor.shape[2:])[hidden.masked] = 0", "pass"),
        (CODEC, 'masked if self.structure.hides == "all" else None', "None"),
    ),
    mutant(
        3,
        "events: targets one event off",
        (CODEC, "values[name].flatten()[flat].float()", "values[name].flatten()[flat - 1].float()"),
    ),
    mutant(
        1,
        "events: a hidden event is evidence for itself",
        (EVIDENCE, "predictive = (~hidden.flatten()) & ", "predictive = "),
    ),
    mutant(
        8,
        "events: rows of one time stamp stay as they come",
        (TIES, "np.lexsort((*keys[::-1], time))", "np.arange(len(time))"),
    ),
    mutant(8, "events: values are left out of the canonical order", (HISTORIES, ", e.value[here])", ")")),
    mutant(8, "events: positions count rows", (HISTORIES, "position=visit", "position=None")),
    mutant(
        8,
        "events: histories are cut between rows",
        (TIES, "return after if after < len(time) else start", "return start"),
    ),
    mutant(
        9,
        "events: the mean is the mode",
        (CODEC, 'raise no_mean("events, each with a code,")', "return self.mode()"),
    ),
    mutant(
        9,
        "events: values are drawn too wide",
        (
            CODEC,
            "noise * (0.5 * log_variance).exp() * temperature",
            "2 * noise * (0.5 * log_variance).exp() * temperature",
        ),
    ),
    mutant(
        10,
        "events: what is told of a question's codes counts later events",
        (QUERIES, "rows = histories.rows(subject, moment)", "rows = histories.rows(subject)"),
    ),
    mutant(
        10,
        "events: the history that is asked about is whole",
        (QUERY_BATCHES, "histories.example(subject, moment, slots", "histories.example(subject, None, slots"),
    ),
    mutant(
        10,
        "events: what stands at the time of asking answers",
        (
            QUERIES,
            'later = rows[np.searchsorted(time, moment, side="right") :]',
            'later = rows[np.searchsorted(time, moment, side="left") :]',
        ),
    ),
]
