"""`unmask serve` under load, beside infinity (embeddings) or a FastAPI wrapper of transformers' pipeline (fill-mask).

    python benchmarks/serve.py MODEL --peer PYTHON                    # embeddings: infinity with torch and optimum int8
    python benchmarks/serve.py MODEL --peer PYTHON --task fill-mask   # a masked model

PYTHON is that of an environment of its own: pip install 'infinity-emb[torch,server,optimum]' (with transformers 4 and
fastapi, which the wrapper needs too). Without --peer ours runs alone.

The same texts (docstrings of installed packages, one per request) go to all servers, which are measured in turns on the
same cores; those that wait are stopped (SIGSTOP). Closed load: so many clients, each asks again once it is answered.
Open load: requests arrive at random times, at a share of the rate that the server reached in closed load. Printed are
tokens/s, p50 and p99 of the answers, seconds from the start to the first answer, memory, and the smallest cosine of
embeddings to those of ours in fp32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from beside import processor

WRAPPER = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

fill = pipeline("fill-mask", model=sys.argv[1], device="cpu")
app = FastAPI()


class Body(BaseModel):
    inputs: str


@app.post("/fill")
def answer(body: Body):
    return fill(body.inputs, top_k=5)


@app.get("/ready")
def ready():
    return {"status": "ready"}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


@dataclass
class Rival:
    """A server: how it is started, where it is asked, and what was measured."""

    name: str
    command: list[str]
    path: str
    ready: str
    port: int
    body: object = None
    first: float = 0.0
    megabytes: float = 0.0
    cosine: float | None = None
    found: dict[str, list[dict]] = field(default_factory=dict)
    process: subprocess.Popen | None = None

    def start(self, text: str, patience: float) -> None:
        """Start it; seconds until its first answer."""
        began = time.perf_counter()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self.command, start_new_session=True, **quiet)
        while True:
            if self.process.poll() is not None or time.perf_counter() - began > patience:
                raise SystemExit(f"{self.name} did not start: {' '.join(self.command)}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.ready}", timeout=2).read()
                ask(self, text)
                break
            except OSError:
                time.sleep(0.01)
        self.first = time.perf_counter() - began

    def family(self) -> list[psutil.Process]:
        assert self.process is not None
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def processor(self) -> float:
        """Processor seconds that it has taken: the fairer number on a busy machine."""
        return sum(sum(one.cpu_times()[:2]) for one in self.family())

    def send(self, number: int) -> None:
        for one in self.family():
            one.send_signal(number)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()


def ask(rival: Rival, text: str) -> object:
    """One answer, as JSON."""
    content = json.dumps(rival.body(text)).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{rival.port}{rival.path}", content, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Client:
    """One connection that stays open, with as little work per request as can be."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def post(self, content: bytes) -> int:
        head = f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(answer.split(b" ", 2)[1])


async def closed(rival: Rival, contents: list[bytes], tokens: list[int], clients: int, seconds: float) -> dict:
    """So many clients, each asking again once it is answered."""
    taken: list[tuple[float, int]] = []
    statuses: set[int] = set()
    until = time.perf_counter() + seconds

    async def one(number: int) -> None:
        place = number * 7919
        async with Client(rival.port, rival.path) as client:
            while (began := time.perf_counter()) < until:
                place = (place + 1) % len(contents)
                statuses.add(await client.post(contents[place]))
                taken.append((time.perf_counter() - began, tokens[place]))

    began = time.perf_counter()
    await asyncio.gather(*(one(n) for n in range(clients)))
    return told(taken, statuses, time.perf_counter() - began)


async def opened(rival: Rival, contents: list[bytes], tokens: list[int], rate: float, seconds: float) -> dict:
    """Requests at random times, whether or not others are answered; seconds count from when each was due."""
    rng, taken, statuses = random.Random(0), [], set()
    free: list[Client] = []

    async def one(place: int, due: float) -> None:
        client = free.pop() if free else await Client(rival.port, rival.path).__aenter__()
        statuses.add(await client.post(contents[place]))
        free.append(client)
        taken.append((time.perf_counter() - due, tokens[place]))

    began = due = time.perf_counter()
    running = []
    while due < began + seconds:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        running.append(asyncio.create_task(one(rng.randrange(len(contents)), due)))
    await asyncio.gather(*running)
    for client in free:
        await client.__aexit__()
    return told(taken, statuses, time.perf_counter() - began) | {"rate": round(rate, 1)}


