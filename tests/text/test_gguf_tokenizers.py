"""Vocabularies inside GGUF files give llama.cpp's ids, or are refused by key and value."""

from typing import Any

import pytest

from plimsoll_runtime.text.errors import TokenizerError
from plimsoll_runtime.text.gguf_vocabulary import tokenizer_from_gguf
from plimsoll_runtime.text.tokenizer import Tokenizer
from text.vocabularies import corpus, fixture, smollm2_metadata, tiny_byte_level, tiny_scored

RECORDED = fixture("llama_cpp_ids.json")
PRE_TOKENIZERS = ("smollm", "gpt-2", "llama-bpe", "llama-v3", "llama3", "qwen2", "deepseek-r1-qwen")


def recorded(name: str) -> Any:
    ids = RECORDED["ids"][name]
    return recorded(ids) if isinstance(ids, str) else ids


def assert_gives(tokenizer: Tokenizer, name: str) -> None:
    ids = recorded(name)
    assert len(ids["parsed"]) > 50
    for text_name, parsed in ids["parsed"].items():
        text, as_text = corpus()[text_name], ids["as_text"].get(text_name, parsed)
        assert tokenizer.encode(text, parse_special=True, add_special=True) == parsed, text_name
        assert tokenizer.encode(text, parse_special=False, add_special=True) == as_text, text_name


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return tokenizer_from_gguf(smollm2_metadata())


def test_the_recording_names_its_version() -> None:
    assert RECORDED["llama_cpp_python"] == "0.3.36"
    assert len(corpus()) > 100


def test_smollm2_gives_llama_cpps_ids(smollm2: Tokenizer) -> None:
    assert_gives(smollm2, "smollm2")


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_each_pre_tokenizer_gives_llama_cpps_ids(pre: str) -> None:
    assert_gives(tokenizer_from_gguf(tiny_byte_level(pre)), f"byte_level {pre}")


def test_the_recording_can_tell_the_pre_tokenizers_apart() -> None:
    different = {str(recorded(f"byte_level {pre}")) for pre in PRE_TOKENIZERS}
    assert len(different) == 4


@pytest.mark.parametrize("prefix", [True, False, None], ids=["with", "without", "absent"])
def test_scored_vocabularies_give_llama_cpps_ids(prefix: bool | None) -> None:
    more = {} if prefix is None else {"add_space_prefix": prefix}
    name = "without" if prefix is False else "with"
    assert_gives(tokenizer_from_gguf(tiny_scored(**more)), f"scored {name} space prefix")


@pytest.mark.parametrize(
    ("metadata", "text", "ids"),
    [
        pytest.param(tiny_byte_level("qwen2"), "", [], id="gpt2 adds nothing"),
        pytest.param(tiny_byte_level("llama-bpe"), "", [0], id="llama-bpe adds BOS"),
        pytest.param(tiny_byte_level("llama-bpe", add_bos_token=False), "", [], id="unless told not to"),
        pytest.param(tiny_byte_level("qwen2", add_bos_token=True, add_eos_token=True), "", [0, 1], id="when told to"),
        pytest.param(tiny_scored(), "", [1], id="llama adds BOS"),
        pytest.param(tiny_scored(add_bos_token=False, add_eos_token=True), "", [2], id="only EOS"),
    ],
)
def test_begin_and_end_tokens_are_added_as_the_file_says(metadata: dict[str, Any], text: str, ids: list[int]) -> None:
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.encode(text, parse_special=True, add_special=True) == ids
    assert tokenizer.encode(text, parse_special=True, add_special=False) == []


@pytest.mark.parametrize("pre", ["smollm", None, "default"], ids=["B87-right", "B87-absent", "B87-default"])
def test_the_cut_is_right_or_proven_by_the_vocabulary(pre: str | None) -> None:
    """Files without the key were cut by a default, and answered quietly worse."""
    assert_gives(tokenizer_from_gguf(smollm2_metadata() | {"tokenizer.ggml.pre": pre}), "smollm2")


