"""FSDP2: every process holds a share of the weights, of their gradients and of the optimiser's states.

torch's `fully_shard` is called as it is, layer by layer: a layer's weights are together only while it computes. What no
layer holds (embeddings, heads, norms) is together from the first use in a step to the end of its backward pass, so the
vocabulary's projection reads an embedding that it is tied to as in one process. Why not through Accelerate:
docs/explanation/decisions.md.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.pretrain import MaskedLoss
from unmask.encoder.transformer import Encoder
from unmask.errors import UserError, setting
from unmask.training.checkpoint import Checkpoint
from unmask.training.compute import Whole
from unmask.training.optimiser import build_optimiser
from unmask.training.processes import random_states
from unmask.training.shards_checkpoint import ShardWriter, read_shards

PATIENCE = datetime.timedelta(days=1)
"""How long the processes wait for each other's files of a checkpoint: a slow disk is no reason to end a run."""


class ShardedModel(Whole):
    """Every process holds a share of the model and of the optimiser; see `Whole`.

    Attributes:
        plain: the model's modules without weights, to put all weights in when somebody needs the whole model.
    """

    # FSDP2 makes weights whole while it looks, and uses the same tensors in training: they must not be of inference.
    without_gradients: Callable[[], contextlib.AbstractContextManager[Any]] = torch.no_grad

    def _settle(self) -> None:
        """Leave the model on the CPU: whole it may not fit the device."""
        for name, parameter in self.model.named_parameters():
            if not parameter.ndim:
                raise UserError(
                    f"shard=full: the parameter {name} is a number without a dimension, which FSDP2 does not take",
                    hint=f"Give it the shape (1,), or train with {setting('shard', 'none')}.",
                )

    def begin(self, found: Checkpoint | None) -> None:
        compute = self.compute
        self.plain = without_weights(self.model)
        self.mesh = init_device_mesh(compute.device.type, (compute.processes,))
        # Of its own for each use: operations of the thread that writes must not meet those of the steps.
        self.group, writing = (distributed.new_group(backend="gloo", timeout=PATIENCE) for _ in range(2))
        self.writer = ShardWriter(self.folder, writing, keep=self.settings.keep)
        self.losses = ShardedLoss(self.model, self.group)
        for layer in layers_to_shard(self.model):
            fully_shard(layer, mesh=self.mesh)
        self.root = fully_shard(self.losses, mesh=self.mesh)
        self.losses.to(compute.device)  # buffers
        self.optimiser = build_optimiser(self.model, self.settings)
        if found is not None and found.shards is not None:
            read_shards(found, self.model, self.optimiser)
        elif found is not None:
            self.load(found.model_state, everywhere=True)
            self.optimiser.load_state_dict(self._shared_out(found.optimiser_state))

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing: gradients are shared out after every micro-batch, so that no process ever holds all of them."""
        return contextlib.nullcontext()

    def evaluated(self) -> nn.Module:
        return self.losses

    def together(self, parts: Iterator[PackedBatch], nothing: Callable[[], PackedBatch]) -> Iterator[PackedBatch]:
        """As many parts in every process: weights are made whole by all of them at once. Those that have fewer look at
        padding."""
        while True:
            part = next(parts, None)
            left = torch.tensor([int(part is not None)])
            distributed.all_reduce(left, group=self.group)
            if not left:
                return
            yield nothing() if part is None else part
            del part

    def validation_over(self) -> None:
        """Give up the weights that were together for the look: the next use makes them anew, as they are then."""
        self.root.reshard()

    def whole(self) -> nn.Module | None:
        state = self.state()
        if not self.compute.first_process:
            return None
        plain = without_weights(self.plain, "cpu")
        plain.load_state_dict(state)
        return plain.train(self.model.training)

    def state(self) -> dict[str, Tensor]:
        gathered = {}
        for name, tensor in self.model.state_dict().items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.compute.first_process:
                gathered[name] = full.detach().cpu().clone()
        return gathered

    def load(self, state: dict[str, Tensor], *, everywhere: bool = False) -> None:
        """Take all weights: the first process's, or, where every process has them, each what is its share."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                full = state[name] if everywhere or self.compute.first_process else torch.empty(tensor.shape)
                full = full.to(self.compute.device, tensor.dtype)
                tensor.copy_(self._share(full, tensor, None if everywhere else 0))
        self.validation_over()

    def _share(self, full: Tensor, like: Tensor, source: int | None) -> Tensor:
        if not isinstance(like, DTensor):
            if source is not None:
                distributed.broadcast(full, source)
            return full
        return distribute_tensor(full, self.mesh, like.placements, src_data_rank=source)

    def _shared_out(self, state: dict[str, Any]) -> dict[str, Any]:
        """Of an optimiser's states as a whole checkpoint has them, this process's share."""
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]

        def share(value: Any, like: Tensor) -> Any:
            if not isinstance(value, Tensor) or value.shape != like.shape or not value.ndim:
                return value
            return self._share(value.to(self.compute.device), like, None)

        entries = {i: {k: share(v, parameters[i]) for k, v in of.items()} for i, of in state["state"].items()}
        return {"state": entries, "param_groups": state["param_groups"]}

    def save(self, step: int, extra: Callable[[], dict[str, Any]]) -> None:
        """Copy the shares to memory and let a thread write them, when the last checkpoint is on the disk."""
        self.writer.begin(step)
        others = random_states(self.compute.accelerator)
        about = extra() | {"random_states": others}
        self.writer.write(step, self.model, self.optimiser.state_dict(), about)

    def close(self) -> None:
        self.writer.wait()


