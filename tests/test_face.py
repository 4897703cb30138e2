"""The public face: what `unmask` and the modules of its modalities offer, and that they cost nothing until they are
used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_folders
import unmask
from unmask.errors import UserError

MODULES = ("text", "table", "images", "events")
OLD = (
    "MaskedImputer MultipleImputation TableModel TextModel UserError __version__ adapt finetune load predict pretrain "
    "zero_shot"
)


@pytest.mark.parametrize("module", ["", *MODULES])
def test_every_public_name_is_there(module):
    face = getattr(unmask, module) if module else unmask
    for name in dir(face):
        assert getattr(face, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        face.no_such_name  # noqa: B018


def test_the_modules_of_the_modalities_are_alike():
    for module in MODULES:
        assert {"Model", "Settings", "load", "pretrain"} <= set(dir(getattr(unmask, module)))
    assert unmask.text.Model is unmask.TextModel


def test_names_of_before_are_kept():
    assert set(OLD.split()) <= set(dir(unmask))


@pytest.mark.parametrize("module", ["__init__", *MODULES])
def test_editors_are_told_the_same_names(module):
    tree = ast.parse((Path(unmask.__file__).parent / f"{module}.py").read_text())
    (told,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = {alias.asname for node in told.body if isinstance(node, ast.ImportFrom) for alias in node.names} - {None}
    names |= {target.id for node in told.body if isinstance(node, ast.Assign) for target in node.targets}
    face = unmask if module == "__init__" else getattr(unmask, module)
    assert names | {"load", "__version__"} == set(dir(face)) | {"__version__"}


def test_nothing_heavy_is_imported_before_it_is_used():
    code = (
        "import sys, unmask; unmask.text, unmask.table, unmask.images, unmask.events; dir(unmask.text); print('torch' "
        "in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_load_checks_the_kind_that_was_asked_for(tmp_path):
    model = tiny_folders.folder(tmp_path / "m")
    assert isinstance(unmask.load(model, kind="text"), unmask.TextModel)
    with pytest.raises(UserError, match="a model of text") as caught:
        unmask.load(model, kind="table")
    assert "kind='table'" in str(caught.value)
