"""unmask recommend"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def recommend(
    languages: str | None = typer.Option(None, help="ISO codes with commas, such as en,de."),
    context: int | None = typer.Option(None, help="Tokens a text may have."),
    size: str | None = typer.Option(
        None, help="tiny, small, base or large: at most 30, 100, 310 or 1000 million parameters."
    ),
    domain: str | None = typer.Option(None, help="general, biomedical, clinical, scientific, legal, finance, code."),
    head: bool = typer.Option(True, help="fill and score must work without training."),
    ask: bool = typer.Option(False, "--ask", help="Ask for what is not given."),
    json_: options.Json = False,
) -> None:
    """Which family and checkpoint to start from, with the reasons and the memory."""
    from unmask.cli.common import Output
    from unmask.families import catalogue

    def answer(given: Any, question: str, default: Any) -> Any:
        if given is not None:
            return given
        return typer.prompt(question, default=default, type=type(default)) if ask and not json_ else default

    found = catalogue.recommend(
        languages=tuple(answer(languages, "Languages (ISO codes)", "en").replace(" ", "").split(",")),
        context=answer(context, "Longest text in tokens", 512),
        size=answer(size, f"Size ({', '.join(catalogue.SIZES)})", "base"),
        domain=answer(domain, f"Domain ({', '.join(catalogue.DOMAINS)})", "general"),
        head=head,
    )
    # A wish that not even the first meets is said first.
    notes = list(found[0]["unmet"])
    lines = [f"not met: {note}" for note in notes]
    for c in found:
        memory = ", ".join(f"{name} {mb} MB" for name, mb in c["memory_mb"].items())
        lines += [f"{c['name']}  ({c['family']}, {c['parameters'] / 1e6:.0f} M parameters: {memory})"]
        lines += [f"    {reason}" for reason in c["reasons"]]
        lines += [f"    source: {c['source']}"]
    Output(json_).write({"results": found, "unmet": notes}, lines)
