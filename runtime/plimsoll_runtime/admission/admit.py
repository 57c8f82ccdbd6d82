"""From a request to an admitted one: resolve what was not given, count the prompt, decide the budget.

Owns the composition of checks, tokens and the budget law, and the defaults of sampling. In: a `GenerationRequest` whose
fields `check` has passed. Out: an `AdmittedRequest`, or a `Refusal`. `admit` is slow on long prompts (template,
tokenizer) and runs off the event loop; it changes nothing outside itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from plimsoll_runtime.admission.budget import decide_budget
from plimsoll_runtime.admission.checks import CheckedFields, check_fields
from plimsoll_runtime.admission.deadlines import Patience, Times, decide_times
from plimsoll_runtime.admission.truncation import without_oldest_turns
from plimsoll_runtime.admitted import AdmittedPrompt, AdmittedRequest, Sampling
from plimsoll_runtime.contract.config import Limits, SamplingDefaults, field_names
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, Prompt
from plimsoll_runtime.text.model_text import AtLeast
from plimsoll_runtime.text.reasoning import ReasoningFormat
from plimsoll_runtime.text.structure.compiler import Constraint
from plimsoll_runtime.token_rules import AllOf, TokenRule

_NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


NewRule = Callable[[AdmittedPrompt], TokenRule]


class PromptEncoder(Protocol):
    """What admission needs of the model's text (text/model_text.py)."""

    def encode_prompt(
        self, prompt: Prompt, prompt_param: str, most_tokens: int | None = None
    ) -> list[int] | AtLeast | Refusal: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Facts of the loaded model that admission needs; `generation_defaults` are the model's own sampling settings."""

    name: str
    num_tokens: int
    eos_token_ids: frozenset[int]
    generation_defaults: Mapping[str, float]


