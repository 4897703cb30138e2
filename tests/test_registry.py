"""Modalities are found by entry points; a model folder says which it is of."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from packages import on_path, write_metadata
from unmask import registry
from unmask.errors import UserError
from unmask.modality import Modality
from unmask.plugins import resolve
from unmask.registry import kind_of

ROOT = Path(__file__).parents[1]


def test_a_folder_without_a_word_is_text(tmp_path):
    assert kind_of(tmp_path) == "text"
    assert kind_of("somebody/some-model") == "text"


def test_the_folder_says_its_kind(tmp_path):
    (tmp_path / "unmask.json").write_text('{"kind": "images"}')
    assert kind_of(tmp_path) == "images"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "vit_mae"}, "images"),
        ({"architecture": "deit_small"}, "images"),
        ({"model_type": "bert"}, "text"),
    ],
)
def test_published_folders_are_known_by_their_config(tmp_path, config, kind):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kind_of(tmp_path) == kind


def test_bare_weights_are_of_images(tmp_path):
    (tmp_path / "w.pth").write_bytes(b"")
    assert kind_of(tmp_path / "w.pth") == "images"


@pytest.mark.parametrize(("content", "message"), [('{"kind": "imags"}', "'imags'"), ("{", "not JSON")])
def test_what_is_wrong_is_named(tmp_path, content, message):
    (tmp_path / "unmask.json").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        kind_of(tmp_path)
    assert "unmask.json" in str(caught.value)


def test_our_own_modalities_are_announced_as_others_are():
    announced = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        registry.MODALITIES.group
    ]
    assert announced == registry.MODALITIES.built_in
    for name, reference in announced.items():
        assert resolve(reference).name == name


@pytest.mark.parametrize("name", registry.MODALITIES.built_in)
def test_every_reference_of_a_modality_leads_somewhere(name):
    one = registry.modality(name)
    for command in one.commands:
        assert all(callable(resolve(case.run)) for case in one.cases(command).values())
    for reference in (one.load, one.demo, *one.tools.values()):
        assert callable(resolve(reference))


@pytest.fixture
def installed(tmp_path):
    """A function that announces modalities, as installed packages do."""

    def install(package: str, code: str, **points: str) -> None:
        (tmp_path / f"{package}.py").write_text(code)
        write_metadata(tmp_path, package, {registry.MODALITIES.group: points})

    with contextlib.contextmanager(on_path)(tmp_path):
        yield install


def listed() -> tuple[list[str], list[str]]:
    """The modalities that there are, and what was warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = list(registry.modalities())
    return found, [str(w.message) for w in said]


def test_an_installed_package_adds_a_modality(installed):
    installed(
        "birds",
        "from unmask.modality import Modality\nM = Modality(name='songs', plural='songs', load='a:b')",
        songs="birds:M",
    )
    assert registry.names() == [*registry.MODALITIES.built_in, "songs"]
    assert registry.modality("songs") == Modality(name="songs", plural="songs", load="a:b")
    assert listed() == ([*registry.MODALITIES.built_in, "songs"], [])


@pytest.mark.parametrize(
    ("code", "point", "message"),
    [
        ("1 / 0", "birds:M", "ZeroDivisionError"),
        ("import no_such_thing", "birds:M", "No module named 'no_such_thing'"),
        ("", "birds:M", "has no attribute 'M'"),
        ("", "bards:M", "No module named 'bards'"),
        ("M = 3", "birds:M", "a int"),
        (
            "from unmask.modality import Modality\nM = Modality(name='x', plural='x', load='a:b')",
            "birds:M",
            "modality 'x'",
        ),
    ],
)
def test_a_broken_package_is_one_line_and_harms_nobody_else(installed, code, point, message):
    installed("birds", code, songs=point)
    found, said = listed()
    assert found == list(registry.MODALITIES.built_in)
    assert len(said) == 1
    assert "\n" not in said[0]
    for part in ("'songs'", "birds", message):
        assert part in said[0]
    with pytest.raises(UserError, match="songs"):
        registry.modality("songs")


def test_two_packages_of_one_name_are_refused_both(installed):
    installed("birds", "", songs="birds:M")
    installed("bards", "", songs="bards:M")
    with pytest.raises(UserError, match=r"'songs' is announced twice: by package ba.* and package bi") as caught:
        registry.modality("songs")
    assert "Uninstall" in caught.value.hint


def test_a_name_of_ours_stays_ours(installed):
    installed("birds", "", text="birds:M")
    found, said = listed()
    assert found == list(registry.MODALITIES.built_in)
    assert len(said) == 1
    assert "'text' of package birds" in said[0]
    assert registry.modality("text").load.startswith("unmask.")


@pytest.mark.parametrize(
    "command", ["import unmask", "import unmask.cli, unmask.registry; unmask.cli.main(['--help'])"]
)
def test_neither_torch_nor_a_modality_is_imported(command):
    seen = (
        "import sys, atexit; atexit.register(lambda: print('SEEN', [m for m in sys.modules if m == 'torch' or "
        f"m.startswith('unmask.modalities.')])); {command}"
    )
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "SEEN []"


def test_a_name_that_the_hub_does_not_know_is_refused_before_torch_is_imported():
    code = (
        "import sys\nfrom unmask.registry import check_model\n"
        "try: check_model('modl')\nexcept Exception as error: print(type(error).__name__, error)\n"
        "print('torch' in sys.modules)"
    )
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=offline, check=True)
    assert run.stdout.startswith("UserError modl: neither a folder here nor to be had from the hub")
    assert run.stdout.endswith("False\n")