@pytest.mark.parametrize(
    ("metadata", "value"),
    [
        pytest.param(smollm2_metadata, "llama-bpe", id="B87-wrong-llama-bpe"),
        pytest.param(smollm2_metadata, "gpt-2", id="B87-wrong-gpt-2"),
        pytest.param(smollm2_metadata, "qwen2", id="B87-wrong-qwen2"),
        pytest.param(smollm2_metadata, "chameleon", id="B87-unknown"),
        pytest.param(smollm2_metadata, 7, id="B87-no-text"),
        pytest.param(tiny_byte_level, None, id="B87-absent-unproven"),
        pytest.param(tiny_byte_level, "default", id="B87-default-unproven"),
    ],
)
def test_a_doubtful_cut_is_refused_by_key_and_value(metadata: Any, value: Any) -> None:
    """A mislabelled file was served with quietly wrong ids."""
    with pytest.raises(TokenizerError) as refusal:
        tokenizer_from_gguf(metadata() | {"tokenizer.ggml.pre": value})
    assert "tokenizer.ggml.pre" in str(refusal.value)
    assert "missing" in str(refusal.value) if value is None else repr(value) in str(refusal.value)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        pytest.param({}, ["tokenizer.ggml.model", "None"], id="no model"),
        pytest.param({"tokenizer.ggml.model": "t5"}, ["tokenizer.ggml.model", "'t5'"], id="unsupported model"),
        pytest.param({"tokenizer.ggml.model": "gpt2"}, ["tokenizer.ggml.tokens"], id="no tokens"),
        pytest.param(tiny_byte_level(tokens=["a", "a"], token_type=[1, 1]), ["'a' twice"], id="a token twice"),
        pytest.param(tiny_byte_level(tokens=[1, 2]), ["tokenizer.ggml.tokens", "str"], id="tokens that are numbers"),
        pytest.param(tiny_byte_level(token_type=[1]), ["tokenizer.ggml.token_type", "1 values"], id="few types"),
        pytest.param(tiny_byte_level(merges=None), ["tokenizer.ggml.merges"], id="no merges"),
        pytest.param(tiny_byte_level(merges=["qq zz"]), ["tokenizer.ggml.merges"], id="a merge of no token"),
        pytest.param(tiny_byte_level(eos_token_id=9999), ["eos_token_id", "9999"], id="EOS outside"),
        pytest.param(tiny_byte_level(add_bos_token="yes"), ["add_bos_token", "'yes'"], id="a switch that is a word"),
        pytest.param(tiny_scored(scores=None), ["tokenizer.ggml.scores"], id="no scores"),
        pytest.param(
            tiny_scored(tokens=["<unk>", "a"], token_type=[2, 1], scores=[0.0, 0.0]), ["<0x00>"], id="no byte tokens"
        ),
    ],
)
def test_a_broken_vocabulary_is_refused_by_name(metadata: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(TokenizerError) as refusal:
        tokenizer_from_gguf(metadata)
    assert all(word in str(refusal.value) for word in words)


def test_a_token_with_an_unreachable_character_is_refused() -> None:
    """llama.cpp joins characters that are no tokens; the library cannot, and would give other ids."""
    metadata = tiny_scored()
    tokens = [*metadata["tokenizer.ggml.tokens"], "\u0b85b"]
    more = {"tokens": tokens, "token_type": [1] * len(tokens), "scores": [0.0] * len(tokens)}
    with pytest.raises(TokenizerError, match="characters"):
        tokenizer_from_gguf(tiny_scored(**more))


def test_no_merge_makes_a_control_token() -> None:
    """B137: a typed control token was put together again from its pieces."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<x>", *byte_tokens, "<", "x", ">", "<x"]
    types = [2, 3, *[6] * 256, 1, 1, 1, 1]
    scores = [0.0] * len(tokens)
    tokenizer = tokenizer_from_gguf(tiny_scored(tokens=tokens, token_type=types, scores=scores, add_space_prefix=False))
    assert tokenizer.encode("<x>", parse_special=False, add_special=False) == [261, 260]
    assert tokenizer.encode("<x>", parse_special=True, add_special=False) == [1]


def test_rows_that_only_pad_the_embedding_are_no_tokens() -> None:
    metadata = tiny_byte_level()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    padding = [f"[PAD{row}]" for row in range(len(tokens), len(tokens) + 3)]
    padded = tokenizer_from_gguf(tiny_byte_level(tokens=tokens + padding, token_type=[*types, 5, 5, 5]))
    assert padded.num_tokens == len(tokens) == tokenizer_from_gguf(metadata).num_tokens


def with_types(metadata: dict[str, Any], **types: int) -> dict[str, Any]:
    """The same, some tokens (by their text) having other types."""
    token_types = list(metadata["tokenizer.ggml.token_type"])
    for text, token_type in types.items():
        token_types[metadata["tokenizer.ggml.tokens"].index(text)] = token_type
    return metadata | {"tokenizer.ggml.token_type": token_types}


@pytest.mark.parametrize(
    ("metadata", "ends"),
    [
        pytest.param(tiny_byte_level(), {1, 3}, id="B91-eos-and-a-known-text"),
        pytest.param(tiny_byte_level(eot_token_id=20), {1, 3, 20}, id="B91-eot"),
        pytest.param(tiny_byte_level(eot_token_id=20, eom_token_id=21), {1, 3, 20, 21}, id="B91-eom"),
        pytest.param(with_types(tiny_byte_level(), **{"<|im_end|>": 1}), {1, 3}, id="B91-not-marked-as-control"),
        pytest.param(with_types(tiny_byte_level(eos_token_id=20), **{"</s>": 4}), {3, 20}, id="a-tag-of-HTML"),
    ],
)
def test_generation_ends_on_the_union_of_all_ends(metadata: dict[str, Any], ends: set[int]) -> None:
    """Only one of several end tokens was honoured, and answers ran on to their limit."""
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.eos_token_ids == ends
    assert all(tokenizer.is_special(token_id) for token_id in ends)
    assert tokenizer.decode(sorted(ends)) == ""


def test_user_defined_tokens_are_matched_in_any_text() -> None:
    tokenizer = tokenizer_from_gguf(tiny_scored(add_space_prefix=False))
    think = tiny_scored()["tokenizer.ggml.tokens"].index("<think>")
    assert tokenizer.encode("<think>", parse_special=False, add_special=False) == [think]
    assert tokenizer.decode([think]) == "<think>"
