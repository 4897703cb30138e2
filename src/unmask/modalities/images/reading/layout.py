"""What folders and names of files say before a file is opened: parts of a data set, groups, masks beside pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

from unmask.errors import UserError, first_of, setting
from unmask.files import files_below
from unmask.given import split_named
from unmask.modalities.images.reading.decode import is_picture
from unmask.names import names_individuals, words_of

FEWEST_PAIRS = 3
"""Pictures from which on names that are alike are no accident."""
_MASKS = (
    "masks?|labels?|annotations?|segs?|segmentations?|segmasks?|gt|ground ?truths?|truth|targets?|mattes?|labelmaps?"
)
_MASK_FOLDER = re.compile(rf"(?:.* )?(?:{_MASKS})")
_MASK_NAME = re.compile(rf"(?P<of>.+?)[-_ .](?:{_MASKS})(?:[-_ ]?[0-9]+)?", re.IGNORECASE)
_NUMBERED = re.compile(r"(?P<word>[^0-9]*)[0-9]+(?=[-_ .()#]|$)")


def parts_of(folder: Path) -> tuple[list[Path], list[str]]:
    """(the folders of the parts of a data set, such as train and test, or the folder itself where it has none; what
    stands beside them and is left out).
    """
    below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    parts = [p for p in below if split_named(p.name)]
    if not parts:
        parts = [p for p in below if part_named(p.name)]
        if len({part_named(p.name) for p in parts}) < 2:
            return [folder], []
    counts = {p: len(pictures_below(p)[0]) for p in below if p not in parts}
    others = [f"{p.name} ({count:,} pictures)" for p, count in counts.items() if count]
    if others and len({part_named(p.name) == "train" for p in parts}) < 2:
        raise UserError(
            f"{folder}: {parts[0].name} is the name of a part of a data set, and beside it is {others[0]}",
            hint="Give the folder of one of them; name a class otherwise, or label pictures by a table.",
        )
    # Archives unpacked into a folder of their own name: train/train.
    inside = {p: {q.name for q in p.iterdir() if not q.name.startswith(".")} for p in parts}
    return [p / p.name if inside[p] == {p.name} else p for p in parts], others


def part_named(name: str) -> str | None:
    """`split_named` of a folder, in front of which the name of a data set may stand: seg_train."""
    return split_named(name) or split_named(re.split(r"[-_ ]", name)[-1])


def folder_group(file: Path, root: Path, group: str | None) -> str | None:
    """What a file belongs to by the folders it is in; None where nothing was asked."""
    if group is None:
        return None
    if group == "file":
        return str(file)
    if group == "folder":
        return str(file.parent)
    if group == "name":
        return name_group(file.name)
    folders = file.relative_to(root).parts[:-1]
    if not group.isdigit() or not 1 <= int(group) <= max(len(folders), 1):
        raise UserError(
            f"group={group}, of files in folders",
            hint="Expected 'folder', 'file', 'name' (of a file, up to its first number), or a folder level from 1 "
            "below the one given; a column's name is for tables.",
        )
    if not folders:
        raise UserError(
            f"{file}: in no folder below {root}",
            hint=f"{setting('group', group)} needs folders: one per patient or slide.",
        )
    return "/".join(folders[: int(group)])


def pictures_below(folder: Path) -> tuple[list[Path], list[str]]:
    """(pictures in a folder and those below it, sorted; endings of the files that are none). Nothing hidden.

    Arrays (.npy) are the pictures where there are no others.
    """
    files = [
        p
        for p in files_below(folder)
        if not any(part.startswith(".") for part in p.relative_to(folder).parts) and (p.is_file() or not p.exists())
    ]
    found = [p for p in files if is_picture(p)] or [p for p in files if p.suffix.lower() == ".npy"]
    taken = set(found)
    return found, [p.suffix.lower() or "without ending" for p in files if p not in taken]


def stem(name: str) -> str:
    """A file's name without its folders and endings.

    >>> stem("a/sub-01_T1w.nii.gz"), stem("b/scan.1.png")
    ('sub-01_T1w', 'scan.1')
    """
    base = PurePath(name.partition("#")[0]).name
    return re.sub(r"(?:\.nii)?\.[A-Za-z0-9]{1,6}$", "", base)


def name_group(name: str) -> str:
    """What a file belongs to by its name: the name up to its first number, where that is a part of it by itself.

    >>> [name_group(n) for n in ("patient07_03.png", "sub-01_ses-02.nii.gz", "cell.png", "3f2a.png")]
    ['patient07', 'sub-01', 'cell', '3f2a']
    """
    found = _NUMBERED.match(whole := stem(name))
    return found[0] if found else whole


def group_notes(
    names: Sequence[str], labels: Sequence[Any] | None = None, train: Sequence[bool] | None = None
) -> list[str]:
    """A line on pictures that may belong together by their names or folders, where nothing says that they do: most of
    them share the start of their name up to its first number, or lie in folders below those of the classes. It is a
    warning where the names say patient, subject, slide or another individual.

    Args:
        names: paths of the pictures within their set, of one part or of all.
        labels: their classes; a name that follows from the class is none of a group.
        train: which are of the training part, where there are others.

    >>> print(group_notes(["patient1_1.png", "patient1_2.png", "patient2_1.png"])[0].partition(", and")[0])
    warning: names begin alike in 3 pictures of 2 groups, such as patient1
    """
    given = ["" for _ in names] if labels is None else [str(label) for label in labels]
    # A name that is a number alone says nothing: every folder counts its own.
    by_name = [group if (group := name_group(name)) != stem(name) else name for name in names]
    if _groups(by_name, given) and (word := _NUMBERED.match(first := _largest(by_name))):
        what = f"names begin alike in {len(names):,} pictures of {len(set(by_name)):,} groups, such as {first}"
        return [_together(what + _across(by_name, train), words_of(word["word"]), "name")]
    folders = [PurePath(name).parent.name for name in names]
    others = any(split_named(folder) or _MASK_FOLDER.fullmatch(words_of(folder)) for folder in set(folders))
    if all(folders) and not others and _groups(folders, given):
        first = _largest(folders)
        what = f"{len(names):,} pictures lie in {len(set(folders)):,} folders, such as {first}/"
        return [_together(what + _across(folders, train), words_of(re.sub("[0-9]+", "", first)), "folder")]
    return []


def _groups(groups: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether most pictures share their group with others, and groups are no other names of the classes."""
    counts, pairs = Counter(groups), set(zip(groups, labels, strict=True))
    several = sum(count for count in counts.values() if count > 1)
    renamed = len(set(labels)) > 1 and len(pairs) == len(counts) == len(set(labels))
    return len(counts) > 1 and 2 * several > len(groups) and not renamed


