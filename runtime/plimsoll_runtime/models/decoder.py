"""The one decoder of every supported family: config in, hidden states and logits out.

Owns the forward pass and how weights become matrices. In: an `Architecture`, stored weights, token ids of a step. Out:
`[T, E]` hidden states, float32 logits. It does not know sampling, scheduling, text or files beyond `Checkpoint.read`.
Invariants: a row's result depends on its own sequence alone (up to rounding); weights stay as stored wherever their
dtype is not that of the activations; the caller's cache is written at `cache_rows_T` and read only along page tables.

Shapes: T tokens of the step, N rows of interest, E hidden size, H query heads, K key/value heads, D head_dim,
V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from plimsoll_runtime.kernels.dispatch import make_matrix, stack_matrices
from plimsoll_runtime.kernels.matrix import Matrix
from plimsoll_runtime.kernels.native_library import NativeKernels
from plimsoll_runtime.kernels.reference import dequantize, rms_norm, rotate
from plimsoll_runtime.models.architecture import Architecture, Attention, GatedDelta, Mixture, Rope
from plimsoll_runtime.models.attention import (
    AttentionBatch,
    AttentionPlan,
    LayerCache,
    SequenceSpan,
)
from plimsoll_runtime.models.feed_forward import (
    Experts,
    FeedForward,
    GatedNetwork,
    GroupedExperts,
    GroupedMixture,
    MixtureNetwork,
    ResidentExperts,
    SharedMixture,
)
from plimsoll_runtime.models.gated_delta import GatedDeltaNet, StateCache
from plimsoll_runtime.models.rope import Rotation, make_rotation
from plimsoll_runtime.models.step_kernels import StepKernels, torch_kernels
from plimsoll_runtime.models.weights.checkpoint import Checkpoint

Progress = Callable[[int, int], None]
"""Called with (bytes loaded, bytes in all) after every parameter."""


ExpertSource = Callable[[int], Experts]
"""The experts of a layer, by its index."""


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Biases are plain tensors, norms float32; the norms of queries and keys stand as one `[H + K, D]` tensor, since
    both are normed head by head. With a gate, its rows come first in `query_key_value`."""

    query_key_value: Matrix
    query_key_value_bias: torch.Tensor | None
    query_key_norm: torch.Tensor | None
    output: Matrix
    rotation: Rotation


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: what mixes tokens, and what computes each of them, with their norms (float32)."""

    attention_norm: torch.Tensor
    mixer: AttentionWeights | GatedDeltaNet
    post_attention_norm: torch.Tensor | None
    feed_forward_norm: torch.Tensor
    feed_forward: FeedForward
    post_feed_forward_norm: torch.Tensor | None


AnyCache = LayerCache | StateCache
"""What one layer keeps between steps, by its kind."""


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of one forward share: a plan of attention per window, cosines and sines per layer kind."""

    spans: Sequence[SequenceSpan]
    plans: dict[int | None, AttentionPlan]
    tables: dict[Rotation, tuple[torch.Tensor, torch.Tensor]]
    cache_rows_T: torch.Tensor


