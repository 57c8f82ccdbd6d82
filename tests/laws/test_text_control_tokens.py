"""Control tokens, for all messages: none in a prompt but the template's own, and the typed text survives."""

import functools

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.request import ChatPrompt
from plimsoll_runtime.text.model_text import ModelText, load_from_gguf
from text.vocabularies import tiny_byte_level

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<s>", "<|im_", "start|>", "end|>", "<", "|", "\ufdd0", "é ", "x"]
)
CONTENTS = st.lists(PIECES, max_size=8).map("".join)


@functools.cache
def model_text() -> ModelText:
    return load_from_gguf(tiny_byte_level() | {"tokenizer.chat_template": TEMPLATE})


@given(contents=st.lists(CONTENTS, min_size=1, max_size=4))
def test_only_the_template_writes_control_tokens(contents: list[str]) -> None:
    messages = tuple({"role": "user", "content": content} for content in contents)
    ids = model_text().encode_prompt(ChatPrompt(messages), "messages")
    assert isinstance(ids, list)
    tokenizer = model_text().tokenizer
    assert [token_id for token_id in ids if tokenizer.is_special(token_id)] == [2, 3] * len(contents)
    assert tokenizer.decode(ids) == "".join(f"user:{content}" for content in contents)
    inside = [tokenizer.encode(f"user:{content}", parse_special=False, add_special=False) for content in contents]
    assert ids == [token_id for content_ids in inside for token_id in (2, *content_ids, 3)]