def told(taken: list[tuple[float, int]], statuses: set[int], seconds: float) -> dict:
    spent = sorted(t for t, _ in taken)
    return {
        "requests": len(taken),
        "tokens": sum(n for _, n in taken),
        "tokens_per_second": round(sum(n for _, n in taken) / seconds),
        "p50_ms": round(1000 * spent[len(spent) // 2], 1),
        "p99_ms": round(1000 * spent[min(len(spent) - 1, int(len(spent) * 0.99))], 1),
        "statuses": sorted(statuses),
    }


def texts_of(tokenizer, count: int, longest: int, mask: str | None) -> tuple[list[str], list[int]]:
    """Docstrings of installed packages of 8 tokens or more, cut to whole words; with a blank for fill-mask."""
    from unmask.modalities.text.docstrings import docstrings

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


def rivals(arguments: argparse.Namespace, folder: Path) -> list[Rival]:
    """Ours, and those of the other environment."""
    model, peer = str(Path(arguments.model).resolve()), arguments.peer
    fills = arguments.task == "fill-mask"
    out = []
    for precision in arguments.precision:
        port = free_port()
        ours = [sys.executable, "-m", "unmask", "serve", f"m={model}", "--port", str(port), "--precision", precision]
        path = "/models/m/pipeline/fill-mask" if fills else "/v1/embeddings"
        made = Rival(f"unmask {precision}", [*ours, *arguments.ours.split()], path, "/ready", port)
        made.body = (lambda text: {"inputs": text}) if fills else (lambda text: {"model": "m", "input": text})
        out.append(made)
    if peer and fills:
        port, script = free_port(), folder / "wrapper.py"
        script.write_text(WRAPPER)
        made = Rival("pipeline + FastAPI", [peer, str(script), model, str(port)], "/fill", "/ready", port)
        made.body = lambda text: {"inputs": text}
        out.append(made)
    for engine in ("torch", "optimum") if peer and not fills else ():
        port = free_port()
        command = [peer, "-m", "infinity_emb.infinity_server", "v2", "--model-id", model, "--port", str(port)]
        command += ["--engine", engine, "--device", "cpu", "--no-bettertransformer", "--host", "127.0.0.1"]
        command += ["--served-model-name", "m", "--no-model-warmup"]
        made = Rival(f"infinity {engine}", command, "/embeddings", "/health", port)
        made.body = lambda text: {"model": "m", "input": [text]}
        out.append(made)
    return out


def compare(rival: Rival, model, texts: list[str]) -> float:
    """Smallest cosine of a rival's embeddings to those of ours in fp32."""
    own = model.embed(texts, normalise=True)
    found = np.array([ask(rival, text)["data"][0]["embedding"] for text in texts], np.float32)
    return float(((found / np.linalg.norm(found, axis=1, keepdims=True)) * own).sum(1).min())


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with it
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--peer", help="python of the environment with infinity (or fastapi and transformers)")
    parser.add_argument("--task", choices=("embed", "fill-mask"), default="embed")
    parser.add_argument("--precision", nargs="+", default=["auto"])
    parser.add_argument("--ours", default="", help="further options of `unmask serve`, in one string")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--open", type=float, default=0.7, help="share of the closed rate for open load; 0: none")
    parser.add_argument("--longest", type=int, default=128, help="tokens of a text")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for a server to start")
    parser.add_argument("--out", help="where all figures go, .json")
    arguments = parser.parse_args()

    import unmask

    own = unmask.load(arguments.model, precision="fp32")
    mask = own.tokenizer.mask_token if arguments.task == "fill-mask" else None
    texts, tokens = texts_of(own.tokenizer, 2000, arguments.longest, mask)
    about = {"texts": len(texts), "tokens_per_text": round(statistics.mean(tokens), 1), **processor()}
    print(json.dumps(about))
    with tempfile.TemporaryDirectory() as folder:
        all_of = rivals(arguments, Path(folder))
        try:
            for rival in all_of:
                rival.start(texts[0], arguments.patience)
                if arguments.task == "embed":
                    rival.cosine = compare(rival, own, texts[:64])
                rival.send(signal.SIGSTOP)
            del own
            for _ in range(arguments.rounds):
                for rival in all_of:
                    measure(rival, texts, tokens, arguments)
        finally:
            for rival in all_of:
                rival.end()
    show(all_of)
    if arguments.out:
        kept = [{"name": r.name, "first_answer_s": r.first, "megabytes": r.megabytes, "runs": r.found} for r in all_of]
        Path(arguments.out).write_text(json.dumps({"about": about, "servers": kept}, indent=1))


def measure(rival: Rival, texts: list[str], tokens: list[int], arguments: argparse.Namespace) -> None:
    """All loads once; the others are stopped meanwhile."""
    contents = [json.dumps(rival.body(text)).encode() for text in texts]
    rival.send(signal.SIGCONT)
    asyncio.run(closed(rival, contents, tokens, 8, min(2.0, arguments.seconds)))  # warm
    for clients in map(int, arguments.clients.split(",")):
        before = rival.processor()
        made = asyncio.run(closed(rival, contents, tokens, clients, arguments.seconds))
        made["tokens_per_processor_second"] = round(made["tokens"] / max(rival.processor() - before, 1e-9))
        rival.found.setdefault(f"closed {clients}", []).append(made)
        print(f"{rival.name:22} closed {clients:3d}  {made}", flush=True)
    if arguments.open:
        best = max(run["requests"] for runs in rival.found.values() for run in runs) / arguments.seconds
        made = asyncio.run(opened(rival, contents, tokens, arguments.open * best, arguments.seconds))
        rival.found.setdefault("open", []).append(made)
        print(f"{rival.name:22} open        {made}", flush=True)
    rival.megabytes = round(sum(p.memory_info().rss for p in rival.family()) / 1e6)
    rival.send(signal.SIGSTOP)


def show(all_of: list[Rival]) -> None:
    """Medians over the rounds, and ratios to the first of ours."""
    print(f"\n{'server':22} {'load':10} {'tokens/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'per CPU s':>10}   to the first")
    first = all_of[0]
    for rival in all_of:
        for load, runs in rival.found.items():
            middle = {k: statistics.median(r[k] for r in runs) for k in ("tokens_per_second", "p50_ms", "p99_ms")}
            spent = statistics.median(r.get("tokens_per_processor_second", 0) for r in runs)
            base = statistics.median(r["tokens_per_second"] for r in first.found[load])
            ratio = f"{base / max(middle['tokens_per_second'], 1e-9):.2f}x slower" if rival is not first else ""
            print(
                f"{rival.name:22} {load:10} {middle['tokens_per_second']:9.0f} {middle['p50_ms']:8.1f} "
                f"{middle['p99_ms']:8.1f} {spent:10.0f}   {ratio}"
            )
        cosine = "" if rival.cosine is None else f", smallest cosine {rival.cosine:.5f}"
        print(f"{'':22} first answer {rival.first:.2f} s, {rival.megabytes:.0f} MB{cosine}")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
