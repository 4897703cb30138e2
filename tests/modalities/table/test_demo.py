"""The demo runs from end to end; see the report it writes."""

import pytest

from unmask.errors import UserError
from unmask.modalities.table.demo import run_demo


def test_demo(tmp_path, monkeypatch):
    pytest.importorskip("lifelines")
    import unmask.modalities.table.demo as demo

    monkeypatch.setattr(
        demo,
        "settings_of",
        lambda **k: __import__("unmask.modalities.table.recipes", fromlist=["x"]).settings_of(steps=5, **k),
    )
    found = run_demo(tmp_path / "demo", console=False)
    assert {"lines", "report", "device", "precision"} <= set(found)
    assert 0.75 < found["interval_coverage"] <= 1
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "Will my hazard ratios survive?" in page
    worse = [r["column"] for r in found["imputed"] if r["ours"] > r["plain"]]
    assert f"nearer to the truth for {', '.join(worse)}:" in page if worse else "nearer to the truth" not in page
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("")
    with pytest.raises(UserError, match="not an earlier demo"):
        run_demo(tmp_path / "other")