def _across(groups: Sequence[str], train: Sequence[bool] | None) -> str:
    """How many groups have pictures of the training part and others, for `what`."""
    sides = [{g for g, t in zip(groups, train or (), strict=False) if t == side} for side in (True, False)]
    both = len(sides[0] & sides[1])
    return f" ({both:,} of them with pictures in training and among those to judge on)" if both else ""


def _largest(groups: Iterable[str]) -> str:
    return min(Counter(groups).items(), key=lambda item: (-item[1], item[0]))[0]


def _together(what: str, called: str, group: str) -> str:
    person = any(names_individuals(word) or word == "sub" for word in called.split()[-1:])
    start = "warning: " if person else "groups: "
    return (
        f"{start}{what}, and nothing says that they belong together: where a group is one patient, slide or scene, its "
        f"pictures stand on both sides of every split; {setting('group', group)} keeps them on one"
    )


def masks_among(names: Sequence[str]) -> dict[str, list[int]]:
    """Pictures that are masks of others by their names: folder/ or ending -> numbers of the masks. The names in a
    folder of masks are those in another folder, but for the folder; beside pictures, theirs and a word (`a_mask.png`).

    >>> masks_among(["image/0.png", "image/1.png", "image/2.png", "label/0.png", "label/1.png", "label/2.png"])
    {'label/': [3, 4, 5]}
    >>> masks_among(["a.png", "a_mask.png", "b.png", "b_mask.png", "c.png", "c_mask_1.png"])
    {'*_mask': [1, 3, 5]}
    """
    known = {str(PurePath(name).parent / stem(name)) for name in names}
    others: dict[tuple[str, ...], set[str]] = {}
    places: list[tuple[tuple[str, ...], str] | None] = []
    for name in names:
        folders = PurePath(name).parent.parts
        at = next((i for i, folder in enumerate(folders) if _MASK_FOLDER.fullmatch(words_of(folder))), None)
        places.append(None if at is None else ((*folders[:at], "*", *folders[at + 1 :], stem(name)), folders[at]))
        for i, folder in enumerate(folders):
            others.setdefault((*folders[:i], "*", *folders[i + 1 :], stem(name)), set()).add(folder)
    found: dict[str, list[int]] = {}
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        match = _MASK_NAME.fullmatch(stem(name))
        if place is not None and len(others[place[0]]) > 1:
            found.setdefault(f"{place[1]}/", []).append(number)
        elif match and str(PurePath(name).parent / match["of"]) in known:
            ending = stem(name)[len(match["of"]) :]
            found.setdefault("*" + re.sub(r"[-_ ]?[0-9]+$", "", ending), []).append(number)
    return {where: numbers for where, numbers in found.items() if len(numbers) >= FEWEST_PAIRS}


def mask_notes(names: Sequence[str]) -> list[str]:
    """A warning of masks among the pictures, by `masks_among`."""
    found = masks_among(names)
    if not found:
        return []
    counted = first_of(f"{where} ({len(numbers):,})" for where, numbers in found.items())
    return [
        f"warning: {counted}: named as others of the pictures are, as masks of them would be. They are read as "
        "pictures and, where folders are classes, as a class: give the folder of the pictures alone; `unmask finetune "
        "segment` learns from masks"
    ]
