"""Models that installed packages bring, by name."""

import importlib
import sys

import pytest

import unmask
from text_corpus import write_corpus
from unmask.errors import UserError
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.plugins import installed_model


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on the path that announces models, as pip would leave it."""
    site = tmp_path / "site"
    info = site / "some_model-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[unmask.models]\nsome-model = some_model:folder\nlost = some_model:lost\n")
    tiny = {"width": 32, "layers": 1, "heads": 2, "vocabulary": 300, "slots": 32, "batch_slots": 64, "steps": 1}
    settings = with_overrides(TextSettings(), tiny)
    pretrain(str(write_corpus(tmp_path / "corpus.txt")), tmp_path / "model", settings=settings, console=False)
    (site / "some_model.py").write_text(
        f"def folder():\n    return {str(tmp_path / 'model')!r}\ndef lost():\n    return '/nowhere/at/all'\n"
    )
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    yield tmp_path / "model"
    sys.modules.pop("some_model", None)


def test_a_model_is_loaded_by_the_name_its_package_announces(package):
    assert installed_model("some-model") == package
    loaded, there = unmask.load("some-model"), unmask.load(package)
    assert (loaded.embed("a river") == there.embed("a river")).all()


def test_a_folder_of_that_name_comes_first(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some-model").mkdir()
    assert installed_model("some-model") is None


def test_a_package_without_its_folder_is_named(package):
    with pytest.raises(UserError, match=r"model 'lost' of package some-model.*is no folder"):
        unmask.load("lost")
    assert installed_model("bert-base-uncased") is None
