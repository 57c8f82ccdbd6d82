"""How a token is chosen: each row alone, at least one candidate, the same draw whatever shares the batch."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from doubles.admitted_requests import PLAIN_SAMPLING, admitted
from doubles.engine_runs import TINY
from plimsoll_runtime.admitted import Sampling
from plimsoll_runtime.engine.sampler import NotSampled, Sampled, draw, sample, uniform
from plimsoll_runtime.engine.sequence import Sequence, split_request
from plimsoll_runtime.engine.settings import EngineSettings

SETTINGS = EngineSettings(**TINY)
SCORES = [0.0, 1.0, 3.0, 2.0, 3.0, -1.0]
"""Ids 2 and 4 are the likeliest, equally; then 3, 1, 0, 5."""


def sequence(output: list[int] | None = None, prompt: tuple[int, ...] = (0,), **values: Any) -> Sequence:
    made = split_request(admitted("r", prompt, **values), SETTINGS)[-1]
    for token_id in output or []:
        made.append(token_id)
    return made


def chosen(scores: list[float], *sequences: Sequence) -> list[int]:
    outcomes = sample(torch.tensor([scores] * len(sequences)), sequences)
    assert all(isinstance(outcome, Sampled) for outcome in outcomes), outcomes
    return [outcome.token_id for outcome in outcomes if isinstance(outcome, Sampled)]


ONLY_BEST = {2}
CANDIDATES: list[tuple[str, dict[str, Any], set[int]]] = [
    # Before: the edges of top_k and top_p left no candidate, or indexed past the vocabulary.
    ("B29 top_p 0 is the likeliest alone", {"top_p": 0.0}, ONLY_BEST),
    ("B29 a tiny top_p is the likeliest alone", {"top_p": 1e-12}, ONLY_BEST),
    ("B29 top_p 1 cuts nothing off", {"top_p": 1.0, "temperature": 5.0}, {0, 1, 2, 3, 4, 5}),
    ("B29 top_k 0 cuts nothing off", {"top_k": 0, "temperature": 5.0}, {0, 1, 2, 3, 4, 5}),
    ("B29 top_k 1", {"top_k": 1}, ONLY_BEST),
    ("B29 top_k vocabulary", {"top_k": 6, "temperature": 5.0}, {0, 1, 2, 3, 4, 5}),
    ("B29 top_k vocabulary + 1", {"top_k": 7, "temperature": 5.0}, {0, 1, 2, 3, 4, 5}),
    ("B29 top_k 9999999", {"top_k": 9_999_999, "temperature": 5.0}, {0, 1, 2, 3, 4, 5}),
    ("top_k cuts equals by id", {"top_k": 1, "temperature": 9.0}, ONLY_BEST),
    ("top_k 3", {"top_k": 3, "temperature": 5.0}, {2, 3, 4}),
    ("top_p counts after top_k", {"top_k": 3, "top_p": 0.5, "temperature": 1e3}, {2, 4}),
    ("min_p 1 keeps the likeliest", {"min_p": 1.0, "temperature": 5.0}, {2, 4}),
    ("min_p cuts below its share of the likeliest", {"min_p": 0.3}, {2, 3, 4}),
    ("the smallest temperature", {"temperature": 5e-324, "top_p": 0.9}, {2, 4}),
    ("everything at once", {"top_k": 2, "top_p": 0.0, "min_p": 1.0}, ONLY_BEST),
]


@pytest.mark.parametrize(("values", "ids"), [case[1:] for case in CANDIDATES], ids=[case[0] for case in CANDIDATES])
def test_candidates(values: dict[str, Any], ids: set[int]) -> None:
    made = {"temperature": 1.0, **values}
    sequences = [sequence([1] * position, context_length=512, **made) for position in range(300)]
    assert set(chosen(SCORES, *sequences)) == ids


END_BANNED: dict[str, Any] = {"min_tokens": 1, "banned_until_min_tokens": frozenset({5})}
GREEDY: list[tuple[str, dict[str, Any], list[int], int]] = [
    ("ties go to the lowest id", {}, [], 2),
    ("whatever else is asked", {"top_p": 0.1, "top_k": 1, "min_p": 1.0, "seed": 9}, [], 2),
    ("frequency", {"frequency_penalty": 0.7}, [2, 2, 4], 4),
    ("presence", {"presence_penalty": 1.5}, [2, 4], 3),
    ("presence counts once", {"presence_penalty": 0.5}, [2, 2, 2, 2], 4),
    ("a negative penalty", {"presence_penalty": -2.0}, [3], 3),
    ("repetition over the output", {"repetition_penalty": 2.0}, [2, 4], 3),
    ("repetition over the prompt", {"repetition_penalty": 2.0, "prompt": (2, 4)}, [], 3),
    ("bias", {"logit_bias": {5: 100.0}}, [], 5),
    ("bias against", {"logit_bias": {2: -100.0, 4: -100.0}}, [], 3),
    ("banned below min_tokens", {"min_tokens": 2, "banned_until_min_tokens": frozenset({2, 4})}, [0], 3),
    ("allowed from min_tokens on", {"min_tokens": 2, "banned_until_min_tokens": frozenset({2, 4})}, [0, 0], 2),
    ("the ban beats the bias", {**END_BANNED, "logit_bias": {5: 100.0}}, [], 2),
]


@pytest.mark.parametrize(("values", "output", "token_id"), [c[1:] for c in GREEDY], ids=[c[0] for c in GREEDY])
def test_temperature_zero_takes_the_maximum(values: dict[str, Any], output: list[int], token_id: int) -> None:
    assert chosen(SCORES, sequence(output, **values)) == [token_id]


def test_repetition_makes_unlikely_ids_less_likely_too() -> None:
    assert chosen([-1.0, -1.5], sequence([0], repetition_penalty=2.0)) == [1]


def test_a_mixed_batch_gives_each_row_what_it_gets_alone() -> None:
    """B26: one request's settings leaked into its batch, or mixing greedy and drawn rows ended the engine."""
    rows = [
        sequence(),
        sequence(temperature=1.0, seed=7),
        sequence(temperature=1.0, top_k=1),
        sequence(temperature=1.0, logit_bias={5: 100.0}),
        sequence([2], frequency_penalty=2.0),
        sequence(temperature=2.0, seed=8, top_p=0.9, logprobs=2),
    ]
    together = sample(torch.tensor([SCORES] * len(rows)), rows)
    assert together == [sample(torch.tensor([SCORES]), [row])[0] for row in rows]
    assert [outcome.token_id for outcome in together[2:4] if isinstance(outcome, Sampled)] == [2, 5]


