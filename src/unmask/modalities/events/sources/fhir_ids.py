"""References between FHIR resources: `Patient/A/_history/1` and a bundle's urn:uuid both lead to the patient's id."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_REFERENCE = re.compile(r"^(?:(https?://.+?)/)?([A-Z][A-Za-z]+)/([A-Za-z0-9.\-_]+)(?:/_history/[^/]+)?/?$")


@dataclass(frozen=True)
class Name:
    """A resource that a reference leads to; `base` is the server's address, where it is said."""

    kind: str
    id: str
    base: str | None = None


@dataclass
class Scope:
    """What references in one bundle may lead to.

    Attributes:
        names: fullUrl -> the resource that stands under it.
        base: server of the entry at hand, against which relative references count.
        medications: id -> code of the Medication resources.
    """

    names: Mapping[str, Name] = field(default_factory=dict)
    base: str | None = None
    medications: Mapping[str, Any] = field(default_factory=dict)


def name_of(url: str, scope: Scope) -> Name | None:
    """Where a reference (or a fullUrl) leads; None where it does not say."""
    if url in scope.names:
        return scope.names[url]
    if url.startswith(("urn:uuid:", "urn:oid:")):
        return Name("", url.split(":", 2)[2])
    found = _REFERENCE.match(url)
    return None if found is None else Name(found[2], found[3], found[1] or scope.base)


def scope_of(entries: Sequence[Any]) -> tuple[Scope, list[str | None]]:
    """What the references within a bundle may lead to, and the server of each of its entries."""
    names: dict[str, Name] = {}
    medications: dict[str, Any] = {}
    bases: list[str | None] = []
    for entry in entries:
        url = entry.get("fullUrl") if isinstance(entry, dict) else None
        resource = entry.get("resource") if isinstance(entry, dict) else None
        resource = resource if isinstance(resource, dict) else {}
        kind, own = str(resource.get("resourceType", "")), resource.get("id")
        found = _REFERENCE.match(url) if isinstance(url, str) else None
        bases.append(found[1] if found is not None else None)
        if isinstance(url, str):
            # An entry without an id of its own is known by its address alone.
            known = str(own) if own else found[3] if found is not None else url.split(":", 2)[-1]
            names[url] = Name(kind, known, found[1] if found is not None else None)
            if kind == "Medication":
                medications[known] = resource.get("code")
        elif kind == "Medication" and own:
            medications[str(own)] = resource.get("code")
    return Scope(names=names, medications=medications), bases


def is_deletion(entry: Any) -> bool:
    request = entry.get("request") if isinstance(entry, Mapping) else None
    return isinstance(request, Mapping) and str(request.get("method", "")).upper() == "DELETE"


def deleted(entry: Any, base: str | None) -> Name | None:
    """The resource that a deletion (of a history or a bulk export) names by its address; None where it names none."""
    urls = (entry.get("fullUrl"), entry["request"].get("url"))
    names = [name_of(url, Scope(base=base)) for url in urls if isinstance(url, str)]
    return next((name for name in names if name is not None and name.kind), None)


@dataclass
class Servers:
    """Resources over several servers: what no server is said of is of the first one."""

    home: str | None = None

    def placed(self, name: Name) -> Name:
        """The name without its server where that is the first."""
        if self.home is None:
            self.home = name.base
        return Name(name.kind, name.id) if name.base == self.home else name

    def key(self, name: Name) -> str:
        """The id; with the address in front where it is of another server than the first."""
        name = self.placed(name)
        return name.id if name.base is None else f"{name.base}/{name.kind}/{name.id}"
