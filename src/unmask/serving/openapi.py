"""All addresses and shapes of a server: as OpenAPI, and as a page for people that loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from unmask.serving.limits import Limits
from unmask.serving.shapes import Field, Number, Open, Text
from unmask.version import __version__

STATUSES = {
    400: "What was sent is not right; the error says where.",
    401: "No key, or one that is not known.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests are waiting; Retry-After says when to ask again.",
    504: "No answer in time.",
}
_WHAT = Open(status=Field(Number(whole=True)), what=Field(Text()), message=Field(Text()), hint=Field(Text()))
ERROR = Open(error=Field(_WHAT))
PAGES = {
    "/health": "The process is alive.",
    "/ready": "Each model answers, or is at work (200); one does not, or the server is stopping (503).",
    "/metrics": "Counts, in the text format of Prometheus.",
    "/models": "What is served.",
    "/v1/models": "The same, as OpenAI lists it.",
    "/v2/health/live": "As /health, for KServe.",
    "/v2/health/ready": "As /ready, for KServe; /v2/models/MODEL/ready too.",
    "/v2": "What the server is, for KServe; /v2/models/MODEL says what a model takes and gives.",
    "/info": "What text-embeddings-inference says of itself; with several models /models/MODEL/info.",
}


def openapi(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The OpenAPI description of what some models answer.

    Args:
        models: name -> what `Served.described` says.
    """
    paths: dict[str, Any] = {
        path: {"get": {"summary": about, "responses": {"200": {"description": about}}}} for path, about in PAGES.items()
    }
    for name, model in models.items():
        for verb, operation in model["verbs"].items():
            paths[f"/models/{name}/{verb}"] = _post(operation, name)
        for action, operation in model["dialects"].items():
            error = {"tei": "TeiError", "v2": "V2Error"}.get(action.partition("/")[0], "Error")
            paths[_address(name, action)] = _post(operation, name, error)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "unmask",
            "version": __version__,
            "description": f"Masked prediction. At most {Limits().body >> 20} MiB and {Limits().items:,} texts, rows, "
            "pictures or patients per request, unless the server was told otherwise.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": ERROR,
                "TeiError": Open(error=Field(Text()), error_type=Field(Text())),
                "V2Error": Open(error=Field(Text())),
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _address(name: str, action: str) -> str:
    dialect, _, task = action.partition("/")
    if dialect in ("openai", "cohere"):
        return f"/v1/{task}"
    if dialect == "huggingface":
        return f"/models/{name}/pipeline/{task}" if task else f"/models/{name}"
    return f"/v2/models/{name}/infer" if dialect == "v2" else f"/models/{name}/{action}"


def _post(operation: Mapping[str, Any], tag: str, error: str = "Error") -> dict[str, Any]:
    content: dict[str, Any] = {"schema": operation["request"]}
    if operation["example"] is not None:
        content["example"] = operation["example"] | ({"model": tag} if "model" in operation["example"] else {})
    failed = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    body = {"application/json": content} | ({"*/*": {"schema": {"type": "string"}}} if operation["raw"] else {})
    return {
        "post": {
            "summary": operation["about"],
            "tags": [tag],
            "requestBody": {"required": True, "content": body},
            "responses": {
                "200": {"description": "The answer.", "content": {"application/json": {"schema": operation["answer"]}}},
                **{str(status): {"description": about, "content": failed} for status, about in STATUSES.items()},
            },
        }
    }


def documentation(described: Mapping[str, Any], *, host: str = "localhost:8765", key: bool = False) -> str:
    """An OpenAPI description as a page of HTML, without scripts.

    Args:
        host: that the calls are sent to.
        key: whether they need one.
    """
    from jinja2 import Environment, PackageLoader

    def text(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    pages = Environment(
        loader=PackageLoader("unmask.serving", "page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = pages.get_template("docs.html.jinja")
    return page.render(described=described, host=host, key=key, text=text, kind=_kind)


def _kind(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " | ".join(field["enum"])
    if "anyOf" in field:
        return " | ".join(_kind(one) for one in field["anyOf"] if one.get("type") != "null")
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))
