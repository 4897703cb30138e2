"""Who trained an outcome head: kept with the model, so that predictions about them are marked as such.

Patients are recognised by their ids, but in another extract the same id may belong to another person, because
conversions number patients in the order they come. So one bit is stored with each id, taken from a hash of the id and
the day of birth: if the people are the same nearly all bits agree, else about half of them (`Met`). A single bit gives
away almost nothing of a patient's birth.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.modalities.events.records.meds import BIRTH, HOUR, STATIC, Events, Labels

SPLIT_NAMES = ("train", "held_out")
BIRTHS = "births_"
"""Before a split's name: one byte per patient, 0 where no birth is known, else 2 and the bit."""
FEWEST, ALIKE = 20, 0.8
"""Births that are compared at least, and the share that agrees among the same people: of chance 20 agree so well in 6
of 1,000 extracts."""


def who_trained(events: Events, points: Labels, held: np.ndarray) -> dict[str, str]:
    """Who trained the head and who was held out, for the folder: hashes of subject ids, so that it names nobody, and a
    bit of each one's birth."""
    bits, out = birth_bits(events), {}
    for name, subject in zip(SPLIT_NAMES, (points.subject[~held], points.subject[held]), strict=True):
        who = np.unique(subject)
        out[name] = base64.b64encode(hashes(events.subjects[who]).tobytes()).decode()
        out[BIRTHS + name] = base64.b64encode(bits[who].tobytes()).decode()
    return out


def with_trained(patients: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """`who_trained`, of a head that learnt from the training patients of `more` too, who are held out no longer."""
    known = {name: np.frombuffer(base64.b64decode(text), np.uint8) for name, text in patients.items()}
    new = {name: np.frombuffer(base64.b64decode(text), np.uint8) for name, text in more.items()}
    kept = ~np.isin(known["held_out"].view(np.uint64), new["train"].view(np.uint64))
    out = {n: np.concatenate([known[n], new[n]]) for n in ("train", f"{BIRTHS}train")}
    out |= {"held_out": known["held_out"].view(np.uint64)[kept], f"{BIRTHS}held_out": known[f"{BIRTHS}held_out"][kept]}
    return {name: base64.b64encode(found.tobytes()).decode() for name, found in out.items()}


@dataclass(frozen=True, kw_only=True)
class Met:
    """What a model knows of the subjects of some data: the split of each by its id ('train', 'held_out' or 'unseen'),
    None where the ids are of other people (`others`); how many births were compared with those of the same ids, and how
    many agree."""

    split: np.ndarray
    compared: int = 0
    alike: int = 0
    others: bool = False

    def warning(self) -> str | None:
        """Why splits are not known, in a sentence; None where they are."""
        if self.others:
            return (
                f"of {self.compared:,} subjects with the id of a patient of the fine-tuning, only as many have the "
                "same birth as by chance: these are other patients, or their ids were numbered anew. Who trained the "
                "head is not known by id; figures are of new patients only if these are others"
            )
        return None


def met(events: Events, patients: dict[str, str]) -> Met:
    """What a model knows of the subjects of some data, by what `who_trained` wrote into its folder."""
    hashed, split = hashes(events.subjects), np.full(len(events), "unseen", dtype=object)
    bits, same, compared, alike = birth_bits(events), {}, 0, 0
    for name in SPLIT_NAMES:
        known = np.frombuffer(base64.b64decode(patients[name]), np.uint64)
        order = np.argsort(known)
        place = np.searchsorted(known[order], hashed).clip(max=max(len(known) - 1, 0))
        same[name] = known[order][place] == hashed if len(known) else np.zeros(len(hashed), bool)
        split[same[name]] = name
        if len(known):
            theirs = np.frombuffer(base64.b64decode(patients[BIRTHS + name]), np.uint8)[order][place]
            both = same[name] & (theirs > 0) & (bits > 0)
            compared += int(both.sum())
            alike += int((theirs == bits)[both].sum())
    if compared >= FEWEST and alike < ALIKE * compared:
        return Met(split=np.full(len(events), None, dtype=object), compared=compared, alike=alike, others=True)
    return Met(split=split, compared=compared, alike=alike)


def birth_bits(events: Events) -> np.ndarray:
    """(subjects,) 0 where no birth is known, else 2 and one bit of a hash of id and day of birth."""
    births = events.begins(BIRTH)
    day = np.full(len(events), STATIC)
    if births.any():
        for owners, here in events.blocks():
            chosen = births[events.code[here]] & (events.time[here] != STATIC)
            day[events.owner(owners)[chosen]] = events.time[here][chosen] // (24 * HOUR)
    bit = (hash_keys(Salt.BIRTH, events.subjects.astype(np.int64), day) >> np.uint64(63)).astype(np.uint8)
    return np.where(day == STATIC, np.uint8(0), np.uint8(2) + bit)


def hashes(subjects: np.ndarray) -> np.ndarray:
    return hash_keys(Salt.SUBJECT, np.asarray(subjects, np.int64)).astype(np.uint64)
