"""The built-in corpus: what is read, wherever it is installed."""

from unmask.modalities.text.reading import documents as module
from unmask.modalities.text.reading.documents import docstrings


def test_packages_are_left_out_by_their_own_name_not_by_where_they_lie(tmp_path, monkeypatch):
    root = tmp_path / "unmask" / "tests" / "site-packages"
    for name in ("other/a.py", "other/tests/b.py", "unmask/c.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f'"""One two three four five six seven eight {name[-4]}."""\n', encoding="utf-8")
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"purelib": str(root)})
    assert list(docstrings()) == [("other/a.py", "One two three four five six seven eight a.")]
