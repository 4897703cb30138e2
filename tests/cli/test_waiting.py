"""Commands let OpenMP's threads wait spinning for a moment, then asleep; what the environment says of it stands."""

import os

import pytest

from unmask.cli import BRIEFLY, main


@pytest.mark.parametrize(
    ("said", "found"), [({}, BRIEFLY), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_spin_briefly_unless_told_otherwise(monkeypatch, capsys, said, found):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # put back afterwards whatever happens
        monkeypatch.delenv(name)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert os.environ.get("GOMP_SPINCOUNT") == found
    assert capsys.readouterr().out.startswith("unmask")