class Admission:
    """The one owner of every limit. `new_seed` gives the seed of a request that named none.

    `tenant_weights`: the beginning of a tenant's name -> its weight; whoever is not among them weighs 1.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        model: ServedModel,
        encoder: PromptEncoder,
        patience: Patience,
        sampling_defaults: SamplingDefaults,
        new_seed: Callable[[], int],
        tenant_weights: Mapping[str, int] = MappingProxyType({}),
        stops_runaways: bool = False,
        reads_tool_calls: bool = False,
        reasoning: ReasoningFormat | None = None,
    ) -> None:
        self.limits = limits
        self.model = model
        self._encoder = encoder
        self._patience = patience
        self._new_seed = new_seed
        self._tenant_weights = tenant_weights
        self._stops_runaways = stops_runaways
        self._reads_tool_calls = reads_tool_calls
        self._reasoning = reasoning
        known = model.generation_defaults if sampling_defaults == "model" else {}
        self._sampling_defaults = {name: known.get(name, neutral) for name, neutral in _NEUTRAL.items()}

    def check(self, request: GenerationRequest) -> CheckedFields | Refusal:
        """Field limits (400), then the model's name (404): all that is judged before a queue place is taken."""
        checked = check_fields(request, self.model.num_tokens)
        if isinstance(checked, Refusal):
            return checked
        if request.tool_use is not None and not self._reads_tool_calls:
            return Refusal(
                code="unsupported_parameter",
                message="tools are not supported as this server is started: leave them out, or set "
                f"{field_names('tool_call_parser')} on the server to how its model writes calls",
                param="tools",
            )
        no_reasoning = self._refuse_reasoning(request, checked)
        if no_reasoning is not None:
            return no_reasoning
        endless = _refuse_endless(request, checked)
        if endless is not None:
            return endless
        if request.model != self.model.name:
            return Refusal(
                code="model_not_found",
                message=f"the model {request.model[:80]!r} does not exist: this server has {self.model.name!r}",
                param="model",
            )
        return checked

    def _refuse_reasoning(self, request: GenerationRequest, checked: CheckedFields) -> Refusal | None:
        param = request.reasoning_param
        if param is not None and self._reasoning is None:
            return Refusal(
                code="unsupported_parameter",
                message=f"{param}: reasoning is not supported as this server is started: leave it out, "
                f"or set {field_names('reasoning_parser')} on the server to how its model marks it",
                param=param,
            )
        if checked.reasoning_budget_tokens is not None and self._reasoning and self._reasoning.closer_id is None:
            return Refusal(
                code="unsupported_parameter",
                message=f"{param}: this model has no token for {self._reasoning.tags.closer}, so its reasoning "
                "cannot be ended at a budget: leave it out",
                param=param,
            )
        return None

    def count(self, request: GenerationRequest) -> list[list[int]] | Refusal:
        """Token ids of every prompt, after the template, however many they are."""
        counted: list[list[int]] = []
        for prompt in request.prompts:
            token_ids = self._encoder.encode_prompt(prompt, request.prompt_param)
            if isinstance(token_ids, Refusal):
                return token_ids
            assert not isinstance(token_ids, AtLeast), "without a bound every prompt is counted to its end"
            counted.append(token_ids)
        return counted

    def times(self, request: GenerationRequest, checked: CheckedFields, arrival: float) -> Times:
        """By when it must have a slot and be done. `arrival` is in seconds of the engine's clock."""
        return decide_times(self._patience, checked.client, streams=request.stream, arrival=arrival)

    def admit(
        self,
        request: GenerationRequest,
        checked: CheckedFields,
        *,
        request_id: str,
        tenant: str,
        times: Times,
        constraint: Constraint | None = None,
    ) -> AdmittedRequest | Refusal:
        """The request inside its budget. `constraint`: the form that its answers are held to."""
        prompts = self._decide(request, checked)
        if isinstance(prompts, Refusal):
            return prompts
        stops = checked.stop_token_ids | (frozenset() if checked.ignore_eos else self.model.eos_token_ids)
        return AdmittedRequest(
            request_id=request_id,
            route=request.route,
            tenant=tenant,
            prompts=prompts,
            num_choices=checked.num_choices,
            sampling=self._sampling(checked),
            stop_token_ids=stops,
            banned_until_min_tokens=stops if checked.min_tokens > 0 else frozenset(),
            min_tokens=checked.min_tokens,
            logprobs=checked.logprobs,
            prompt_logprobs=checked.logprobs if request.echo else None,
            queue_deadline=times.start_by,
            deadline=times.finish_by,
            deadline_action=self._patience.action,
            tenant_weight=self.weight_of(tenant),
            stop_on_runaway=self._stops_runaways or checked.repetition_stop,
            new_rule=self._new_rule(request, checked, constraint),
        )

    def _new_rule(
        self, request: GenerationRequest, checked: CheckedFields, constraint: Constraint | None
    ) -> NewRule | None:
        budget, form = self._budget_rule(request, checked), self._form_rule(request, constraint)
        if budget is None or form is None:
            return budget or form
        return lambda prompt: AllOf((budget(prompt), form(prompt)))

    def _form_rule(self, request: GenerationRequest, constraint: Constraint | None) -> NewRule | None:
        """A form binds the answer; where reasoning is told apart from it, what is reasoned is free."""
        if constraint is None:
            return None
        reasoning, asked = self._reasoning, request.prompts[0]
        if reasoning is None or not isinstance(asked, ChatPrompt):
            return lambda _prompt: constraint.matcher()
        arguments, ends = asked.template_arguments, self.model.eos_token_ids
        return lambda prompt: reasoning.free_before(constraint.matcher(), prompt.token_ids, arguments, ends)

    def _budget_rule(self, request: GenerationRequest, checked: CheckedFields) -> NewRule | None:
        """A budget of reasoning leaves at least one token for the answer."""
        wanted, reasoning, asked = checked.reasoning_budget_tokens, self._reasoning, request.prompts[0]
        if wanted is None or reasoning is None or not isinstance(asked, ChatPrompt):
            return None
        arguments = asked.template_arguments
        return lambda prompt: reasoning.budget(
            prompt.token_ids, arguments, min(wanted, prompt.budget.max_output_tokens - 1)
        )

    def weight_of(self, tenant: str) -> int:
        """The tenant's share against others."""
        weights = (weight for name, weight in self._tenant_weights.items() if tenant.startswith(name))
        return next(weights, 1)

    def _decide(self, request: GenerationRequest, checked: CheckedFields) -> tuple[AdmittedPrompt, ...] | Refusal:
        limits = self.limits
        if checked.over_budget is not None:
            limits = replace(limits, over_budget=checked.over_budget)
        prompts: list[AdmittedPrompt] = []
        for prompt in request.prompts:
            token_ids = self._encoder.encode_prompt(prompt, request.prompt_param, limits.context_length)
            if isinstance(token_ids, Refusal):
                return token_ids
            decision = decide_budget(_length(token_ids), checked.requested_output_tokens, limits)
            if isinstance(decision, Refusal) and request.drops_oldest and isinstance(prompt, ChatPrompt):
                token_ids = self._encode_shortened(prompt, request.prompt_param, checked)
                if isinstance(token_ids, Refusal):
                    return token_ids
                decision = decide_budget(_length(token_ids), checked.requested_output_tokens, limits)
            if isinstance(decision, Refusal):
                return _with_param(decision, request, checked, isinstance(token_ids, AtLeast))
            assert not isinstance(token_ids, AtLeast), "a prompt beyond the context has no room for output"
            prompts.append(AdmittedPrompt(token_ids=tuple(token_ids), budget=decision))
        return tuple(prompts)

    def _encode_shortened(
        self, prompt: ChatPrompt, prompt_param: str, checked: CheckedFields
    ) -> list[int] | AtLeast | Refusal:
        """Without the oldest turns, so that there is room for the output that is wanted, up to half of the context."""
        context, wanted = self.limits.context_length, checked.requested_output_tokens
        most = context - min(self.limits.max_output_default if wanted is None else wanted, context // 2)

        def fits(shorter: ChatPrompt) -> bool:
            token_ids = self._encoder.encode_prompt(shorter, prompt_param, most)
            return isinstance(token_ids, Refusal) or _length(token_ids) <= most

        return self._encoder.encode_prompt(without_oldest_turns(prompt, fits), prompt_param, context)

    def _sampling(self, checked: CheckedFields) -> Sampling:
        values = {**self._sampling_defaults, **checked.numbers}
        top_k = int(values["top_k"]) if checked.top_k is None else checked.top_k
        return Sampling(
            temperature=values["temperature"],
            top_p=values["top_p"],
            top_k=max(0, top_k),
            min_p=values["min_p"],
            presence_penalty=values["presence_penalty"],
            frequency_penalty=values["frequency_penalty"],
            repetition_penalty=values["repetition_penalty"],
            logit_bias=checked.logit_bias,
            seed=self._new_seed() if checked.seed is None else checked.seed,
        )


def _length(token_ids: list[int] | AtLeast) -> int:
    return token_ids.num_tokens if isinstance(token_ids, AtLeast) else len(token_ids)


def _refuse_endless(request: GenerationRequest, checked: CheckedFields) -> Refusal | None:
    """An answer that has a form ends with it, and can go no further."""
    if request.structure is None or not (checked.ignore_eos or checked.min_tokens):
        return None
    param = "ignore_eos" if checked.ignore_eos else "min_tokens"
    message = (
        f"{param} cannot be kept with {request.structure.param}, whose answer ends where it is complete: leave one out"
    )
    return Refusal("invalid_parameter_combination", message, param)


def _with_param(refusal: Refusal, request: GenerationRequest, checked: CheckedFields, at_least: bool) -> Refusal:
    """The budget's refusal under the field that is to be changed."""
    param = request.prompt_param if refusal.budget_cause == "prompt" else checked.limit_param
    note = " (so many tokens at the least: a prompt this long is not counted to its end)" if at_least else ""
    return replace(refusal, param=param, message=refusal.message + note)
