"""Stop, starve and double every command that writes, and look at what it leaves.

    python benchmarks/faults.py [--moments 60] [--seed 0] [--only "text adapt"] [--faults signal full]

Each command of tests/writing_commands.py is ended by SIGKILL, SIGTERM and SIGINT and has its disk filled (a tmpfs:
needs root) at moments drawn among its changes of files; gets a disk that is read only; runs twice at once into one
place; and a bit of each file that it wrote is flipped and read back. Each time: no traceback, the due exit code,
a former output or the new one, whole, and after the next success the files of an undisturbed run. Else exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import pkgutil
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "modalities" / "table"), str(TESTS / "modalities" / "events")]
DUE = {signal.SIGKILL: 137, signal.SIGTERM: 143, signal.SIGINT: 130}
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate"}
READ = {
    "text prepare": "pretrain text {out} --out {new} --steps 1 --set width=16 --set layers=1 --set heads=2",
    "text": "embed {out} {home}/texts.txt --out {new}",
    "table": "impute {out} {home}/table.csv --out {new}.csv",
    "images": "embed {out} {home}/pictures --out {new}",
    "images finetune": "predict {out} {home}/pictures --out {new}",
    "events": "embed {out} {home}/meds --out {new}",
    "events convert": "embed {home}/events {out} --out {new}",
    "events prepare": "pretrain events {out} --out {new} --steps 1 --set width=16 --set heads=2 --set floor=1",
    "events finetune": "predict {out} {home}/meds --labels {home}/task --out {new}",
}
"""How the folder that a command wrote is read back, by the longest beginning of its name."""


def mount(place: Path, flags: int) -> None:
    """A tmpfs at a place, or its flags changed: 32 is MS_REMOUNT, 1 MS_RDONLY."""
    assert not ctypes.CDLL(None).mount(b"tmpfs", str(place).encode(), b"tmpfs", flags, b"size=256m"), "needs root"


class Fault:
    """What happens at one change of a file below `work`; an audit hook, which counts the changes."""

    def __init__(self, work: Path, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        self.work, self.at, self.act, self.count, self.inside = str(work), at, act, 0, False

    def __call__(self, event: str, found: tuple) -> None:
        opened = event == "open" and isinstance(found[2], int) and bool(found[2] & (os.O_WRONLY | os.O_RDWR))
        within = event in CHANGES and found[-1] not in (-1, None)  # by a folder's descriptor, as rmtree does
        if (within or ((opened or event in CHANGES) and str(found[0]).startswith(self.work))) and not self.inside:
            self.count += 1
            if self.count == self.at:
                self.inside = True
                self.act()
                self.inside = False


def start(words: list[str], log: Path, fault: Fault) -> int:
    """The number of a process that runs a command; what it prints, and its count of changes, go to `log`."""
    if child := os.fork():
        return child
    code = 1
    try:
        file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from commands import exit_code

        sys.addaudithook(fault)
        code = exit_code(*words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, f"\nchanges {fault.count}\n".encode())
        os._exit(code)


def end(child: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def names(folder: Path) -> set[str]:
    """Of all that is there; which steps' checkpoints were kept depends on when a signal came."""
    return {re.sub(r"step-\d+", "step", p.relative_to(folder).as_posix()) for p in folder.rglob("*")}


class Trial:
    """A command, and what it leaves where nothing stops it."""

    def __init__(self, name: str, place: Path) -> None:
        import writing_commands

        self.name, self.home, self.work, self.log = name, place / "home", place / "work", place / "log"
        self.words = writing_commands.words_of(name, self.home, self.work / "out")
        self.fine = writing_commands.EXIT_CODES.get(name, 0)
        self.whole = place / "whole"
        empty(self.work)
        code, said = self.run(Fault(self.work))
        self.left, self.changes = names(self.work), int(re.findall(r"^changes (\d+)$", said, re.MULTILINE)[-1])
        self.wrong = [] if code == self.fine and self.left else [f"undisturbed: exit code {code}: {said[-300:]}"]
        shutil.rmtree(self.whole, ignore_errors=True)
        shutil.copytree(self.work, self.whole)

    def run(self, fault: Fault, *more: str) -> tuple[int, str]:
        code = end(start([*self.words, *more], self.log, fault))
        return code, self.log.read_text(errors="replace")

    def disturb(self, due: int, fault: Fault, heal: Callable[[], None] = lambda: None) -> str:
        """Once; says what is wrong, '' where nothing is."""
        empty(self.work)
        files = [p.name for p in self.whole.iterdir() if p.is_file()]
        for name in files:
            (self.work / name).write_bytes(b"former")
        if fault.at == 0:
            fault.act()
        code, said = self.run(fault)
        heal()
        if "Traceback" in said or code not in (due, self.fine):
            return f"exit code {code}: {said[-700:]}"
        for name in files:
            there, new = self.work / name, (self.whole / name).stat().st_size
            if not there.exists() or (there.read_bytes() != b"former" and there.stat().st_size < 0.9 * new):
                return f"{name} is lost or half written"
        begun = (self.work / "out" / "checkpoints").exists() or (self.work / ".out.training").exists()
        again, said = self.run(Fault(self.work), *(["--resume"] if begun else []))
        if again == 2 and re.search("already holds a|: exists|has already", said):  # it was done: it is read back
            again, said = self.read(self.work / "out")
        if again != self.fine or "Traceback" in said:
            return f"after exit code {code}, again: exit code {again}: {said[-500:]}"
        other = sorted(names(self.work) ^ self.left)
        return f"after exit code {code}, again: lacking or left behind {other}" if other else ""

    def read(self, folder: Path) -> tuple[int, str]:
        """Use what was written."""
        how = READ[max((k for k in READ if self.name.startswith(k)), key=len)]
        new = self.log.with_name("new")
        new.mkdir()
        words = [w.format(out=folder, home=self.home, new=new / "read") for w in how.split()]
        code = end(start(words, self.log, Fault(self.work)))
        shutil.rmtree(new)
        return code, self.log.read_text(errors="replace")


