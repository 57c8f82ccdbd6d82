"""What a decoder-only transformer looks like, whatever file describes it.

Owns the frozen `Architecture`, the families it can express (Llama, Qwen2, Qwen3 dense and mixture, Gemma 3 text) and
the shapes of their parameters. It does not know files (weights/hugging_face.py and weights/gguf_model.py read it from
them) and no tensors. Invariant: the decoder branches on these fields alone, never on a family's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
SUPPORTED_FAMILIES = ("llama", "qwen2", "qwen3", "gemma3 (text)", "qwen3moe")


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
    divides the frequencies instead."""

    theta: float
    scaling: RopeScaling | None = None
    uses_factors: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention: its rotary embedding, and how many tokens it sees (itself included); None sees all."""

    rope: Rope
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Mixture:
    """Every layer's feed-forward network is `num_experts` small ones, of which a router chooses for each token.

    The chosen ones are weighted by their share of the router's softmax; `normalized`: by their share of the chosen.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    normalized: bool


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and switches of one model. `context_window` is what it was made for, rope scaling included; with a
    `mixture` there is no single feed-forward network, and `feed_forward_size` is an expert's."""

    family: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    feed_forward_size: int
    vocab_size: int
    context_window: int
    layers: tuple[Attention, ...]
    norm_epsilon: float
    attention_scale: float
    embedding_scale: float
    activation: Activation
    qkv_bias: bool
    query_key_norm: bool
    sandwich_norms: bool
    tied_output: bool
    mixture: Mixture | None = None

    @property
    def windows(self) -> frozenset[int | None]:
        return frozenset(layer.window for layer in self.layers)


def parameter_shapes(architecture: Architecture) -> Mapping[str, tuple[int, ...]]:
    """Every parameter the decoder needs, `role -> shape`; a layer's role is `layers.N.part`, an expert's
    `layers.N.experts.X.part`."""
    vocab, hidden = architecture.vocab_size, architecture.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": (vocab, hidden), "norm": (hidden,)}
    if not architecture.tied_output:
        shapes["output"] = (vocab, hidden)
    for index in range(architecture.num_layers):
        shapes |= {f"layers.{index}.{part}": shape for part, shape in _layer_shapes(architecture).items()}
    return shapes


def _layer_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    hidden, inner = architecture.hidden_size, architecture.feed_forward_size
    query = architecture.num_heads * architecture.head_dim
    key = architecture.num_kv_heads * architecture.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "query": (query, hidden),
        "key": (key, hidden),
        "value": (key, hidden),
        "attention_output": (hidden, query),
        "feed_forward_norm": (hidden,),
    }
    network = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    if architecture.mixture is None:
        shapes |= network
    else:
        shapes["router"] = (architecture.mixture.num_experts, hidden)
        for expert in range(architecture.mixture.num_experts):
            shapes |= {f"experts.{expert}.{part}": shape for part, shape in network.items()}
    if architecture.qkv_bias:
        shapes |= {"query_bias": (query,), "key_bias": (key,), "value_bias": (key,)}
    if architecture.query_key_norm:
        shapes |= {"query_norm": (architecture.head_dim,), "key_norm": (architecture.head_dim,)}
    if architecture.sandwich_norms:
        shapes |= {"post_attention_norm": (hidden,), "post_feed_forward_norm": (hidden,)}
    return shapes
