"""unmask inspect MODEL"""

from __future__ import annotations

from unmask.cli import options


def inspect(model: options.Model, json_: options.Json = False) -> None:
    """Parameters, context, FLOPs per token, memory by precision."""
    from unmask.cli.common import Output
    from unmask.registry import load

    output = Output(json_)
    loaded = load(model, precision="fp32")
    found = loaded.inspect()
    lines = []
    for name, value in found.items():
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            lines += [f"{name if k == 0 else '':28}{v}" for k, v in enumerate(value)]
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {entry}" for key, entry in value.items()) or "none"
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else value
        lines.append(f"{name:28}{shown}")
    output.write(found, lines)