SEEDS = [0, 1, 123, -1, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_signed_64_bit_seed_repeats_itself(seed: int) -> None:
    """B27: seeds were ignored, or -1 meant that there was none."""
    rows = [sequence([1] * position, temperature=1.0, seed=seed) for position in range(50)]
    flat = [0.0] * 6
    assert chosen(flat, *rows) == chosen(flat, *reversed(rows))[::-1]
    assert len(set(chosen(flat, *rows))) > 1


def test_seeds_choices_and_positions_draw_apart() -> None:
    """B27: the two choices of `n: 2` under one seed were the same."""
    numbers = [uniform(seed, choice, position) for seed in SEEDS for choice in range(5) for position in range(20)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)


def test_two_choices_of_one_seed_differ() -> None:
    """B27: the second choice of `n: 2` repeated the first, word for word."""
    first, second = (
        chosen([0.0] * 6, *(sequence([1] * position, temperature=1.0, seed=5, num_choices=n) for position in range(30)))
        for n in (1, 2)
    )
    assert first != second


def test_the_draw_is_the_same_in_every_version() -> None:
    """A seed's answers must survive an update: these numbers are for ever."""
    assert [round(uniform(seed, 0, 0), 6) for seed in (0, 1, -1)] == [0.156743, 0.337761, 0.665247]


def test_draws_follow_the_distribution() -> None:
    sampling = Sampling(**{**PLAIN_SAMPLING, "temperature": 1.0})
    scores = np.log(np.array([0.5, 0.25, 0.2, 0.05, 1e-300]))
    counts = Counter(draw(scores, sampling, (i + 0.5) / 1000) for i in range(1000))
    assert [counts[i] for i in range(5)] == pytest.approx([500, 250, 200, 50, 0], abs=1)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53, 1.0])
def test_no_draw_takes_an_impossible_token(number: float) -> None:
    sampling = Sampling(**{**PLAIN_SAMPLING, "temperature": 1.0})
    assert draw(np.array([-np.inf, 0.0, -np.inf]), sampling, number) == 1


def test_a_wide_nucleus_is_found_behind_the_first_candidates() -> None:
    sampling = Sampling(**{**PLAIN_SAMPLING, "temperature": 1.0, "top_p": 0.5})
    assert [draw(np.zeros(5000), sampling, number) for number in (0.0, 0.5, 1 - 2**-53)] == [0, 1250, 2499]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_numbers_choose_nothing(bad: float) -> None:
    logits = torch.tensor([SCORES, [bad, *SCORES[1:]], SCORES])
    outcomes = sample(logits, [sequence(), sequence(), sequence(temperature=1.0)])
    assert [type(outcome) for outcome in outcomes] == [Sampled, NotSampled, Sampled]


def test_a_ban_of_everything_chooses_nothing() -> None:
    rows = [sequence(min_tokens=1, banned_until_min_tokens=frozenset(range(6)))]
    assert [type(outcome) for outcome in sample(torch.tensor([SCORES]), rows)] == [NotSampled]
