"""Everything about one model's text: its tokenizer, its chat template, and how a prompt becomes token ids.

Owns the way from a `Prompt` to ids. In: prompts as routes make them. Out: ids, or a `Refusal` under the parameter's
wire name. It knows no limits: how many ids are too many is admission's business. Invariants: control ids in a chat
prompt come from the template alone; where the tokenizer begins texts with BOS, a chat prompt has exactly one.

Tokenizing may take seconds for megabytes of text: call from a worker thread, not from the event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt, Tool
from plimsoll_runtime.text.chat_template import ChatTemplate, RenderFailure
from plimsoll_runtime.text.control_tokens import ControlTokenGuard
from plimsoll_runtime.text.conversation import Message, arrangements, plain_messages, system_texts
from plimsoll_runtime.text.errors import TemplateError
from plimsoll_runtime.text.gguf_vocabulary import tokenizer_from_gguf
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.text.tokenizer_folder import (
    TOOL_TEMPLATE,
    template_source_from_folder,
    tokenizer_from_folder,
    tool_template_source_from_folder,
)

_RESERVED_WORDS = """
    messages tools tool_choice documents conversation conversations chat_template tokenize add_generation_prompt
    continue_final_message return_assistant_tokens_mask return_dict return_tensors padding truncation max_length
    tokenizer_kwargs sanitize_control_tokens bos_token eos_token unk_token pad_token sep_token cls_token mask_token
"""
RESERVED_ARGUMENTS = frozenset(_RESERVED_WORDS.split())
"""What the server itself gives to the template, or what would change the rendering behind its back."""

_TEMPLATE_ARGUMENTS_PARAM = "chat_template_kwargs"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A prompt that was not tokenized, since it certainly has this many tokens or more."""

    num_tokens: int


