"""One token before the first client."""

import pytest

from doubles.engine_runs import VOCAB_SIZE, EngineRun
from doubles.scripted_model import NOT_A_NUMBER, Script, write
from plimsoll_runtime.admission.admit import Admission, ServedModel
from plimsoll_runtime.admission.deadlines import Patience
from plimsoll_runtime.contract.config import Limits
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import Prompt, TokenPrompt
from plimsoll_runtime.warm_up import warm_up


class Encoder:
    def encode_prompt(self, prompt: Prompt, prompt_param: str, most_tokens: int | None = None) -> list[int] | Refusal:
        assert isinstance(prompt, TokenPrompt)
        return list(prompt.token_ids)


def warmed_up(script: Script) -> EngineRun:
    """After the warm-up of a server that lets no client wait at all."""
    run = EngineRun(script)
    admission = Admission(
        limits=Limits(context_length=64, max_output_default=8, max_output_limit=None, over_budget="clamp"),
        model=ServedModel("m", VOCAB_SIZE, frozenset(), {}),
        encoder=Encoder(),
        patience=Patience(0, 0),
        sampling_defaults="neutral",
        new_seed=lambda: 0,
    )
    warm_up(run.engine, admission)
    return run


def test_the_patience_with_clients_is_not_the_patience_with_the_first_token() -> None:
    """What happened before: a short queue timeout expired it, and the server was ready without having answered."""
    run = warmed_up(write([7]))
    assert len(run.steps) == 1
    assert not run.engine.has_work()


def test_a_model_that_computes_nonsense_does_not_start() -> None:
    with pytest.raises(StartError, match="cannot compute its first token"):
        warmed_up(write([NOT_A_NUMBER]))
