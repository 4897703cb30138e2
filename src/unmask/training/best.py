"""When a run stops early, and its best weights, kept for its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from unmask.writing import written

StopWhen = Callable[[dict[str, float]], bool]


class BestWeights:
    """The weights of the best look at the held-out data so far, in memory and beside the checkpoints, for a resumed
    run.

    Attributes:
        state: of the model, on the CPU; None before the first look.
        step: after which step they were taken.
    """

    def __init__(self, out: Path) -> None:
        self.path = out / "checkpoints" / "best.safetensors"
        self.state: dict[str, Tensor] | None = None
        self.step = 0

    def keep(self, state: dict[str, Tensor], step: int, *, write: bool) -> None:
        """Take weights, a copy of the model's as they are; `write` them too, on the first process."""
        from safetensors.torch import save_file

        self.state, self.step = state, step
        if write:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with written(self.path) as temporary:
                save_file(state, temporary, metadata={"step": str(step)})

    def restore(self, step: int | None) -> None:
        """What was kept after this step, if it is still there. A run that was broken off later may have kept newer
        ones: the resumed run comes by the same step again."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                if step is not None and (file.metadata() or {}).get("step") == str(step):
                    self.state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
                    self.step = step
        except (OSError, SafetensorError):
            return


class EarlyStopping:
    """Which look at the held-out data was the best, and whether the run is to stop.

    Args:
        patience: looks without improvement before the run stops; None never stops.
        stop_when: ends the run at once, whatever the loss; what it saw then is never the best.
        watched: the metric that is called loss here; lower is better.
        at_start: the loss before the first step, where it counts as a look.

    Attributes:
        loss: the lowest so far; None before the first look.
        waited: looks since then.
        refused: whether `stop_when` is why the run is to stop.
    """

    def __init__(
        self,
        patience: int | None,
        stop_when: StopWhen | None,
        *,
        watched: str = "validation_loss",
        at_start: float | None = None,
    ) -> None:
        self.patience, self.stop_when, self.watched, self.at_start = patience, stop_when, watched, at_start
        self.loss = at_start
        self.waited = 0
        self.refused = False

    @property
    def possible(self) -> bool:
        """Whether the run can stop early at all."""
        return self.patience is not None or self.stop_when is not None or self.at_start is not None

    def improves(self, metrics: dict[str, float]) -> bool:
        """Whether these metrics are better than those of the best look."""
        better = self.loss is None or metrics[self.watched] < self.loss
        return better and not self._refused(metrics)

    def look(self, metrics: dict[str, float]) -> tuple[bool, bool]:
        """Count a look; (whether it is the best so far, whether the run is to stop)."""
        self.refused = refused = self._refused(metrics)
        loss = metrics[self.watched]
        improved = not refused and (self.loss is None or loss < self.loss)
        self.loss = loss if improved else self.loss
        self.waited = 0 if improved else self.waited + 1
        return improved, refused or (self.patience is not None and self.waited >= self.patience)

    def _refused(self, metrics: dict[str, float]) -> bool:
        return self.stop_when is not None and self.stop_when(metrics)
