"""Requests that a server must bear: fitting, spoilt, oversized, slow, cut off; many at a time, on bare connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema

AT_ONCE = 24
"""Connections."""
WORDS = ["a fox", "The [MASK] fox.", "", "  ", "word " * 90, "2020-03-01", "GLUCOSE", "stage", "F"]


def values(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value that is likely not what was expected."""
    kinds = [
        lambda: None,
        lambda: rng.choice([True, False]),
        lambda: rng.choice([0, -1, 1.5, 1e308, 2**63, -(2**63), 10**30]),
        lambda: rng.choice(["", "a", "[MASK]", "\x00", "\ud800", "é" * 50, "[MASK]" * 20, "../../etc/passwd"]),
        lambda: [values(rng, depth + 1) for _ in range(rng.randrange(4))] if depth < 4 else [],
        lambda: {rng.choice(["texts", "inputs", "a", ""]): values(rng, depth + 1)} if depth < 4 else {},
    ]
    return rng.choice(kinds)()


def from_schema(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """A value that fits a shape, mostly."""
    if "anyOf" in schema:
        return from_schema(rng.choice(schema["anyOf"]), rng)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        names, wanted = schema.get("properties", {}), schema.get("required", [])
        if not names and isinstance(schema.get("additionalProperties"), dict):
            names = dict.fromkeys(rng.sample(["age", "sex", "sbp", "zzz"], 2), schema["additionalProperties"])
        return {n: from_schema(s, rng) for n, s in names.items() if n in wanted or rng.random() < 0.5}
    if kind == "array":
        return [from_schema(schema["items"], rng) for _ in range(rng.randrange(3))]
    low, high = schema.get("minimum", -5), schema.get("maximum", 50)
    top = min(high, low + 9)  # many rows or rounds take long, and are no mistake
    return {
        "string": lambda: rng.choice(WORDS),
        "integer": lambda: rng.choice([low, low - 1, high + 1, rng.randint(int(low), int(top))]),
        "number": lambda: rng.choice([low, low - 1, high + 1, rng.uniform(low, top)]),
        "boolean": lambda: rng.random() < 0.5,
        "null": lambda: None,
    }.get(kind, lambda: values(rng))()  # type: ignore[arg-type]


def spoilt(body: Any, rng: random.Random) -> Any:
    """The body with one place changed to something else."""
    if isinstance(body, dict) and body and rng.random() < 0.8:
        name = rng.choice(list(body))
        return {**body, name: spoilt(body[name], rng)}
    if isinstance(body, list) and body and rng.random() < 0.8:
        place = rng.randrange(len(body))
        return [*body[:place], spoilt(body[place], rng), *body[place + 1 :]]
    return values(rng)


def as_json(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")


def posts(openapi: Mapping[str, Any]) -> dict[str, Any]:
    """Address -> what OpenAPI says of a POST to it: request and answer as schemas, and the example."""
    found = {}
    for path, told in openapi["paths"].items():
        if "post" in told:
            content = told["post"]["requestBody"]["content"]["application/json"]
            answer = told["post"]["responses"]["200"]["content"]["application/json"]["schema"]
            found[path] = {"request": content["schema"], "answer": answer, "example": content.get("example")}
    return found


@dataclass
class Sent:
    """A request, in pieces with pauses between them, and what must come of it.

    Attributes:
        hangs_up: after the last piece, instead of waiting for an answer.
        refused: it must be; else it may be answered.
        answer: schema of what it is answered with.
    """

    sort: str
    pieces: list[bytes]
    pause: float = 0.0
    hangs_up: bool = False
    refused: bool = True
    answer: Any = None


def post(path: str, content: bytes, kind: str = "application/json", length: int | None = None) -> bytes:
    size = len(content) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n"
    return head.encode() + content


def requests(known: Mapping[str, Any], count: int, seed: int, *, body: int, items: int, slow: int) -> Iterator[Sent]:
    """So many requests of all sorts, most with one place of the body spoilt.

    Args:
        known: of `posts`.
        body, items: limits of the server.
        slow: how many of them never come to an end.
    """
    rng = random.Random(seed)
    paths = sorted(known)
    dripping = set(rng.sample(range(count), slow))
    for number in range(count):
        path = rng.choice(paths)
        about = known[path]
        good = about["example"] if about["example"] is not None and rng.random() < 0.5 else None
        good = from_schema(about["request"], rng) if good is None else good
        content = as_json(good)
        if number in dripping:
            whole = post(path, content + b" " * 60)
            cut = rng.choice([0, 10, whole.index(b"\r\n\r\n") + 5])
            yield Sent("slow", [whole[:cut], *(whole[k : k + 1] for k in range(cut, cut + 60))], pause=1.0)
            continue
        draw = rng.random()
        if draw < 0.66:
            said = spoilt(good, rng) if rng.random() < 0.8 else good
            fits = jsonschema.Draft202012Validator(about["request"]).is_valid(said)
            yield Sent("body", [post(path, as_json(said))], refused=not fits, answer=about["answer"])
        elif draw < 0.74:
            broken = rng.choice([content[: rng.randrange(len(content))], content + b"\xff", b"[" * 9999, b"", b"{NaN}"])
            yield Sent("not JSON", [post(path, broken)])
        elif draw < 0.76:
            yield Sent("type", [post(path, b"a,b", "text/csv")], refused=False)  # a picture's bytes may be read
        elif draw < 0.79:
            many = as_json({name: ["a"] * (items + 1) for name in about["request"].get("properties", {"texts": 0})})
            yield Sent("many", [post(path, many)])
        elif draw < 0.81:
            large = post(path, b"[", length=body + 1 + rng.randrange(10**12))
            chunk = b"20000\r\n" + b" " * 0x20000 + b"\r\n"
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
            yield Sent("large", rng.choice([[large], [head] + [chunk] * (body // 0x20000 + 2)]))
        elif draw < 0.83:
            long = b"GET /" + b"a" * 40_000, b"GET / HTTP/1.1\r\n" + b"x: " + b"a" * 40_000
            yield Sent("headers", [rng.choice(long)])
        elif draw < 0.87:
            yield Sent(
                "no HTTP", [rng.choice([b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"no\r\n\r\n", _LENGTH])]
            )
        elif draw < 0.91:
            lost = f"{path}x" if rng.random() < 0.5 else f"/models/{rng.choice(['a', '..%2f..', '%00'])}/fill"
            yield Sent("address", [post(lost, content)])
        elif draw < 0.96:
            whole = post(path, content)
            yield Sent("cut off", [whole[: rng.randrange(1, len(whole))]], hangs_up=True)
        else:
            yield Sent("gone", [post(path, content)], hangs_up=True)


_LENGTH = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n"


@dataclass
class Outcome:
    """What came of a storm: how many of each (sort, status), and what should not have happened."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def storm(port: int, sent: Iterator[Sent]) -> Outcome:
    """Send all, some at a time; slow ones beside the others."""
    outcome, room, running = Outcome(), asyncio.Semaphore(AT_ONCE), set()

    async def one(request: Sent) -> None:
        try:
            status, body = await asyncio.wait_for(send(port, request), 90)
            outcome.counts[request.sort, status] += 1
            judge(request, status, body, outcome.wrong)
        except Exception as error:
            outcome.wrong.append(f"{request.sort}: {error!r}: {request.pieces[0][:300]!r}")
        finally:
            if request.sort != "slow":
                room.release()

    for request in sent:
        if request.sort != "slow":
            await room.acquire()
        task = asyncio.create_task(one(request))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return outcome


async def send(port: int, request: Sent) -> tuple[int, bytes]:
    """(status, body) of the answer; status 0 where the connection was closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        answered = asyncio.create_task(read(reader))
        with contextlib.suppress(ConnectionError):
            for piece in request.pieces:
                writer.write(piece)
                await writer.drain()
                if request.pause:
                    await asyncio.wait([answered], timeout=request.pause)
                if answered.done():
                    break
        if request.hangs_up:
            answered.cancel()
            return 0, b""
        return await answered
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        return int(head.split(b" ", 2)[1]), await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""


def judge(request: Sent, status: int, body: bytes, wrong: list[str]) -> None:
    """Note what should not have happened."""
    shown = f"{request.sort}: {status} {body[:300]!r} of {request.pieces[0][:500]!r}"
    if request.hangs_up or (status == 0 and len(request.pieces) > 1):
        return  # one that is closed while it still sends may not see the answer
    if status == 200 and not request.refused:
        if request.answer is not None:
            problem = next(jsonschema.Draft202012Validator(request.answer).iter_errors(json.loads(body)), None)
            if problem is not None:
                wrong.append(f"{shown}: the answer does not fit: {problem.message[:200]}")
        return
    _, _, rest = b"".join(request.pieces).partition(b" ")  # slow ones come byte by byte
    path = rest.partition(b" ")[0].decode("latin-1")
    if not 400 <= status < 500 or not of_one_form(path, body):
        wrong.append(shown)


def of_one_form(path: str, body: bytes) -> bool:
    """Whether a refusal is said as it should be at an address."""
    found = json.loads(body)
    if path.startswith("/v2/models/"):
        return set(found) == {"error"} and isinstance(found["error"], str)
    if isinstance(found["error"], str):
        return set(found) == {"error", "error_type"} and ("/tei/" in path or path in ("/embed", "/predict"))
    return set(found["error"]) == {"status", "what", "hint", "message"}
