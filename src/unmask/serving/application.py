"""The application: which address asks what of which model. No kind of data is named here."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from unmask.errors import suggest
from unmask.serving.engine import JSON, NAMED_IN_BODY, WARNING, Reply, failure
from unmask.serving.gateway import ClientDisconnect, Gateway, Receive, Scope, Send, json_body
from unmask.serving.kserve import metadata
from unmask.serving.limits import Limits, Refusal, in_words_of_kserve, in_words_of_tei
from unmask.serving.openapi import documentation, openapi
from unmask.version import __version__

SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
"""Of pages: they load nothing from elsewhere."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
TEI = ("/embed", "/predict", "/rerank")
"""Addresses of text-embeddings-inference; /models/MODEL/tei/... too."""
KSERVE, COHERE_V2 = "/v2", "/v2/rerank"
"""What addresses of KServe begin with, and the one that is not KServe's."""
BINARY = b"inference-header-content-length"
"""Header of bodies of KServe's binary extension."""
HOST = re.compile(r"[A-Za-z0-9.:\[\]-]{1,200}")
"""Names under which a server is asked that can stand in a command."""
Handler = Callable[["Request"], Awaitable[Reply]]


class Request:
    """One request: its address, its headers, and the way to its body."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self.receive = scope, receive
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.path: Mapping[str, str] = scope.get("path_params", {})


class Address:
    """An address: checks who asks, has the handler of a method answer, and says what is wrong in one form.

    Args:
        by_method: the handlers, and whether each needs a key, where the server has keys.
    """

    def __init__(self, gateway: Gateway, by_method: Mapping[str, tuple[Handler, bool]]) -> None:
        self.gateway, self.by_method = gateway, by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, method = Request(scope, receive), scope["method"]
        if method in self.by_method:
            handler, key = self.by_method[method]
            try:
                check_head(scope, self.gateway.limits)
                self.gateway.check(request.headers, key=key)
                reply = await handler(request)
            except ClientDisconnect:
                return
            except Exception as error:
                reply = failure(error)
        elif method == "OPTIONS" and cors_headers(self.gateway, request):
            reply = Reply(204, b"")
        else:
            allowed = ", ".join(sorted(self.by_method))
            reply = Reply.of(Refusal(405, f"{method[:20]} is not read here", hint=f"Expected {allowed}."))
        await respond(self.gateway, reply, request, send)


def check_head(scope: Scope, limits: Limits) -> None:
    """Refuse a head that is too large, or that names two hosts: what stands in front may read the other one."""
    headers = scope["headers"]
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(k) + len(v) + 4 for k, v in headers)
    if size > limits.headers:
        raise Refusal(431, f"headers of more than {limits.headers:,} bytes", hint="Send fewer.")
    if sum(name == b"host" for name, _ in headers) > 1:
        raise Refusal(400, "two Host headers", hint="Send one.")


def words_at(path: str) -> Callable[[Any], Any] | None:
    """How an error is said at an address, whether it is served or not; None: as everywhere."""
    if path in TEI or (path.startswith("/models/") and "/tei/" in path):
        return in_words_of_tei
    return in_words_of_kserve if path == KSERVE or (path.startswith(f"{KSERVE}/") and path != COHERE_V2) else None


async def respond(gateway: Gateway, reply: Reply, request: Request, send: Send) -> None:
    """Send a reply; an error in the words of those who are asked there."""
    if reply.status >= 400 and (words := words_at(request.scope["path"])) is not None:
        reply = replace(reply, body=json_body(words(orjson.loads(reply.body)["error"])))
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(reply.body)).encode())]
    headers = [(k, v) for k, v in headers if k.decode() not in reply.headers]
    headers += [(name.encode(), value.encode("latin-1", "replace")) for name, value in reply.headers.items()]
    headers += cors_headers(gateway, request)
    if gateway.stopping or reply.status in (408, 413, 429):  # what is left of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    body = b"" if request.scope["method"] == "HEAD" else reply.body
    await send({"type": "http.response.body", "body": body})


def cors_headers(gateway: Gateway, request: Request) -> list[tuple[bytes, bytes]]:
    """What lets a page of a named origin read the answer."""
    origin = request.headers.get(b"origin", b"")
    if not origin or not ({"*", origin.decode("latin-1")} & set(gateway.cors)):
        return []
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-headers", b"authorization, content-type"),
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-expose-headers", WARNING.encode()),
        (b"vary", b"origin"),
    ]


def application(gateway: Gateway) -> Starlette:
    """The whole application."""
    ask = _PostHandlers(gateway)
    get_paths: dict[str, tuple[Handler, bool]] = {
        "/health": (ask.health, False),
        "/ready": (ask.is_ready, False),
        "/metrics": (ask.metrics, True),
        "/models": (ask.models, True),
        "/models/{model}": (ask.model, True),
        "/models/{model}/health": (ask.health, False),
        "/models/{model}/info": (ask.info, True),
        "/info": (ask.info, True),
        "/v1/models": (ask.openai_models, True),
        "/v1/models/{model}": (ask.openai_model, True),
        "/v2": (ask.kserve_server, False),
        "/v2/health/live": (ask.health, False),
        "/v2/health/ready": (ask.is_ready, False),
        "/v2/models/{model}": (ask.kserve_model, True),
        "/v2/models/{model}/ready": (ask.is_ready, False),
        "/openapi.json": (ask.openapi, True),
        "/docs": (ask.documentation, False),
        "/": (ask.page, False),
        "/page/{file}": (ask.page, False),
    }
    posts: dict[str, Handler] = {
        "/": ask.of_model("huggingface/"),
        "/models/{model}": ask.of_model("huggingface/"),
        "/models/{model}/pipeline/{task}": ask.of_model("huggingface/{task}"),
        "/models/{model}/tei/{tei}": ask.of_model("tei/{tei}"),
        "/models/{model}/{verb}": ask.verb,
        "/v2/models/{model}/infer": ask.infer,
        "/embed": ask.dialect("tei/embed"),
        "/predict": ask.dialect("tei/predict"),
        "/rerank": ask.dialect("tei/rerank"),
        "/v1/embeddings": ask.named_in_body("openai/embeddings"),
        "/v1/rerank": ask.named_in_body("cohere/rerank"),
        COHERE_V2: ask.named_in_body("cohere/rerank"),
    }
    routes = []
    for path in dict.fromkeys([*get_paths, *posts]):
        by_method = dict.fromkeys(("GET", "HEAD"), get_paths[path]) if path in get_paths else {}
        if path in posts:
            by_method["POST"] = posts[path], True
        routes.append(Route(path, Address(gateway, by_method), methods=None))

    async def wrong(request: Any, error: Exception) -> Any:
        status = error.status_code if isinstance(error, HTTPException) else 500
        what = {404: "no such address", 405: "another method is expected"}.get(status, "the server failed")
        reply = Reply.of(Refusal(status, what, hint="All addresses stand at /docs."))

        async def send_it(scope: Scope, receive: Receive, send: Send) -> None:
            await respond(gateway, reply, Request(scope, receive), send)

        return send_it

    return Starlette(routes=routes, exception_handlers={HTTPException: wrong})


def _ok(value: Any) -> Reply:
    return Reply(200, json_body(value))


class _PostHandlers:
    """The handlers of all addresses."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._openapi: dict[str, Any] | None = None

    async def health(self, request: Request) -> Reply:
        """The process is alive."""
        return _ok({"status": "ok", "version": __version__, "live": True})

    async def is_ready(self, request: Request) -> Reply:
        """Models are loaded, requests are taken, and each model has just answered one of its own."""
        if not self.gateway.ready or self.gateway.stopping:
            why = "the server is stopping" if self.gateway.stopping else "models are being loaded"
            raise Refusal(503, why, hint="Ask again later, or another server.", wait=1)
        await self.gateway.probe()
        if "model" in request.path:
            self._known(request.path["model"])
            return _ok({"name": request.path["model"], "ready": True})
        return _ok({"status": "ready", "models": list(self.gateway.models), "live": True, "ready": True})

    async def kserve_server(self, request: Request) -> Reply:
        return _ok({"name": "unmask", "version": __version__, "extensions": []})

    async def kserve_model(self, request: Request) -> Reply:
        return _ok(metadata(request.path["model"], self._known(request.path["model"])))

    async def infer(self, request: Request) -> Reply:
        """KServe's V2, in JSON."""
        if BINARY in request.headers:
            what = "binary tensor data"
            raise Refusal(400, what, hint="Send JSON: binary_data=False in tritonclient and kserve.")
        self._known(request.path["model"])
        return await self._ask(request.path["model"], "v2/infer", request)

    async def metrics(self, request: Request) -> Reply:
        """Counts, for Prometheus."""
        text = self.gateway.metrics.text().encode()
        return Reply(200, text, {"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def models(self, request: Request) -> Reply:
        """What is served."""
        described = {
            name: {"kind": m["kind"], "task": m["task"], "verbs": list(m["verbs"]), "about": m["about"]}
            for name, m in self.gateway.models.items()
        }
        return _ok({"models": described})

    async def model(self, request: Request) -> Reply:
        """All of one model: verbs, shapes, columns or labels."""
        return _ok({"name": request.path["model"], **self._known(request.path["model"])})

    async def info(self, request: Request) -> Reply:
        """What text-embeddings-inference and `InferenceClient.get_endpoint_info` ask for."""
        name = request.path.get("model") or self._only()
        model = self._known(name)
        about, limits = model["about"], self.gateway.limits
        return _ok(
            {
                "model_id": name,
                "model_dtype": about.get("precision", "fp32"),
                "model_type": {model["task"] or model["kind"]: {}},
                "max_input_length": about.get("slots"),
                "max_batch_tokens": limits.slots,
                "max_client_batch_size": limits.items,
                "max_concurrent_requests": limits.waiting,
                "version": __version__,
            }
        )

    async def openai_models(self, request: Request) -> Reply:
        """The models, as OpenAI lists them."""
        return _ok({"object": "list", "data": [self._openai(name) for name in self.gateway.models]})

    async def openai_model(self, request: Request) -> Reply:
        self._known(request.path["model"])
        return _ok(self._openai(request.path["model"]))

    def _openai(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": int(self.gateway.metrics.started), "owned_by": "unmask"}

    async def openapi(self, request: Request) -> Reply:
        """All addresses and shapes, as OpenAPI."""
        if self._openapi is None:
            self._openapi = openapi(self.gateway.models)
        return _ok(self._openapi)

    async def documentation(self, request: Request) -> Reply:
        """The same for people."""
        if self.gateway.keys is not None:
            self.gateway.check(request.headers)
        given = request.headers.get(b"host", b"").decode("latin-1")
        named = {"host": given} if HOST.fullmatch(given) else {}
        page = documentation(openapi(self.gateway.models), key=self.gateway.keys is not None, **named)
        return Reply(200, page.encode(), _page_headers("docs.html"))

    async def page(self, request: Request) -> Reply:
        """The page where one hides and fills by hand."""
        name = request.path.get("file", "index.html")
        found = _pages().get(name)
        if found is None:
            raise Refusal(404, "no such page", hint="The page is at /.")
        return Reply(200, found, _page_headers(name))

    def of_model(self, action: str) -> Handler:
        """A dialect of the model that the address names, or of the only one; the address may hold the task."""

        async def handler(request: Request) -> Reply:
            name = request.path.get("model") or self._only()
            family, _, task = action.format_map(request.path).partition("/")
            known = self._known(name)["dialects"]
            if f"{family}/{task}" not in known:
                alike = [a.partition("/")[2] for a in known if a.startswith(f"{family}/") and not a.endswith("/")]
                what = f"{name} does not answer {task[:60] or family}"
                raise Refusal(404, what, hint=suggest(task[:60], alike or known))
            return await self._ask(name, f"{family}/{task}", request)

        return handler

    async def verb(self, request: Request) -> Reply:
        """A verb by its name."""
        name, verb = request.path["model"], request.path["verb"]
        known = self._known(name)["verbs"]
        if verb not in known:
            raise Refusal(404, f"{name} has no {verb[:60]!r}", hint=suggest(verb[:60], known))
        return await self._ask(name, verb, request)

    def dialect(self, action: str) -> Handler:
        """A dialect whose requests name no model: it is the only one that speaks it."""

        async def handler(request: Request) -> Reply:
            able = [name for name, model in self.gateway.models.items() if action in model["dialects"]]
            if len(able) != 1:
                there = ", ".join(f"/models/{name}/{action}" for name in able[:10])
                what = f"{len(able) or 'no'} models here answer {action}"
                raise Refusal(400 if able else 404, what, hint=f"Ask one of {there}." if able else "See /models.")
            return await self._ask(able[0], action, request)

        return handler

    def named_in_body(self, action: str) -> Handler:
        """A dialect whose requests name the model in their body."""

        async def handler(request: Request) -> Reply:
            return await self._ask(NAMED_IN_BODY, action, request)

        return handler

    def _known(self, name: str) -> Mapping[str, Any]:
        if name not in self.gateway.models:
            raise Refusal(404, f"no model {name[:60]!r}", hint=suggest(name[:60], self.gateway.models))
        return self.gateway.models[name]

    def _only(self) -> str:
        names = list(self.gateway.models)
        if len(names) > 1:
            raise Refusal(400, f"{len(names)} models are served", hint=f"Name one: /models/{names[0]}, ...")
        return names[0]

    async def _ask(self, name: str, action: str, request: Request) -> Reply:
        return await self.gateway.answer(name, action, request.receive, request.headers)


def _page_headers(name: str) -> dict[str, str]:
    kind = TYPES[name[name.rindex(".") :]]
    return {"content-type": kind, "cache-control": "no-cache", **{k.decode(): v.decode() for k, v in SAFE}}


def _pages() -> dict[str, bytes]:
    folder = files("unmask.serving") / "page"
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name.endswith(tuple(TYPES))}
