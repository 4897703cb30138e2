"""What `make` prints while it installs."""

import select
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_progress_of_an_installation_appears_while_pip_still_runs():
    made = ["make", "--silent", "--eval", "shown:;@$(SHOWN)", "shown"]
    with subprocess.Popen(made, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as shown:
        for line in (
            *["Collecting numpy>=2.0 (from unmask)", "  Downloading numpy-2.4.6.whl (9.9 MB)"] * 10,
            "  Downloading torch-2.13.0.whl (555.1 MB)",
            "  Downloading nvidia_cudnn.whl (1.2 GB)",
            "Installing collected packages: numpy, torch, unmask",
        ):
            shown.stdin.write(f"{line}\n".encode())
        text = b""
        while b"writing" not in text and select.select([shown.stdout], [], [], 60)[0]:
            text += shown.stdout.read(4096)
        shown.stdin.close()
        assert shown.wait() == 0
    assert text.decode().splitlines() == [
        "  10 packages found",
        "  Downloading torch-2.13.0.whl (555.1 MB)",
        "  Downloading nvidia_cudnn.whl (1.2 GB)",
        "  writing 3 packages: nothing is printed for a minute or more",
    ]
