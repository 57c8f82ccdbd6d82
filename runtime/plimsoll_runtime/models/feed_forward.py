"""A layer's feed-forward network: one for all tokens, or a mixture of which a router chooses a few for each token.

Owns both forms, called with normed hidden states and returning what is added to them. It does not know where weights
lie: a `Matrix` may keep them as it likes. Invariant: a row's result depends on that row alone, whatever shares the
batch, since its experts are added in the order of their number.

Shapes: T tokens of the step, N of them that chose one expert, E hidden size, X experts, A experts of one token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

import torch
from torch.nn import functional

from plimsoll_runtime.kernels.matrix import Matrix
from plimsoll_runtime.kernels.stored import StoredTensor
from plimsoll_runtime.models.architecture import Activation, Mixture

ExpertWeights = tuple[StoredTensor, StoredTensor, StoredTensor]
"""Gate, up and down of one expert, as stored."""


class FeedForward(Protocol):
    """`[T, E] -> [T, E]`."""

    def __call__(self, normed_TE: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class GatedNetwork:
    """`down(activation(gate) * up)`; gate and up are one matrix, since they share their input."""

    gate_up: Matrix
    down: Matrix
    activation: Activation

    def __call__(self, normed_TE: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up.project(normed_TE).chunk(2, -1)
        return self.down.project(activate(gate, self.activation) * up)


class Experts(Protocol):
    """The experts of one layer, wherever they are kept."""

    def visit(self, experts: Sequence[int], num_tokens: int) -> Iterator[tuple[int, GatedNetwork]]:
        """Each of the experts once, in any order, for a step of `num_tokens`; a network may be used until the next one
        is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class ResidentExperts:
    """All of them in memory."""

    networks: Sequence[GatedNetwork]

    def visit(self, experts: Sequence[int], num_tokens: int) -> Iterator[tuple[int, GatedNetwork]]:
        return ((expert, self.networks[expert]) for expert in experts)


@dataclass(frozen=True, slots=True)
class MixtureNetwork:
    """`router` scores the experts of a token; the best `experts_per_token` compute it, weighted by their shares."""

    router: Matrix
    experts: Experts
    mixture: Mixture

    def __call__(self, normed_TE: torch.Tensor) -> torch.Tensor:
        shares_TA, chosen_TA = route(self.router, self.mixture, normed_TE)
        output_TE = torch.zeros_like(normed_TE)
        ordered = sorted(set(chosen_TA.flatten().tolist()))
        waiting: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        num_added = 0
        for expert, network in self.experts.visit(ordered, normed_TE.shape[0]):
            rows_N, places_N = (chosen_TA == expert).nonzero(as_tuple=True)
            result_NE = network(normed_TE[rows_N])
            waiting[expert] = rows_N, result_NE * shares_TA[rows_N, places_N, None].to(result_NE.dtype)
            while num_added < len(ordered) and ordered[num_added] in waiting:
                rows_N, weighted_NE = waiting.pop(ordered[num_added])
                output_TE[rows_N] += weighted_NE
                num_added += 1
        return output_TE


class GroupedExperts(Protocol):
    """The experts of one layer, computed all at once."""

    def compute(self, normed_TE: torch.Tensor, shares_TA: torch.Tensor, chosen_TA: torch.Tensor) -> torch.Tensor:
        """`[T, E]`: the chosen experts' results, weighted by their shares."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedMixture:
    """A mixture whose experts are computed all at once."""

    router: Matrix
    experts: GroupedExperts
    mixture: Mixture

    def __call__(self, normed_TE: torch.Tensor) -> torch.Tensor:
        return self.experts.compute(normed_TE, *route(self.router, self.mixture, normed_TE))


@dataclass(frozen=True, slots=True)
class SharedMixture:
    """A mixture, and one network that computes every token, weighted by the sigmoid of a gate of one row."""

    chosen: MixtureNetwork | GroupedMixture
    shared: GatedNetwork
    gate: Matrix

    def __call__(self, normed_TE: torch.Tensor) -> torch.Tensor:
        return self.chosen(normed_TE) + self.gate.project(normed_TE).sigmoid() * self.shared(normed_TE)


def route(router: Matrix, mixture: Mixture, normed_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 shares and int64 numbers of the chosen experts, both `[T, A]`, the likeliest first."""
    shares_TX = router.project(normed_TE).float().softmax(-1)
    shares_TA, chosen_TA = shares_TX.topk(mixture.experts_per_token)
    if mixture.normalized:
        shares_TA = shares_TA / shares_TA.sum(-1, keepdim=True)
    return shares_TA, chosen_TA


def activate(values: torch.Tensor, activation: Activation) -> torch.Tensor:
    match activation:
        case "silu":
            return functional.silu(values)
        case "gelu_tanh":
            return functional.gelu(values, approximate="tanh")
        case _:
            assert_never(activation)
