"""Folders in the Hugging Face layout: the same ids as the `tokenizers` library, and texts back byte for byte."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from plimsoll_runtime.text.errors import TokenizerError
from plimsoll_runtime.text.gguf_vocabulary import tokenizer_from_gguf
from plimsoll_runtime.text.model_text import load_from_folder
from plimsoll_runtime.text.tokenizer_folder import template_source_from_folder, tokenizer_from_folder
from text.folders import CHATML, save_folder
from text.vocabularies import corpus, tiny_byte_level


def byte_level() -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    library.train_from_iterator(corpus().values(), trainer)
    # Both are in the byte-level alphabet, where they would stand for other bytes.
    library.add_tokens([AddedToken("é\u0100", normalized=False)])
    return library


def sentencepiece() -> Tokenizer:
    """As converters write the tokenizers of Llama 2 and Gemma."""
    library = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "\u2581")
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", *byte_tokens], limit_alphabet=100)
    library.train_from_iterator(corpus().values(), trainer)
    model = json.loads(library.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    plain = Tokenizer(models.BPE(model["vocab"], merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    plain.normalizer = library.normalizer
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    plain.decoder = decoders.Sequence(steps)
    plain.add_tokens([AddedToken("\u2581\u2581\u2581", normalized=True)])
    return plain


def unigram() -> Tokenizer:
    library = Tokenizer(models.Unigram())
    library.normalizer = normalizers.Replace(Regex(" +"), " ")
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    library.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(vocab_size=1500, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    library.train_from_iterator(corpus().values(), trainer)
    return library


# SentencePiece writes a space as U+2581, and that character as itself; the unigram model here has no bytes.
CHANGED_BY_DESIGN = {"byte-level": (), "sentencepiece": ("marks",)}
KINDS = {"byte-level": byte_level, "sentencepiece": sentencepiece, "unigram": unigram}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_the_librarys(kind: str, tmp_path: Path) -> None:
    library = KINDS[kind]()
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path)
    for name, text in corpus().items():
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, parse_special=True, add_special=False) == ids, name
        expected = library.decode(ids)
        assert tokenizer.decode(ids) == expected, name
        as_text = tokenizer.encode(text, parse_special=False, add_special=False)
        assert (tokenizer.decode(as_text) == text) or name in CHANGED_BY_DESIGN.get(kind, corpus()), name


def test_added_tokens_are_their_own_bytes(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path)
    (token_id,) = tokenizer.encode("é\u0100", parse_special=False, add_special=False)
    assert tokenizer.token_bytes(token_id) == "é\u0100".encode()


def test_what_the_file_says_of_truncation_and_padding_is_not_done(tmp_path: Path) -> None:
    """A file that its trainer saved with a length cut every prompt without a word."""
    library = byte_level()
    library.enable_truncation(4)
    library.enable_padding(length=64)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path)
    text = "a much longer text than four tokens"
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True, add_special=True)) == text


def edited(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def test_begin_tokens_are_added_as_the_file_says(tmp_path: Path) -> None:
    save_folder(tmp_path / "adds", CHATML, adds_bos=True)
    save_folder(tmp_path / "adds none", CHATML)
    for name, adds_bos in (("adds", True), ("adds none", False)):
        tokenizer = tokenizer_from_folder(tmp_path / name)
        begin = [tokenizer.special.bos_id] if adds_bos else []
        assert tokenizer.special.adds_bos is adds_bos
        assert tokenizer.encode("", parse_special=True, add_special=True) == begin
        assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|begin|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        pytest.param({"eos_token_id": [1, 2]}, {1, 2}, id="B91-a-list"),
        pytest.param({"eos_token_id": 7}, {7}, id="B91-a-number"),
        pytest.param({}, set(), id="B91-none"),
    ],
)
def test_generation_ends_on_the_union_of_all_files(config: dict[str, Any], ends: set[int], tmp_path: Path) -> None:
    """The ends of the generation config replaced the tokenizer's instead of joining them."""
    save_folder(tmp_path, None, **config)
    tokenizer = tokenizer_from_folder(tmp_path)
    own = {tokenizer.special.eos_id, *tokenizer.encode("<end_of_turn>", parse_special=True, add_special=False)}
    assert tokenizer.eos_token_ids == ends | own
    assert all(map(tokenizer.is_special, tokenizer.eos_token_ids))


def test_special_tokens_may_be_written_as_objects(tmp_path: Path) -> None:
    save_folder(tmp_path, None)
    edited(tmp_path, "tokenizer_config.json", lambda config: config.update(bos_token={"content": "<|im_start|>"}))
    assert tokenizer_from_folder(tmp_path).bos_token == "<|im_start|>"


@pytest.mark.parametrize(
    ("files", "template"),
    [
        pytest.param({"chat_template.jinja": "file", "tokenizer_config.json": '{"chat_template": "config"}'}, "file"),
        pytest.param({"tokenizer_config.json": '{"chat_template": "config"}'}, "config"),
        pytest.param({"chat_template.json": '{"chat_template": "processor"}'}, "processor"),
        pytest.param(
            {
                "tokenizer_config.json": '{"chat_template": [{"name": "tool_use", "template": "t"}, '
                '{"name": "default", "template": "d"}]}'
            },
            "d",
            id="B90-named-set",
        ),
        pytest.param({"tokenizer_config.json": "{}"}, None),
        pytest.param({}, None),
    ],
)
def test_the_template_is_found_where_it_may_be(files: dict[str, str], template: str | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert template_source_from_folder(tmp_path) == template


def with_decoder(library: Tokenizer, decoder: Any) -> Tokenizer:
    library.decoder = decoder
    return library


@pytest.mark.parametrize(
    ("write", "words"),
    [
        pytest.param(lambda folder: None, ["no tokenizer.json"], id="no file"),
        pytest.param(lambda folder: (folder / "tokenizer.json").write_text("{"), ["tokenizer.json"], id="not JSON"),
        pytest.param(
            lambda folder: with_decoder(byte_level(), decoders.WordPiece()).save(str(folder / "tokenizer.json")),
            ["WordPiece", "decoder"],
            id="a decoder without exact bytes",
        ),
        pytest.param(
            lambda folder: with_decoder(byte_level(), decoders.Replace("x", "y")).save(str(folder / "tokenizer.json")),
            ["Replace", "decoder"],
            id="a decoder that changes texts",
        ),
    ],
)
def test_a_folder_that_cannot_be_read_exactly_is_refused(
    write: Callable[[Path], Any], words: list[str], tmp_path: Path
) -> None:
    write(tmp_path)
    with pytest.raises(TokenizerError) as refusal:
        load_from_folder(tmp_path)
    assert all(word in str(refusal.value) for word in words)


def test_other_broken_files_are_named(tmp_path: Path) -> None:
    save_folder(tmp_path, None)
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(TokenizerError, match=r"generation_config\.json"):
        load_from_folder(tmp_path)


def test_encoding_does_not_stop_other_threads() -> None:
    """A long prompt held the interpreter, and the server looked dead meanwhile. Counted are turns, not seconds."""
    tokenizer = tokenizer_from_gguf(tiny_byte_level())
    text, turns, done = "many words and more " * 40_000, 0, threading.Event()

    def encode() -> None:
        tokenizer.encode(text, parse_special=True, add_special=True)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 10
