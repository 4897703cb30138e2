"""Every code block of the pages runs: those of quick pages here, with small models; those of tutorials, whole, by
`make docs-slow`."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shutil
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_files
import pytest
import yaml

from commands import exit_code
from doc_blocks import PARSED, ROOT, RUN, SHOWN, Block, Page, all_pages, commands
from unmask.modalities.events.recipes import EventSettings, OutcomeSettings
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.segment.settings import SegmenterSettings
from unmask.modalities.table.imputer import MaskedImputer
from unmask.modalities.table.recipes import TableSettings
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.training.settings import TrainSettings

PAGES = {page.path: page for page in all_pages()}
WRITE = "UNMASK_DOCS_WRITE"
"""Set to 1, `make docs-slow` writes what was printed, and the pictures that were made, into the tutorials."""
SHARED = Path(os.environ.get("UNMASK_SHARED", ROOT.parent / "shared")) / "data"
SMALL: dict[type, dict[str, Any]] = {
    TextSettings: {
        "width": 32,
        "layers": 1,
        "heads": 2,
        "slots": 64,
        "vocabulary": 300,
        "train": TrainSettings(steps=3, batch_slots=512, precision="fp32"),
    },
    TaskSettings: {"epochs": None, "steps": 2, "start": "plain"},
    TableSettings: {"steps": 0, "members": 2},
    MaskedImputer: {"steps": 0, "members": 2},
    ImageSettings: {
        "width": 32,
        "layers": 1,
        "heads": 2,
        "patch": 3,
        "batch": 16,
        "train": TrainSettings(steps=3, precision="fp32"),
    },
    ClassifierSettings: {"epochs": 1},
    SegmenterSettings: {"train": TrainSettings(steps=3, precision="fp32")},
    EventSettings: {"width": 32, "slots": 64, "train": TrainSettings(steps=3, batch_slots=512, precision="fp32")},
    OutcomeSettings: {"members": 1, "epochs": 1, "curve": False, "baselines": False},
}
"""Defaults of the settings while a quick page runs: the code of the page stays as it is, and its models are small."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, values in SMALL.items():
        made = inspect.unwrap(settings.__init__)
        monkeypatch.setattr(made, "__kwdefaults__", made.__kwdefaults__ | values)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of a function of page_files -> the folder that it filled."""
    return {}


def copied(page: Page, made: dict[str, Path], factory: pytest.TempPathFactory, where: Path) -> None:
    """The files that a page asks for, in `where`."""
    for name in page.files:
        if name not in made:
            made[name] = factory.mktemp(name)
            getattr(page_files, name)(made[name])
        shutil.copytree(made[name], where, dirs_exist_ok=True)


def run(block: Block, names: dict[str, Any], page: Page, given: set[str]) -> None:
    """Run one block.

    Args:
        given: models of page_files that the page has not made itself: where it does, they go.

    Raises:
        AssertionError: it failed, with the page and line.
    """
    if block.name:
        Path(block.name).write_text(block.code)
    place = f"{page.path}:{block.line}"
    if block.language == "yaml":
        return
    if block.language == "python":
        try:
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(ROOT / page.path), "exec"), names)
        except Exception:
            raise AssertionError(f"{place}\n{traceback.format_exc()}") from None
        return
    for words in commands(block.code):
        assert words[0] == "unmask", f"{place}: only unmask is run here: {words}; say why it is not run"
        if words[1] == "pretrain" and "--resume" not in words and (out := words[words.index("--out") + 1]) in given:
            shutil.rmtree(out)
            given.discard(out)
        assert exit_code(*at_once(words[1:], page)) == 0, f"{place}: {' '.join(words)}"


def at_once(words: list[str], page: Page) -> list[str]:
    """A command of a quick page without --minutes: it takes the few steps of `SMALL`."""
    if page.tutorial or "--minutes" not in words:
        return words
    at = words.index("--minutes")
    return words[:at] + words[at + 2 :]


@contextlib.contextmanager
def on_page(page: Page, where: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the blocks of a page share, in a folder of its own."""
    monkeypatch.chdir(where)
    monkeypatch.syspath_prepend(str(where))
    yield {"__name__": "page"}


@pytest.mark.parametrize("path", [path for path, page in PAGES.items() if not page.tutorial])
def test_the_blocks_of_a_page_run(path, small, made, tmp_path, tmp_path_factory, monkeypatch, capsys):
    run_page(
        PAGES[path],
        [b for b in PAGES[path].blocks if b.runs and not b.slow],
        made,
        tmp_path,
        tmp_path_factory,
        monkeypatch,
    )


@pytest.mark.docs
@pytest.mark.parametrize("path", [path for path, page in PAGES.items() if any(b.slow for b in page.blocks)])
def test_the_slow_blocks_of_a_page_run(path, small, made, tmp_path, tmp_path_factory, monkeypatch, capsys):
    run_page(PAGES[path], [b for b in PAGES[path].blocks if b.runs], made, tmp_path, tmp_path_factory, monkeypatch)


def run_page(
    page: Page,
    blocks: list[Block],
    made: dict[str, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run blocks of a quick page in a folder with its files."""
    copied(page, made, tmp_path_factory, tmp_path)
    given = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    with on_page(page, tmp_path, monkeypatch) as names:
        for block in blocks:
            with contextlib.redirect_stdout(io.StringIO()) if page.exact else contextlib.nullcontext() as out:
                run(block, names, page, given)
            if out is not None and block.output:
                assert out.getvalue() == page.text[slice(*block.output)], f"{page.path}:{block.line}"


@pytest.mark.docs
@pytest.mark.parametrize("path", [path for path, page in PAGES.items() if page.tutorial])
def test_the_blocks_of_a_tutorial_run(path, tmp_path, monkeypatch):
    page = PAGES[path]
    for source, name in page.data:
        if not (SHARED / source).exists():
            pytest.skip(f"{source} is not in {SHARED}: UNMASK_SHARED says where the shared data is")
        (tmp_path / name).symlink_to(SHARED / source)
    printed: list[tuple[Block, str]] = []
    with on_page(page, tmp_path, monkeypatch) as names:
        for block in page.blocks:
            if block.runs:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    run(block, names, page, set())
                printed.append((block, out.getvalue()))
    assert all(out.strip() for block, out in printed if block.output)
    if os.environ.get(WRITE) == "1":
        write(page, printed, tmp_path)


def write(page: Page, printed: list[tuple[Block, str]], made: Path) -> None:
    """Put what was printed into the page, and the pictures that it shows into docs/pictures."""
    text = page.text
    for block, out in reversed(printed):
        if block.output:
            start, end = block.output
            text = text[:start] + "\n".join(line.rstrip() for line in out.strip("\n").split("\n")) + "\n" + text[end:]
    (ROOT / page.path).write_text(text)
    for name in re.findall(r"pictures/([\w-]+\.(?:png|svg))", text):
        if (made / name).exists():
            shutil.copy(made / name, ROOT / "docs" / "pictures" / name)


def test_every_block_says_what_it_is():
    """No block is left out unannounced: each runs, or is read, or is an output, or says why it is not run."""
    for page in PAGES.values():
        for block in page.blocks:
            place = f"{page.path}:{block.line}"
            assert block.language in (*RUN, *PARSED, *SHOWN), f"{place}: {block.language or 'no language'}"
            if block.language == "toml":
                tomllib.loads(block.code)
            if block.language == "yaml":
                yaml.safe_load(block.code)
            if block.language == "r":
                assert block.reason, f"{place}: say why it is not run"