class ShardedLoss(MaskedLoss):
    """The model with its loss; parameters that a batch uses in some of the processes only get gradients in all.

    Processes sum the gradients that they have, one after the other in a row: where one lacked a parameter's, the sums
    would be of different parameters. What no process uses has no gradient, as in one process.
    """

    def __init__(self, model: nn.Module, group: Any) -> None:
        super().__init__(model)
        self.group = group

    def forward(self, batch: PackedBatch, hidden: Hidden) -> tuple[Tensor, Callable[[], Any]]:
        loss, right = super().forward(batch, hidden)
        # Now, while the weights are together: a prediction makes its logits of them.
        with torch.no_grad(), torch.autocast(loss.device.type, enabled=False):
            found = right()
        if torch.is_grad_enabled():
            loss = self._connected(loss)
        return loss, lambda: found

    def _connected(self, loss: Tensor) -> Tensor:
        together = [p for p in self.parameters() if p.requires_grad and not isinstance(p, DTensor)]
        used = leaves(loss)
        used_here = torch.tensor([id(p) in used for p in together], dtype=torch.int32)
        total = used_here.clone()
        distributed.all_reduce(total, group=self.group)
        for parameter, here, anywhere in zip(together, used_here.tolist(), total.tolist(), strict=True):
            if anywhere and not here:
                loss = loss + 0.0 * parameter.sum()
        return loss


def leaves(loss: Tensor) -> set[int]:
    """The `id` of every tensor that a gradient of the loss reaches."""
    found, seen, waiting = set[int](), set[Any](), [loss.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return found


def layers_to_shard(model: nn.Module) -> list[nn.Module]:
    """The layers whose weights are made whole one by one: those of our encoders and decoders that are called once in a
    pass. Not among them: layers that share weights (ALBERT), and the last one of DeBERTa, which predictions ask again.
    """
    found = list[nn.Module]()
    for encoder in model.modules():
        if isinstance(encoder, Encoder):
            order = encoder.config.layer_order
            if getattr(encoder.config.positions, "decoder_steps", 0):
                order = [*order, order[-1]]
            found += [encoder.layers[i] for i, uses in Counter(order).items() if uses == 1]
    return found


def without_weights(model: nn.Module, device: str = "meta") -> nn.Module:
    """A copy of a model whose parameters hold nothing yet; tied ones are one and the same in it too.

    Args:
        device: "meta", where they take no memory, or "cpu".
    """
    memory: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device=device), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    return copy.deepcopy(model, memory)