def tried(trial: Trial, kind: str, moments: int, rng: random.Random, counts: Counter[str]) -> list[str]:
    """What went wrong with a command under faults of one kind."""
    work, said = trial.work, list[str]()
    ballast = work / "ballast"

    def fill() -> None:
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * (1 << 20)):
                pass

    def once(told: str, *given: object) -> None:
        counts[kind] += 1
        if found := trial.disturb(*given):  # type: ignore[arg-type]
            said.append(f"{told}: {found}")

    for number in range(moments if kind in ("signal", "full") else 0):
        at = rng.randint(1, max(trial.changes, 1))
        if kind == "full":
            once(f"full at change {at}", 2, Fault(work, at, fill), lambda: ballast.unlink(missing_ok=True))
        else:
            chosen = list(DUE)[number % 3]
            act = lambda chosen=chosen: os.kill(os.getpid(), chosen)  # noqa: E731
            once(f"{chosen.name} at change {at}", DUE[chosen], Fault(work, at, act))
    if kind == "readonly":
        once("read only", 2, Fault(work, 0, lambda: mount(work, 33)), lambda: mount(work, 32))
    if kind == "two":
        counts[kind] += 1
        empty(work)
        logs = [trial.log.with_name(f"log{i}") for i in (0, 1)]
        codes = sorted(end(child) for child in [start(trial.words, log, Fault(work)) for log in logs])
        texts = [log.read_text(errors="replace") for log in logs]
        if codes not in ([trial.fine] * 2, sorted([trial.fine, 2])) or "Traceback" in "".join(texts):
            said.append(f"two at once: exit codes {codes}: " + " | ".join(t[-400:] for t in texts))
        elif names(work) != trial.left:
            said.append(f"two at once: lacking or left behind {sorted(names(work) ^ trial.left)}")
    for path in sorted((trial.whole / "out").rglob("*")) if kind == "flip" else ():
        if not {"checkpoints", "cache"} & set(path.parts) and path.is_file() and (data := bytearray(path.read_bytes())):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            empty(work)
            shutil.copytree(trial.whole / "out", work / "out")
            (work / path.relative_to(trial.whole)).write_bytes(data)
            code, text = trial.read(work / "out")
            counts[kind] += 1
            counts["flip, refused"] += code == 2
            if (
                "Traceback" in text
                or code not in (0, 2)
                or (code == 0 and path.suffix in (".safetensors", ".bin", ".npz"))
            ):
                said.append(f"a bit of {path.relative_to(trial.whole)}: exit code {code}: {text[-400:]}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=60, help="Per command, of signals and of full disks.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="Commands that begin so.")
    parser.add_argument("--faults", nargs="*", default=["signal", "full", "readonly", "two", "flip"])
    given = parser.parse_args()
    import unmask
    import writing_commands

    for module in pkgutil.walk_packages(unmask.__path__, "unmask."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    counts, wrong = Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "home").mkdir()
        (place / "work").mkdir()
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            writing_commands.prepare(place / "home")
            os._exit(0)
        assert end(child) == 0
        mount(place / "work", 0)
        try:
            for name in writing_commands.CASES:
                if name.startswith(tuple(given.only) or ""):
                    rng, trial = random.Random(f"{given.seed} {name}"), Trial(name, place)
                    said = [
                        *trial.wrong,
                        *(s for k in given.faults for s in tried(trial, k, given.moments, rng, counts)),
                    ]
                    wrong += len(said)
                    print(f"{name}: {trial.changes} changes, {len(said)} wrong", *said, sep="\n    ", flush=True)
        finally:
            ctypes.CDLL(None).umount2(str(place / "work").encode(), 2)
    print(", ".join(f"{k} {n}" for k, n in sorted(counts.items())) + f": {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
