"""In which order the rows of a stored matrix make one that the decoder computes with.

Owns index arithmetic alone, for files whose heads are arranged otherwise than the decoder's.
"""

import torch


def halves_order(num_heads: int, head_dim: int) -> torch.Tensor:
    """Turns neighbours (GGUF's Llama rotates elements 2i and 2i + 1) into halves (i and i + D/2)."""
    return torch.arange(num_heads * head_dim).view(num_heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def gates_first(num_heads: int, head_dim: int) -> torch.Tensor:
    """Takes every head's gate out from behind its query, and puts all gates first."""
    return torch.arange(2 * num_heads * head_dim).view(num_heads, 2, head_dim).flip(1).transpose(0, 1).reshape(-1)
