"""All experts of a layer at once on a CUDA device: pairs of a token and an expert, grouped by expert.

Owns the order of two grouped products (kernels/triton_product.py) and how a layer's experts become banks. In: experts
as stored, and what a router chose. Out: the weighted sum of a token's experts. Imported only where Triton computes.
Invariant: the host never waits to learn what was chosen.

Shapes: T tokens, A experts of one token, E hidden size, X experts, R rows, B bytes of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plimsoll_runtime.kernels.stored import StoredTensor, join_rows
from plimsoll_runtime.kernels.triton_product import ExpertBank, project_pairs, route_pairs
from plimsoll_runtime.models.architecture import Activation
from plimsoll_runtime.models.feed_forward import ExpertWeights, activate


@dataclass(frozen=True, slots=True)
class BankedExperts:
    """`gate_up`: one bank, or two where gate and up are stored in different ways."""

    gate_up: tuple[ExpertBank, ...]
    down: ExpertBank
    activation: Activation

    def compute(self, normed_TE: torch.Tensor, shares_TA: torch.Tensor, chosen_TA: torch.Tensor) -> torch.Tensor:
        """`[T, E]`: the chosen experts' results, weighted by their shares."""
        routing = route_pairs(chosen_TA, self.down.num_experts)
        parts = [project_pairs(normed_TE, bank, routing) for bank in self.gate_up]
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
        result = project_pairs(activate(gate, self.activation) * up, self.down, routing)
        result_TAE = result.view(*chosen_TA.shape, -1)
        return (result_TAE * shares_TA[:, :, None].to(result.dtype)).sum(1)


def bank_experts(
    experts: Sequence[ExpertWeights], activation: Activation, device: torch.device, dtype: torch.dtype
) -> BankedExperts | None:
    """None where experts of the layer are stored in different ways: a bank has one storage."""
    gates, ups, downs = zip(*experts, strict=True)
    pairs = list(zip(gates, ups, strict=True))
    if all(gate.storage == up.storage for gate, up in pairs):
        halves = [[join_rows(pair) for pair in pairs]]
    else:
        halves = [list(gates), list(ups)]
    if any(len({part.storage for part in parts}) > 1 for parts in (*halves, downs)):
        return None
    gate_up = tuple(_bank(parts, device, dtype) for parts in halves)
    return BankedExperts(gate_up, _bank(downs, device, dtype), activation)


def _bank(parts: Sequence[StoredTensor], device: torch.device, dtype: torch.dtype) -> ExpertBank:
    first = parts[0]
    data_XRB = torch.empty((len(parts), *first.data_RB.shape), dtype=torch.uint8, device=device)
    for bank_RB, part in zip(data_XRB, parts, strict=True):
        bank_RB.copy_(part.data_RB)
    return ExpertBank(first.storage, first.num_columns, data_XRB, dtype)
