"""The gated delta rule: the block gives what the definition gives token by token, and so does any cut into spans.

The definition is written out here once more, in float64 and without a matrix product.
"""

from dataclasses import dataclass

import pytest
import torch

from plimsoll_runtime.kernels.gated_delta import advance, advance_states, causal_conv, spread_key_heads

HEADS, KEY_DIM, VALUE_DIM = 3, 8, 5
TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one sequence, and the slot of its state."""

    rows: slice
    state_slot: int


def inputs(num_tokens: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, decays, betas; some decays forget nearly all, so that their products underflow."""
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(num_tokens, HEADS, KEY_DIM, generator=generator) for _ in range(2))
    value = torch.randn(num_tokens, HEADS, VALUE_DIM, generator=generator)
    decay = -torch.rand(num_tokens, HEADS, generator=generator) * 2
    decay[num_tokens // 2] = -90.0
    return query, key, value, decay, torch.rand(num_tokens, HEADS, generator=generator)


def by_definition(state: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
    """Token by token, head by head, element by element of the value; changes `state`."""
    query, key, value, decay, beta = (part.double() for part in parts)
    outputs = torch.zeros(*value.shape, dtype=torch.float64)
    for token in range(value.shape[0]):
        for head in range(HEADS):
            unit_query = query[token, head] / (query[token, head].square().sum() + 1e-6).sqrt()
            unit_key = key[token, head] / (key[token, head].square().sum() + 1e-6).sqrt()
            for element in range(VALUE_DIM):
                column = state[head, :, element] * decay[token, head].exp()
                error = value[token, head, element] - (unit_key * column).sum()
                column = column + unit_key * error * beta[token, head]
                state[head, :, element] = column
                outputs[token, head, element] = (unit_query * column).sum() / KEY_DIM**0.5
    return outputs


@pytest.mark.parametrize("cuts", [[150], [1] * 40, [64, 64], [63, 1, 65], [7, 1, 1, 90]], ids=str)
def test_steps_and_blocks_give_the_definition(cuts: list[int]) -> None:
    parts = inputs(sum(cuts))
    start = torch.randn(HEADS, KEY_DIM, VALUE_DIM, generator=torch.Generator().manual_seed(1))
    exact_state, state = start.double(), start.clone()
    expected = by_definition(exact_state, *parts)
    at, outputs = 0, []
    for cut in cuts:
        outputs.append(advance(state, *(part[at : at + cut] for part in parts)))
        at += cut
    torch.testing.assert_close(torch.cat(outputs).double(), expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(state.double(), exact_state, rtol=0, atol=TOLERANCE)


def test_spans_move_their_own_states_only() -> None:
    parts = inputs(12)
    states = torch.randn(4, HEADS, KEY_DIM, VALUE_DIM, generator=torch.Generator().manual_seed(2))
    before = states.clone()
    query, key, value, decay, beta = parts
    output = advance_states(query, key, value, decay, beta, [Span(slice(0, 1), 3), Span(slice(2, 12), 1)], states)
    for rows, slot in ((slice(0, 1), 3), (slice(2, 12), 1)):
        alone = before[slot].clone()
        assert torch.equal(output[rows], advance(alone, *(part[rows] for part in parts)))
        assert torch.equal(states[slot], alone)
    assert torch.equal(output[1], torch.zeros(HEADS, VALUE_DIM))
    assert torch.equal(states[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("cuts", [[9], [1] * 9, [2, 1, 6]], ids=str)
def test_the_convolution_remembers_its_last_inputs(cuts: list[int]) -> None:
    generator = torch.Generator().manual_seed(3)
    values, weight = torch.randn(9, 6, generator=generator), torch.randn(6, 4, generator=generator)
    past, at, outputs = torch.zeros(3, 6), 0, []
    for cut in cuts:
        outputs.append(causal_conv(values[at : at + cut], weight, past))
        at += cut
    padded = torch.cat((torch.zeros(3, 6), values)).t()[None]
    expected = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight[:, None], groups=6)[0].t())
    torch.testing.assert_close(torch.cat(outputs), expected)
    assert torch.equal(past, values[-3:])


def test_value_heads_share_key_heads_in_runs_or_in_turn() -> None:
    heads = torch.tensor([[[0.0], [1.0]]])
    assert spread_key_heads(heads, 6, tiled=False).flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert spread_key_heads(heads, 6, tiled=True).flatten().tolist() == [0, 1, 0, 1, 0, 1]
