"""The decoder whose layers are one call of the native library per step.

Owns the structs of native/decoder.h, filled once from a loaded `Decoder`, and the spans of a step. In: a decoder whose
layers the library can compute. Out: the same hidden states and logits as that decoder's, up to rounding, and bit for
bit the same whatever shares a row's batch. It does not know the order of the operations (decoder.cpp has it).
Invariants: every pointer in a struct belongs to a tensor or matrix that this object holds; a page of the cache is
`PAGE_TOKENS` tokens, and how its keys and values lie in it is the library's own.

Shapes: T tokens of the step, N rows of interest, E hidden size, V vocabulary.
"""

import ctypes
from array import array
from collections.abc import Collection, Sequence

import torch

from plimsoll_runtime.kernels.matrix import Matrix, StackedMatrix
from plimsoll_runtime.kernels.native_library import NATIVE_STORAGES, NativeError, NativeKernels, NativeMatrix
from plimsoll_runtime.models.architecture import Architecture, Attention
from plimsoll_runtime.models.attention import AttentionBatch, LayerCache, SequenceSpan
from plimsoll_runtime.models.decoder import AnyCache, AttentionWeights, Decoder
from plimsoll_runtime.models.feed_forward import GatedNetwork

PAGE_TOKENS = 16
MAX_HEAD_DIM = 256
MAX_GROUP = 24
"""Query heads that share one key/value head."""

MAX_PARTS = 3

NATIVE_CACHE_DTYPE = torch.int8
"""Codes, and a float16 scale for each CODE_GROUP dimensions: a quarter of float32 to hold and to read, rounded no more
than the 8-bit inputs of every product are."""

CODE_GROUP = 32

_POINTER, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class LayerStruct(ctypes.Structure):
    _fields_ = (
        ("query_key_value", _POINTER * MAX_PARTS),
        ("attention_output", _POINTER * MAX_PARTS),
        ("gate_up", _POINTER * MAX_PARTS),
        ("down", _POINTER * MAX_PARTS),
        ("attention_norm", _POINTER),
        ("query_key_value_bias", _POINTER),
        ("query_key_norm", _POINTER),
        ("post_attention_norm", _POINTER),
        ("feed_forward_norm", _POINTER),
        ("post_feed_forward_norm", _POINTER),
        ("frequencies", _POINTER),
        ("rotation_factor", _NUMBER),
        ("window", _SIZE),
    )


class DecoderStruct(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(LayerStruct)),
        ("norm", _POINTER),
        ("num_layers", _SIZE),
        ("num_heads", _SIZE),
        ("num_kv_heads", _SIZE),
        ("head_dim", _SIZE),
        ("hidden_size", _SIZE),
        ("feed_forward_size", _SIZE),
        ("is_gelu", _SIZE),
        ("norm_epsilon", _NUMBER),
        ("attention_scale", _NUMBER),
    )


class SpanStruct(ctypes.Structure):
    _fields_ = (("start_row", _SIZE), ("num_tokens", _SIZE), ("context_tokens", _SIZE), ("pages", _POINTER))


class StepStruct(ctypes.Structure):
    _fields_ = (
        ("spans", ctypes.POINTER(SpanStruct)),
        ("num_spans", _SIZE),
        ("num_rows", _SIZE),
        ("hidden", _POINTER),
        ("keys", ctypes.POINTER(_POINTER)),
        ("values", ctypes.POINTER(_POINTER)),
    )


def fits_library(architecture: Architecture, storages: Collection[str], dtype: torch.dtype, page_size: int) -> bool:
    """Whether the library computes the layers of such a model, whose matrices have these storages: every storage, plain
    attention and one feed-forward network in each layer, heads of whole registers, float32 activations."""
    group = architecture.num_heads // architecture.num_kv_heads
    fits_heads = architecture.head_dim % 16 == 0 and architecture.head_dim <= MAX_HEAD_DIM and group <= MAX_GROUP
    is_dense = architecture.mixture is None and NATIVE_STORAGES.issuperset(storages)
    is_plain = not architecture.delta_layers and not architecture.gated_attention
    return fits_heads and is_dense and is_plain and dtype == torch.float32 and page_size == PAGE_TOKENS


