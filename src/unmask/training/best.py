"""The best weights of a run that can stop early, kept for its end."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from unmask.files import written


class BestWeights:
    """The weights of the best look at the held-out data so far, in memory and beside the checkpoints, for a resumed run.

    Attributes:
        state: of the model, on the CPU; None before the first look.
        step: after which step they were taken.
    """

    def __init__(self, out: Path) -> None:
        self.path = out / "checkpoints" / "best.safetensors"
        self.state: dict[str, Tensor] | None = None
        self.step = 0

    def keep(self, model: nn.Module, step: int, *, write: bool) -> None:
        """Take the model's weights as they are; `write` them too, on the first process."""
        from safetensors.torch import save_file

        self.state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        self.step = step
        if write:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with written(self.path) as temporary:
                save_file(self.state, temporary, metadata={"step": str(step)})

    def restore(self, step: int | None) -> None:
        """What was kept after this step, if it is still there. A run that was broken off later may have kept newer ones: the
        resumed run comes by the same step again."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                if step is not None and (file.metadata() or {}).get("step") == str(step):
                    self.state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
                    self.step = step
        except (OSError, SafetensorError):
            return
