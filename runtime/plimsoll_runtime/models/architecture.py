"""What a decoder-only transformer looks like, whatever file describes it.

Owns the frozen `Architecture`, the families it can express (Llama, Qwen2, Qwen3 and Qwen3.5 dense and mixture, Gemma 3
text) and the shapes of their parameters. It does not know files (weights/hugging_face.py and weights/gguf_model.py
read it from them) and no tensors. Invariant: the decoder branches on these fields alone, never on a family's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
SUPPORTED_FAMILIES = (
    "llama", "qwen2", "qwen3", "gemma3 (text)", "qwen3moe", "qwen3_5 (text)", "qwen3_5_moe (text)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): interpolation below `beta_slow` turns, none above `beta_fast`; `attention_factor`
    multiplies cosines and sines."""

    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """One kind of rotary embedding: base frequency and scaling. `uses_factors`: the file's `rope_freqs.weight`
    divides the frequencies instead. `turned_dims`: only so many elements of a head turn, the first; None: all."""

    theta: float
    scaling: RopeScaling | None = None
    uses_factors: bool = False
    turned_dims: int | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention: its rotary embedding, and how many tokens it sees (itself included); None sees all."""

    rope: Rope
    window: int | None = None


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """One layer that keeps a state of fixed size instead of keys and values (kernels/gated_delta.py has the rule).

    Queries and keys have `num_key_heads` of `key_dim`, values `num_value_heads` of `value_dim`; all three pass a causal
    convolution over `conv_tokens` tokens. Value heads share a key head in runs (`tiled`: in turn).
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_tokens: int
    tiled: bool = False

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.key_size + self.value_size


@dataclass(frozen=True, slots=True)
class Mixture:
    """Every layer's feed-forward network is `num_experts` small ones, of which a router chooses for each token.

    The chosen ones are weighted by their share of the router's softmax; `normalized`: by their share of the chosen.
    `shared_size`: one more network of that size computes every token, weighted by a gate of its own; 0: none.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    normalized: bool
    shared_size: int = 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and switches of one model. `context_window` is what it was made for, rope scaling included; with a
    `mixture` there is no single feed-forward network, and `feed_forward_size` is an expert's. `gated_attention`: the
    query matrix carries a gate for every element of the attention's output, its rows before those of the queries."""

    family: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    feed_forward_size: int
    vocab_size: int
    context_window: int
    layers: tuple[Attention | GatedDelta, ...]
    norm_epsilon: float
    attention_scale: float
    embedding_scale: float
    activation: Activation
    qkv_bias: bool
    query_key_norm: bool
    sandwich_norms: bool
    tied_output: bool
    mixture: Mixture | None = None
    gated_attention: bool = False

    @property
    def attention_layers(self) -> tuple[Attention, ...]:
        """Those that keep keys and values."""
        return tuple(layer for layer in self.layers if isinstance(layer, Attention))

    @property
    def delta_layers(self) -> tuple[GatedDelta, ...]:
        """Those that keep a state of fixed size for each sequence."""
        return tuple(layer for layer in self.layers if isinstance(layer, GatedDelta))

    @property
    def windows(self) -> frozenset[int | None]:
        return frozenset(layer.window for layer in self.attention_layers)

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim


def parameter_shapes(architecture: Architecture) -> Mapping[str, tuple[int, ...]]:
    """Every parameter the decoder needs, `role -> shape`; a layer's role is `layers.N.part`, an expert's
    `layers.N.experts.X.part`, the shared network's `layers.N.shared.part`."""
    vocab, hidden = architecture.vocab_size, architecture.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": (vocab, hidden), "norm": (hidden,)}
    if not architecture.tied_output:
        shapes["output"] = (vocab, hidden)
    for index, layer in enumerate(architecture.layers):
        parts = _mixer_shapes(architecture, layer) | _feed_forward_shapes(architecture)
        shapes |= {f"layers.{index}.{part}": shape for part, shape in parts.items()}
    return shapes


def _mixer_shapes(architecture: Architecture, layer: Attention | GatedDelta) -> dict[str, tuple[int, ...]]:
    """What mixes tokens: attention or a gated delta net, with the norm before it."""
    hidden = architecture.hidden_size
    if isinstance(layer, Attention):
        return {"attention_norm": (hidden,), **_attention_shapes(architecture)}
    return {
        "attention_norm": (hidden,),
        "delta_query_key_value": (layer.conv_size, hidden),
        "delta_gate": (layer.value_size, hidden),
        "delta_beta": (layer.num_value_heads, hidden),
        "delta_alpha": (layer.num_value_heads, hidden),
        "delta_conv": (layer.conv_size, layer.conv_tokens),
        "delta_decay": (layer.num_value_heads,),
        "delta_step_bias": (layer.num_value_heads,),
        "delta_norm": (layer.value_dim,),
        "delta_output": (hidden, layer.value_size),
    }


def _attention_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    hidden, query = architecture.hidden_size, architecture.query_size
    key = architecture.num_kv_heads * architecture.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "query": (2 * query if architecture.gated_attention else query, hidden),
        "key": (key, hidden),
        "value": (key, hidden),
        "attention_output": (hidden, query),
    }
    if architecture.qkv_bias:
        shapes |= {"query_bias": (query,), "key_bias": (key,), "value_bias": (key,)}
    if architecture.query_key_norm:
        shapes |= {"query_norm": (architecture.head_dim,), "key_norm": (architecture.head_dim,)}
    return shapes


def _feed_forward_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    hidden, mixture = architecture.hidden_size, architecture.mixture
    shapes: dict[str, tuple[int, ...]] = {"feed_forward_norm": (hidden,)}
    if architecture.sandwich_norms:
        shapes |= {"post_attention_norm": (hidden,), "post_feed_forward_norm": (hidden,)}
    network = _network_shapes(hidden, architecture.feed_forward_size)
    if mixture is None:
        return shapes | network
    shapes["router"] = (mixture.num_experts, hidden)
    for expert in range(mixture.num_experts):
        shapes |= {f"experts.{expert}.{part}": shape for part, shape in network.items()}
    if mixture.shared_size:
        shared = _network_shapes(hidden, mixture.shared_size)
        shapes |= {"shared_router": (1, hidden), **{f"shared.{part}": shape for part, shape in shared.items()}}
    return shapes


def _network_shapes(hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