def native_head_elements(head_dim: int) -> int:
    """Elements of NATIVE_CACHE_DTYPE that one token's keys, or values, of one head take: codes and scales."""
    return head_dim + -(-head_dim // CODE_GROUP) * torch.float16.itemsize


class NativeDecoder:
    """The weights of `decoder`, which fits the library, computed by the kernels that packed them.

    `forward` and `logits` may be called from one thread at a time."""

    def __init__(self, decoder: Decoder, kernels: NativeKernels) -> None:
        self.architecture = decoder.architecture
        self.device = decoder.device
        self.dtype = decoder.dtype
        self._decoder = decoder
        self._kernels = kernels
        self._forward = kernels.library.plimsoll_forward
        self._frequencies = {rotation: rotation.frequencies_F.contiguous() for rotation in decoder.rotations}
        self._layers = (LayerStruct * len(decoder.layers))(*map(self._describe_layer, range(len(decoder.layers))))
        self._struct = self._describe()

    @torch.inference_mode()
    def forward(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        attention: AttentionBatch,
        cache: Sequence[AnyCache],
    ) -> torch.Tensor:
        """Hidden states `[T, E]` after the final norm; writes the new tokens' keys and values into `cache`."""
        assert attention.page_size == PAGE_TOKENS
        layers = [layer for layer in cache if isinstance(layer, LayerCache)]
        assert layers[0].keys.dtype == NATIVE_CACHE_DTYPE
        hidden_TE = self._decoder.embed(token_ids_T).contiguous()
        tables = [array("i", span.page_table) for span in attention.spans]
        spans = (SpanStruct * len(tables))(*map(_describe_span, attention.spans, tables))
        pointers = _POINTER * len(layers)
        step = StepStruct(
            spans=spans,
            num_spans=len(tables),
            num_rows=hidden_TE.shape[0],
            hidden=hidden_TE.data_ptr(),
            keys=pointers(*(layer.keys.data_ptr() for layer in layers)),
            values=pointers(*(layer.values.data_ptr() for layer in layers)),
        )
        if self._forward(self._kernels.handle, ctypes.byref(self._struct), ctypes.byref(step)):
            raise NativeError(f"no memory for a step of {hidden_TE.shape[0]} rows")
        return hidden_TE

    def logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """`[N, V]` float32 for rows that came out of `forward`."""
        return self._decoder.logits(hidden_NE)

    def _describe(self) -> DecoderStruct:
        shape = self.architecture
        return DecoderStruct(
            layers=self._layers,
            norm=self._decoder.norm.data_ptr(),
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            hidden_size=shape.hidden_size,
            feed_forward_size=shape.feed_forward_size,
            is_gelu=shape.activation == "gelu_tanh",
            norm_epsilon=shape.norm_epsilon,
            attention_scale=shape.attention_scale,
        )

    def _describe_layer(self, index: int) -> LayerStruct:
        layer, kind = self._decoder.layers[index], self.architecture.layers[index]
        attention, network = layer.mixer, layer.feed_forward
        assert isinstance(kind, Attention)
        assert isinstance(attention, AttentionWeights)
        assert isinstance(network, GatedNetwork)
        return LayerStruct(
            query_key_value=_handles(attention.query_key_value),
            attention_output=_handles(attention.output),
            gate_up=_handles(network.gate_up),
            down=_handles(network.down),
            attention_norm=_address(layer.attention_norm),
            query_key_value_bias=_address(attention.query_key_value_bias),
            query_key_norm=_address(attention.query_key_norm),
            post_attention_norm=_address(layer.post_attention_norm),
            feed_forward_norm=_address(layer.feed_forward_norm),
            post_feed_forward_norm=_address(layer.post_feed_forward_norm),
            frequencies=self._frequencies[attention.rotation].data_ptr(),
            rotation_factor=attention.rotation.attention_factor,
            window=0 if kind.window is None else kind.window,
        )


def _describe_span(span: SequenceSpan, table: "array[int]") -> SpanStruct:
    return SpanStruct(span.start_row, span.num_tokens, span.context_tokens, table.buffer_info()[0])


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _handles(matrix: Matrix) -> ctypes.Array[ctypes.c_void_p]:
    parts = matrix.parts if isinstance(matrix, StackedMatrix) else (matrix,)
    assert len(parts) <= MAX_PARTS
    handles = [part.handle for part in parts if isinstance(part, NativeMatrix)]
    assert len(handles) == len(parts), "every matrix of a layer must be packed for the library"
    return (_POINTER * MAX_PARTS)(*handles)
