"""Forms compiled for real vocabularies: what may be written next, and what a hostile form is refused with."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from doubles.server import Vocabulary
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import Structure, StructureKind
from plimsoll_runtime.text.gguf_vocabulary import tokenizer_from_gguf
from plimsoll_runtime.text.structure.compiler import Constraint, StructureCompiler
from plimsoll_runtime.text.structure.grammars import MAX_BYTES, MAX_DEPTH, grammar_of
from plimsoll_runtime.text.structure.matcher import FIRST_SECONDS, Matcher
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.token_rules import RuleFailure
from text.vocabularies import smollm2_metadata, tiny_scored


class Forms:
    """A compiler for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.compiler = StructureCompiler(tokenizer, tokenizer.num_tokens, tokenizer.eos_token_ids)

    def compile(self, kind: StructureKind, source: Any, *, is_strict: bool = True) -> Constraint | Refusal:
        structure = Structure(kind, source, "form", is_strict)
        work = self.compiler.executor.submit(self.compiler.compile, lambda: grammar_of(structure), "form")
        return work.result()

    def matcher(self, kind: StructureKind, source: Any, *, is_strict: bool = True) -> Matcher:
        constraint = self.compile(kind, source, is_strict=is_strict)
        assert isinstance(constraint, Constraint), constraint
        return constraint.matcher()

    def refusal(self, kind: StructureKind, source: Any, *, is_strict: bool = True) -> Refusal:
        refusal = self.compile(kind, source, is_strict=is_strict)
        assert isinstance(refusal, Refusal), source
        return refusal

    def token(self, spelling: bytes) -> int:
        """The last token of these bytes: the first may be one that only stands for a byte."""
        ids = range(self.tokenizer.num_tokens)
        return max(token_id for token_id in ids if self.tokenizer.token_bytes(token_id) == spelling)

    def spelled(self, matcher: Matcher, seed: int, most_tokens: int = 400) -> str:
        """What comes of random tokens among those allowed, once an end token is drawn."""
        random = np.random.default_rng(seed)
        ids: list[int] = []
        for _ in range(most_tokens):
            token_id = int(random.choice(np.flatnonzero(matcher.allowed())))
            matcher.advance(token_id)
            if token_id in self.tokenizer.eos_token_ids:
                return self.tokenizer.decode(ids)
            ids.append(token_id)
        raise AssertionError(f"no end after {self.tokenizer.decode(ids)!r}")


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: Vocabulary(["{", '{"', "true", "é"]).tokenizer(),
    "smollm2": lambda: tokenizer_from_gguf(smollm2_metadata()),
    "sentencepiece": lambda: tokenizer_from_gguf(tiny_scored()),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def forms(request: pytest.FixtureRequest) -> Iterator[Forms]:
    made = Forms(TOKENIZERS[request.param]())
    yield made
    made.compiler.close()


CLOSED = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


def test_random_tokens_under_a_schema_are_valid_json(forms: Forms) -> None:
    for seed in range(8):
        said = json.loads(forms.spelled(forms.matcher("json_schema", CLOSED), seed))
        assert set(said) == {"name", "n"}
        assert 1 <= said["n"] <= 9


def test_control_tokens_are_no_text_and_end_tokens_come_where_the_form_is_complete(forms: Forms) -> None:
    matcher = forms.matcher("regex", "ab?")
    ends = sorted(forms.tokenizer.eos_token_ids)
    special = [token_id for token_id in range(forms.tokenizer.num_tokens) if forms.tokenizer.is_special(token_id)]
    assert not matcher.allowed()[special].any()
    a, b = forms.token(b"a"), forms.token(b"b")
    matcher.advance(a)
    assert matcher.allowed()[ends].all()
    assert matcher.allowed()[b]
    matcher.advance(b)
    assert np.flatnonzero(matcher.allowed()).tolist() == ends