class Decoder:
    """Weights on their device. `forward` and `logits` may be called from one thread at a time."""

    def __init__(
        self,
        *,
        architecture: Architecture,
        layers: Sequence[LayerWeights],
        embedding: Matrix,
        output: Matrix,
        norm: torch.Tensor,
        dtype: torch.dtype,
        kernels: StepKernels,
    ) -> None:
        self.kernels = kernels
        self.architecture = architecture
        self.device = norm.device
        self.dtype = dtype
        self.layers = tuple(layers)
        self.rotations = {layer.mixer.rotation for layer in layers if isinstance(layer.mixer, AttentionWeights)}
        self.embedding = embedding
        self.output = output
        self.norm = norm

    @torch.inference_mode()
    def forward(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        attention: AttentionBatch,
        cache: Sequence[AnyCache],
    ) -> torch.Tensor:
        """Hidden states `[T, E]` after the final norm; writes the new tokens' keys, values and states into `cache`."""
        step = self._prepare(positions_T, attention)
        hidden_TE = self.embed(token_ids_T)
        for index, layer in enumerate(self.layers):
            hidden_TE = hidden_TE + self._mix(index, layer, hidden_TE, step, cache[index])
            hidden_TE = hidden_TE + self._feed_forward(layer, hidden_TE)
        return self._normed(hidden_TE, self.norm)

    def embed(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        """`[T, E]`, what the first layer starts from."""
        hidden_TE = self.embedding.take_rows(token_ids_T)
        return hidden_TE if self.architecture.embedding_scale == 1 else hidden_TE * self.architecture.embedding_scale

    @torch.inference_mode()
    def logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """`[N, V]` float32 for rows that came out of `forward`."""
        return self.output.project(hidden_NE).float()

    def _prepare(self, positions_T: torch.Tensor, attention: AttentionBatch) -> Step:
        return Step(
            spans=attention.spans,
            plans={
                window: self.kernels.plan_attention(attention, window, self.device)
                for window in self.architecture.windows
            },
            tables={rotation: rotation.tables(positions_T, self.dtype) for rotation in self.rotations},
            cache_rows_T=attention.cache_rows_T,
        )

    def _mix(
        self, index: int, layer: LayerWeights, hidden_TE: torch.Tensor, step: Step, cache: AnyCache
    ) -> torch.Tensor:
        normed_TE = self._normed(hidden_TE, layer.attention_norm)
        if isinstance(layer.mixer, GatedDeltaNet):
            assert isinstance(cache, StateCache), "a gated delta net keeps states"
            mixed_TE = layer.mixer(normed_TE, step.spans, cache)
        else:
            kind = self.architecture.layers[index]
            assert isinstance(cache, LayerCache), "attention keeps keys and values"
            assert isinstance(kind, Attention)
            mixed_TE = self._attend(layer.mixer, normed_TE, step, step.plans[kind.window], cache)
        return self._maybe_normed(mixed_TE, layer.post_attention_norm)

    def _attend(
        self,
        weights: AttentionWeights,
        normed_TE: torch.Tensor,
        step: Step,
        plan: AttentionPlan,
        cache: LayerCache,
    ) -> torch.Tensor:
        shape = self.architecture
        projected = weights.query_key_value.project(normed_TE)
        if weights.query_key_value_bias is not None:
            projected = projected + weights.query_key_value_bias
        gate = projected[:, : shape.query_size] if shape.gated_attention else None
        projected = projected if gate is None else projected[:, shape.query_size :]
        heads_THD = projected.view(-1, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        num_turned = shape.num_heads + shape.num_kv_heads
        turned_THD, value_TKD = heads_THD[:, :num_turned], heads_THD[:, num_turned:]
        if weights.query_key_norm is not None:
            turned_THD = self._normed(turned_THD, weights.query_key_norm)
        turned_THD = rotate(turned_THD, *step.tables[weights.rotation])
        query_THD, key_TKD = turned_THD[:, : shape.num_heads], turned_THD[:, shape.num_heads :]
        self.kernels.store(cache, step.cache_rows_T, key_TKD, value_TKD)
        attended = plan.attend(query_THD, cache, shape.attention_scale).flatten(1)
        return weights.output.project(attended if gate is None else attended * gate.sigmoid())

    def _feed_forward(self, layer: LayerWeights, hidden_TE: torch.Tensor) -> torch.Tensor:
        output_TE = layer.feed_forward(self._normed(hidden_TE, layer.feed_forward_norm))
        return self._maybe_normed(output_TE, layer.post_feed_forward_norm)

    def _normed(self, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(values, weight, self.architecture.norm_epsilon)

    def _maybe_normed(self, values: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return values if weight is None else self._normed(values, weight)


def load_decoder(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    native: NativeKernels | None = None,
    experts: ExpertSource | None = None,
    kernels: StepKernels | None = None,
) -> Decoder:
    """Reads every weight once into its final form, but for experts that `experts` keeps elsewhere. Raises
    CheckpointError for a tensor that cannot be read."""
    kernels = torch_kernels() if kernels is None else kernels
    loader = _Loader(checkpoint, device, dtype, progress, native, experts, kernels)
    architecture = checkpoint.architecture
    rotations = _make_rotations(loader, architecture, device)
    layers = [loader.layer(index, rotations) for index in range(architecture.num_layers)]
    embedding = loader.matrix("embedding")
    output = embedding if architecture.tied_output else loader.matrix("output")
    return Decoder(
        architecture=architecture,
        layers=layers,
        embedding=embedding,
        output=output,
        norm=loader.vector("norm"),
        dtype=dtype,
        kernels=kernels,
    )


def _make_rotations(loader: "_Loader", architecture: Architecture, device: torch.device) -> dict[Rope, Rotation]:
    """Layers of equal rope share the object, so that a step computes its tables once."""
    ropes = {layer.rope for layer in architecture.attention_layers}
    factors = loader.vector("rope_factors") if any(rope.uses_factors for rope in ropes) else None
    return {rope: make_rotation(rope, architecture.head_dim, factors, device) for rope in ropes}


class _Loader:
    """Turns roles into matrices and vectors, counting bytes for the progress."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress,
        native: NativeKernels | None,
        experts: ExpertSource | None,
        kernels: StepKernels,
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._progress = progress
        self._native = native
        self._experts = experts
        self._kernels = kernels
        self._all_bytes = checkpoint.weight_bytes - (0 if experts is None else checkpoint.expert_bytes)
        self._done_bytes = 0

    def matrix(self, *roles: str) -> Matrix:
        parts = [self._checkpoint.read(role) for role in roles]
        matrix = (
            make_matrix(parts[0], self._device, self._dtype, self._native, self._kernels.triton)
            if len(parts) == 1
            else stack_matrices(parts, self._device, self._dtype, self._native, self._kernels.triton)
        )
        self._count(sum(part.num_bytes for part in parts))
        return matrix

    def vector(self, role: str) -> torch.Tensor:
        """A norm or another small tensor, in float32."""
        stored = self._checkpoint.read(role)
        self._count(stored.num_bytes)
        return dequantize(stored).to(self._device)

    def layer(self, index: int, rotations: Mapping[Rope, Rotation]) -> LayerWeights:
        kind, prefix = self._checkpoint.architecture.layers[index], f"layers.{index}"
        sandwich = self._checkpoint.architecture.sandwich_norms
        return LayerWeights(
            attention_norm=self.vector(f"{prefix}.attention_norm"),
            mixer=self._delta(prefix, kind)
            if isinstance(kind, GatedDelta)
            else self._attention(prefix, rotations[kind.rope]),
            post_attention_norm=self.vector(f"{prefix}.post_attention_norm") if sandwich else None,
            feed_forward_norm=self.vector(f"{prefix}.feed_forward_norm"),
            feed_forward=self._feed_forward(index, prefix),
            post_feed_forward_norm=self.vector(f"{prefix}.post_feed_forward_norm") if sandwich else None,
        )

    def _attention(self, prefix: str, rotation: Rotation) -> AttentionWeights:
        shape = self._checkpoint.architecture
        return AttentionWeights(
            query_key_value=self.matrix(f"{prefix}.query", f"{prefix}.key", f"{prefix}.value"),
            query_key_value_bias=self._biases(prefix) if shape.qkv_bias else None,
            query_key_norm=self._head_norms(prefix) if shape.query_key_norm else None,
            output=self.matrix(f"{prefix}.attention_output"),
            rotation=rotation,
        )

    def _delta(self, prefix: str, shape: GatedDelta) -> GatedDeltaNet:
        parts = [f"{prefix}.delta_{part}" for part in ("query_key_value", "gate", "beta", "alpha")]
        return GatedDeltaNet(
            shape=shape,
            projection=self.matrix(*parts),
            conv_weight_CW=self.vector(f"{prefix}.delta_conv"),
            decay_H=self.vector(f"{prefix}.delta_decay"),
            step_bias_H=self.vector(f"{prefix}.delta_step_bias"),
            norm=self.vector(f"{prefix}.delta_norm"),
            output=self.matrix(f"{prefix}.delta_output"),
            norm_epsilon=self._checkpoint.architecture.norm_epsilon,
        )

    def _feed_forward(self, index: int, prefix: str) -> FeedForward:
        mixture = self._checkpoint.architecture.mixture
        if mixture is None:
            return self._network(prefix)
        chosen = self._mixture(index, prefix, mixture)
        if not mixture.shared_size:
            return chosen
        return SharedMixture(chosen, self._network(f"{prefix}.shared"), self.matrix(f"{prefix}.shared_router"))

    def _mixture(self, index: int, prefix: str, mixture: Mixture) -> MixtureNetwork | GroupedMixture:
        router = self.matrix(f"{prefix}.router")
        if self._experts is not None:
            return MixtureNetwork(router, self._experts(index), mixture)
        prefixes = [f"{prefix}.experts.{expert}" for expert in range(mixture.num_experts)]
        grouped = self._group_experts(prefixes)
        if grouped is not None:
            return GroupedMixture(router, grouped, mixture)
        return MixtureNetwork(router, ResidentExperts(tuple(map(self._network, prefixes))), mixture)

    def _group_experts(self, prefixes: Sequence[str]) -> GroupedExperts | None:
        if self._kernels.group_experts is None:
            return None
        read = self._checkpoint.read
        experts = [(read(f"{each}.gate"), read(f"{each}.up"), read(f"{each}.down")) for each in prefixes]
        activation = self._checkpoint.architecture.activation
        grouped = self._kernels.group_experts(experts, activation, self._device, self._dtype)
        if grouped is not None:
            self._count(sum(part.num_bytes for expert in experts for part in expert))
        return grouped

    def _network(self, prefix: str) -> GatedNetwork:
        return GatedNetwork(
            gate_up=self.matrix(f"{prefix}.gate", f"{prefix}.up"),
            down=self.matrix(f"{prefix}.down"),
            activation=self._checkpoint.architecture.activation,
        )

    def _biases(self, prefix: str) -> torch.Tensor:
        parts = [self.vector(f"{prefix}.{part}_bias") for part in ("query", "key", "value")]
        return torch.cat(parts).to(self._dtype)

    def _head_norms(self, prefix: str) -> torch.Tensor:
        shape = self._checkpoint.architecture
        query, key = self.vector(f"{prefix}.query_norm"), self.vector(f"{prefix}.key_norm")
        return torch.cat((query.expand(shape.num_heads, -1), key.expand(shape.num_kv_heads, -1)))

    def _count(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        self._progress(self._done_bytes, self._all_bytes)