class ModelText:
    """One model's text. Safe to use from several threads at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        vocab_size: int | None = None,
        tool_template: ChatTemplate | None = None,
    ) -> None:
        """`template` None: the model has none, and chat prompts are refused. `vocab_size`: rows of the embedding.

        `tool_template` renders chats with tools, where it is not the same template.
        """
        self.tokenizer = tokenizer
        rows = tokenizer.num_tokens if vocab_size is None else vocab_size
        self.num_usable_tokens = min(tokenizer.num_tokens, rows)
        self.template = template
        self._tool_template = template if tool_template is None else tool_template
        templates = [each for each in (template, tool_template) if each is not None]
        literal_text = "\0".join(each.literal_text for each in templates)
        written = (text for text in tokenizer.added_texts - tokenizer.control_texts if text in literal_text)
        # A run of spaces or line ends is written by every template and means nothing.
        self._guard = ControlTokenGuard(tokenizer.control_texts, [text for text in written if text.strip()])

    def encode_prompt(
        self, prompt: Prompt, prompt_param: str, most_tokens: int | None = None
    ) -> list[int] | AtLeast | Refusal:
        """Token ids of one prompt. `prompt_param` is the field under which the client sent it.

        A prompt that certainly has more than `most_tokens` is not tokenized: 20 MB would take seconds and gigabytes.
        """
        try:
            ids = self._encode(prompt, prompt_param, most_tokens)
        except UnicodeEncodeError:
            sentence = f"{prompt_param} has an unpaired surrogate, which is no character."
            return Refusal("invalid_value", sentence, prompt_param)
        if isinstance(ids, Refusal | AtLeast):
            return ids
        if not ids:
            return Refusal("invalid_value", f"{prompt_param} has no tokens: send at least one.", prompt_param)
        # Some tokenizers know tokens that the model has no embedding for, such as those for pictures.
        if not 0 <= min(ids) <= max(ids) < self.num_usable_tokens:
            return self._refuse_ids(ids, prompt_param)
        return ids

    def _encode(self, prompt: Prompt, prompt_param: str, most_tokens: int | None) -> list[int] | AtLeast | Refusal:
        match prompt:
            case ChatPrompt():
                return self._encode_chat(prompt, prompt_param, most_tokens)
            case TextPrompt(text):
                too_long = self._too_long(text, most_tokens)
                return too_long or self.tokenizer.encode(text, parse_special=True, add_special=True)
            case TokenPrompt(token_ids):
                return list(token_ids)
            case _:
                assert_never(prompt)

    def _too_long(self, text: str, most_tokens: int | None) -> AtLeast | None:
        if most_tokens is None or len(text) <= most_tokens:
            return None
        least = self.tokenizer.least_tokens(text)
        return AtLeast(least) if least > most_tokens else None

    def _encode_chat(
        self, prompt: ChatPrompt, prompt_param: str, most_tokens: int | None
    ) -> list[int] | AtLeast | Refusal:
        template = self._tool_template if prompt.tools else self.template
        if template is None:
            sentence = "This model has no chat template: use /v1/completions, or a model whose files carry one."
            return Refusal("template_error", sentence, prompt_param)
        if not prompt.messages:
            return Refusal("invalid_value", f"{prompt_param} is empty: send at least one message.", prompt_param)
        reserved = sorted(RESERVED_ARGUMENTS & prompt.template_arguments.keys())
        if reserved:
            param = f"{_TEMPLATE_ARGUMENTS_PARAM}.{reserved[0]}"
            return Refusal("unsupported_parameter", f"{param} is given by the server and cannot be set.", param)
        if prompt.tools and not template.takes_tools:
            sentence = "This model's chat template has no place for tools: leave them out, or use a model that has one."
            return Refusal("unsupported_parameter", sentence, "tools")
        chat = self._guard.mark(prompt.messages, {**prompt.template_arguments, **_shown_tools(prompt.tools)})
        messages = plain_messages(chat.messages, knows_developer="developer" in template.literal_text)
        rendered = _render(template, messages, chat.arguments)
        if isinstance(rendered, RenderFailure):
            return Refusal("template_error", f"The chat template cannot render the messages: {rendered}.", prompt_param)
        too_long = self._too_long(rendered, most_tokens)
        if too_long is not None:
            return too_long
        if chat.mark is None:
            return self._with_one_bos(self.tokenizer.encode(rendered, parse_special=True, add_special=False))
        return self._with_one_bos(self.tokenizer.encode_marked(rendered, chat.mark))

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        """Templates that write BOS and templates that leave it to the tokenizer come to the same."""
        bos_id = self.tokenizer.special.bos_id
        if bos_id is None or not self.tokenizer.special.adds_bos:
            return ids
        first = 0
        while first < len(ids) and ids[first] == bos_id:
            first += 1
        return [bos_id, *ids[first:]]

    def _refuse_ids(self, ids: list[int], prompt_param: str) -> Refusal:
        last = self.num_usable_tokens - 1
        wrong = next(token_id for token_id in ids if not 0 <= token_id <= last)
        sentence = f"{prompt_param} has the token id {wrong}: the model's tokens are 0 to {last}."
        return Refusal("invalid_value", sentence, prompt_param)


def _shown_tools(tools: Sequence[Tool]) -> dict[str, Any]:
    """What the template is told of the tools, in the shape that `transformers` gives them."""
    shown = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({} if tool.description is None else {"description": tool.description}),
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]
    return {"tools": shown} if shown else {}


def load_from_folder(folder: Path, vocab_size: int | None = None) -> ModelText:
    """The text of a model folder in the Hugging Face layout. Raises TokenizerError or TemplateError."""
    tokenizer = tokenizer_from_folder(folder)
    template = _template(tokenizer, template_source_from_folder(folder))
    tool_template = _template(tokenizer, tool_template_source_from_folder(folder))
    return ModelText(tokenizer, template, vocab_size, tool_template)


def load_from_gguf(metadata: Mapping[str, Any], vocab_size: int | None = None) -> ModelText:
    """The text of a GGUF file, from its metadata with arrays as lists. Raises TokenizerError or TemplateError."""
    tokenizer = tokenizer_from_gguf(metadata)
    key = "tokenizer.chat_template"
    sources = [metadata.get(key, metadata.get(f"{key}.default")), metadata.get(f"{key}.{TOOL_TEMPLATE}")]
    if any(source is not None and not isinstance(source, str) for source in sources):
        raise TemplateError(f"{key} is not a text: the file is broken")
    template, tool_template = (_template(tokenizer, source) for source in sources)
    return ModelText(tokenizer, template, vocab_size, tool_template)


def _template(tokenizer: Tokenizer, source: str | None) -> ChatTemplate | None:
    if source is None:
        return None
    return ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token, named_tokens=tokenizer.special.named)


def _render(template: ChatTemplate, messages: list[Message], arguments: Mapping[str, Any]) -> str | RenderFailure:
    """The first arrangement that renders with every system text in it; else the first that renders at all."""
    wanted = system_texts(messages)
    first_rendered, first_failure = None, None
    for arrangement in arrangements(messages):
        try:
            rendered = template.render(arrangement, arguments)
        except RenderFailure as failure:
            first_failure = first_failure or failure
            continue
        if all(text in rendered for text in wanted):
            return rendered
        first_rendered = rendered if first_rendered is None else first_rendered
    if first_rendered is not None:
        return first_rendered
    assert first_failure is not None, "no arrangement was tried"
    return first_failure