def test_copies_go_their_own_ways(forms: Forms) -> None:
    constraint = forms.compile("choice", ("yes", "no"))
    assert isinstance(constraint, Constraint)
    first, second = constraint.matcher(), constraint.matcher()
    before = second.allowed().copy()
    first.advance(int(np.flatnonzero(first.allowed())[0]))
    assert np.array_equal(second.allowed(), before)
    assert {forms.spelled(constraint.matcher(), seed) for seed in range(20)} == {"yes", "no"}


AWKWARD = ("a", "ab", 'say "x"\n', "\\d+/i", "{é}", "'", "%", "start: x")


def test_a_choice_is_one_of_the_texts_as_they_are(forms: Forms) -> None:
    found = {forms.spelled(forms.matcher("choice", AWKWARD), seed) for seed in range(120)}
    assert found == set(AWKWARD)


def test_white_space_is_bounded(forms: Forms) -> None:
    """A model that likes line ends wrote them until its limit."""
    matcher = forms.matcher("json_schema", {"type": "array", "items": False})
    line_end = forms.token(b"\n")
    matcher.advance(forms.token(b"["))
    for _ in range(24):
        assert matcher.allowed()[line_end]
        matcher.advance(line_end)
    assert not matcher.allowed()[line_end]


def test_a_schema_cannot_set_the_library(forms: Forms) -> None:
    schema = {**CLOSED, "x-guidance": {"key_separator": "=", "lenient": True, "whitespace_pattern": "x"}, "not": {}}
    assert "not" in forms.refusal("json_schema", schema).message
    del schema["not"]
    assert json.loads(forms.spelled(forms.matcher("json_schema", schema), 3))


def test_what_cannot_be_enforced_is_left_out_only_where_it_is_not_strict(forms: Forms) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "format": "phone"}},
        "additionalProperties": False,
    }
    assert "phone" in forms.refusal("json_schema", schema).message
    assert json.loads(forms.spelled(forms.matcher("json_schema", schema, is_strict=False), 1)).keys() <= {"a"}


