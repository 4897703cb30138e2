"""A Chromium without a window, driven over its pipe of the DevTools protocol; no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One page.

    Attributes:
        said: what the page wrote to the console, and errors of its scripts.
    """

    def __init__(self, home: Path, *, width: int = 1100, height: int = 900, dark: bool = False) -> None:
        ours, theirs = os.pipe(), os.pipe()  # we read ours[0], it reads theirs[0]
        command = (
            f"exec {PROGRAM} --headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={home} "
        )
        command += "--no-first-run --disable-background-networking --disable-dev-shm-usage about:blank "
        command += f"3<&{theirs[0]} 4>&{ours[1]} >/dev/null 2>&1"
        self.process = subprocess.Popen(["bash", "-c", command], pass_fds=(theirs[0], ours[1]))
        os.close(theirs[0])
        os.close(ours[1])
        self._in, self._out = os.fdopen(ours[0], "rb", buffering=0), theirs[1]
        self._number, self._rest, self.said = 0, b"", []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = session["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    session: str | None = None

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Answer to a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            if found.get("method") == "Runtime.exceptionThrown":
                self.said.append(found["params"]["exceptionDetails"]["exception"].get("description", "an exception"))
            if found.get("method") == "Log.entryAdded":
                self.said.append(found["params"]["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._in.read(1 << 20)
            assert part, "Chromium has ended"
            self._rest += part
        whole, _, self._rest = self._rest.partition(b"\0")
        return json.loads(whole)

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """Value of an expression in the page; promises are waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true; one that fails, as while a page comes, is not true yet."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.call("Runtime.evaluate", expression=f"!!({script})", returnByValue=True)
            if found["result"].get("value") is True:
                return
            time.sleep(0.05)
        raise AssertionError(f"never: {script}; the page: {self.run('document.body.innerText')[:800]}; {self.said}")

    def key(self, name: str, text: str = "") -> None:
        """Press a key."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowDown": 40}
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=codes[name], **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse, move and let go."""
        kinds = (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end))
        for kind, (x, y) in kinds:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def shot(self, path: Path) -> None:
        """A picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._in.close()
        os.close(self._out)
