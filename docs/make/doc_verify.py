"""Remake figures of the pages, and say how far they moved.

python docs/make/doc_verify.py [NAME...]        see --help; `make verify` remakes the quick ones
"""

from __future__ import annotations

import sys

import typer

from unmask.cli import options
from unmask.cli.common import Output
from unmask.errors import UserError, with_flags
from verify import provenance, remake
from verify.result import read


def verify(
    names: list[str] = typer.Argument(None, help="Results to remake; default all of them (see --list)."),
    quick: bool = typer.Option(False, "--quick", help="Only those that take a minute or two."),
    list_: bool = typer.Option(
        False, "--list", help="What there is, when it was measured, and what is older than its code."
    ),
    write: bool = typer.Option(False, "--write", help="Replace the files of docs/results, and draw the pages' tables."),
    draw: bool = typer.Option(False, "--draw", help="Only draw the pages' tables from the files; nothing is measured."),
    root: str = typer.Option(None, help="The checkout; default the one around the current folder."),
    json_: options.Json = False,
) -> None:
    """Remake figures of the documentation and say how far they moved. Ends with 0 where all lie in the intervals that
    are recorded, 1 where one does not. From a checkout of the source."""
    output, place = Output(json_), provenance.root_of(root)
    if list_ + draw + (write or quick) > 1:
        raise UserError("--list, --draw and remaking are asked for together", hint="Give one of them.")
    if list_:
        listed = remake.listed(place)
        output.write({"results": listed}, remake.list_lines(listed))
        return
    if draw:
        changed = [str(path.relative_to(place)) for path in remake.draw_pages(place)]
        output.write(
            {"changed": changed}, [f"drawn: {name}" for name in changed] or ["every table is as its file has it"]
        )
        return
    results = remake.chosen(names or [], quick=quick)
    found, written = [], []
    for result in results:
        record = remake.remade(result, place, say=lambda line: print(line, file=sys.stderr, flush=True))
        found += remake.moved(read(place, result.name), record)
        if write:
            written.append(str(record.write(place).relative_to(place)))
    outside = [m for m in found if m.within is False]
    lines = remake.moved_lines(found)
    lines.append(f"{len(found)} figures of {len(results)} results remade, {len(outside)} outside the recorded interval")
    if write:
        drawn = [str(path.relative_to(place)) for path in remake.draw_pages(place)]
        lines += [f"written: {name}" for name in (*written, *drawn)]
    shown = [{**vars(m), "by": m.by} for m in found]
    output.write({"figures": shown, "outside": len(outside), "written": written}, lines)
    if outside and not write:
        raise typer.Exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Run the command: a person's mistake is one message on stderr and exit code 2."""
    app = typer.Typer(add_completion=False)
    app.command()(verify)
    try:
        with with_flags():
            app(args=arguments, prog_name="doc_verify.py")
    except UserError as error:
        print(f"doc_verify.py: {error}", file=sys.stderr)
        sys.exit(UserError.exit_code)


if __name__ == "__main__":
    main()