WRONG: list[tuple[str, StructureKind, Any, str]] = [
    ("no such type", "json_schema", {"type": "objekt"}, "objekt"),
    ("a type that is a number", "json_schema", {"type": 7}, "type"),
    ("nothing fits", "json_schema", False, "false"),
    ("a bound below a bound", "json_schema", {"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
    ("a reference to elsewhere", "json_schema", {"$ref": "http://example.org/x"}, "example.org"),
    ("a reference to nothing", "json_schema", {"$ref": "#/$defs/none"}, "none"),
    ("a reference to itself", "json_schema", {"$ref": "#"}, ""),
    ("no regular expression", "regex", "(", "unclosed"),
    ("looks ahead", "regex", "(?=a)b", "look"),
    ("no grammar", "grammar", "start: (", ""),
    ("a grammar without start", "grammar", 'other: "x"', "start"),
    ("a grammar without an answer", "grammar", "start: start", ""),
]


@pytest.mark.parametrize(("kind", "source", "word"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_form_is_refused_in_words(forms: Forms, kind: StructureKind, source: Any, word: str) -> None:
    refusal = forms.refusal(kind, source)
    assert (refusal.code, refusal.param) == ("invalid_value", "form")
    assert refusal.message.startswith("form")
    assert word in refusal.message
    assert len(refusal.message) < 400


def chain(length: int, link: Any) -> dict[str, Any]:
    definitions = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{length}": {"type": "string"}}}


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


MERGES = {
    "allOf": [
        {"anyOf": [{"type": "object", "required": [f"p{i}_{j}"], "properties": {f"p{i}_{j}": {}}} for j in range(4)]}
        for i in range(7)
    ]
}
HOSTILE: list[tuple[str, StructureKind, Any, str]] = [
    ("too many bytes", "json_schema", {"enum": ["x" * MAX_BYTES]}, f"at most {MAX_BYTES:,}"),
    ("too many bytes of a regex", "regex", "é" * (MAX_BYTES // 2 + 1), f"{MAX_BYTES + 2:,} bytes"),
    ("too many bytes of a grammar", "grammar", "start: " + '"x"' * MAX_BYTES, "bytes"),
    ("too many bytes of choices", "choice", ["x" * 100 + str(i) for i in range(1000)], "bytes"),
    ("nested too deeply", "json_schema", nested(MAX_DEPTH), f"deeper than {MAX_DEPTH} levels"),
    ("eight seconds to compile", "json_schema", {"type": "integer", "multipleOf": 1_000_003}, "more than 1 s"),
    ("combinations", "json_schema", MERGES, "too large"),
    ("slow to follow", "regex", "a{100000}", "3 ms"),
    ("parentheses", "regex", "(" * 20_000 + "a" + ")" * 20_000, ""),
    ("parentheses of a grammar", "grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested"),
]


@pytest.mark.parametrize(("kind", "source", "word"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_form_is_refused_with_its_limit(kind: StructureKind, source: Any, word: str) -> None:
    forms = Forms(tokenizer_from_gguf(smollm2_metadata()))
    try:
        refusal = forms.refusal(kind, source)
        assert word in refusal.message
        assert json.loads(forms.spelled(forms.matcher("json_schema", CLOSED), 1)), "and the next form is served"
    finally:
        forms.compiler.close()


BEARABLE: list[tuple[str, StructureKind, Any]] = [
    ("backtracking elsewhere", "regex", "(a+)+b"),
    ("backtracking elsewhere, in a schema", "json_schema", {"type": "string", "pattern": "^(a|a)*b$"}),
    ("a tree", "json_schema", {"type": "array", "items": {"$ref": "#"}}),
    ("a huge list", "json_schema", {"enum": [f"value {i}" for i in range(4000)]}),
    ("a chain of references", "json_schema", chain(300, lambda link: link)),
    ("a chain of objects", "json_schema", chain(100, lambda link: {"type": "object", "properties": {"x": link}})),
    ("as deep as may be", "json_schema", nested(MAX_DEPTH - 2)),
]


@pytest.mark.parametrize(("kind", "source"), [row[1:] for row in BEARABLE], ids=[row[0] for row in BEARABLE])
def test_a_large_form_that_can_be_followed_is(forms: Forms, kind: StructureKind, source: Any) -> None:
    assert forms.matcher(kind, source).allowed().any()


def test_references_without_end_kill_the_trial_and_nothing_else(forms: Forms) -> None:
    """The library recurses over references: a body of 60 kB ended the whole process with SIGSEGV."""
    link = lambda next_: {"properties": {"x": next_}}  # noqa: E731
    refusal = forms.refusal("json_schema", chain(1300, link))
    assert "make" in refusal.message
    assert forms.matcher("json_schema", CLOSED).allowed().any()


def test_what_was_found_is_remembered(forms: Forms) -> None:
    """A form that comes with every request of a job is tried once, and a bad one costs its second once."""
    trial = forms.compiler._trial
    forms.refusal("json_schema", {"type": "integer", "multipleOf": 1_000_033})
    assert trial._process is None, "killed"
    forms.refusal("json_schema", {"type": "integer", "multipleOf": 1_000_033})
    assert trial._process is None, "not started again"


def test_masks_may_take_so_much_processor_time_and_no_more() -> None:
    forms = Forms(Vocabulary().tokenizer())
    constraint = forms.compile("regex", "a*")
    assert isinstance(constraint, Constraint)
    times = iter([0.0, FIRST_SECONDS + 0.002, 1.0, 1.0])
    matcher = Matcher(constraint._library.deep_copy(), forms.tokenizer.num_tokens, "form", lambda: next(times))
    matcher.allowed()
    with pytest.raises(RuleFailure, match="3 ms"):
        matcher.allowed()
    matcher.advance(97)
    forms.compiler.close()
    assert matcher._seconds_left > 0, "a token earns time"
