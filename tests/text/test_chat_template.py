"""Chats render as transformers renders them, token for token, and within limits whatever a template does."""

import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from plimsoll_runtime.request import ChatPrompt
from plimsoll_runtime.text import render_meter
from plimsoll_runtime.text.chat_template import ChatTemplate, RenderFailure
from plimsoll_runtime.text.errors import TemplateError
from plimsoll_runtime.text.model_text import load_from_folder
from text.folders import CHATML, GEMMA_STYLE, LLAMA_STYLE, QWEN_STYLE, save_folder
from text.vocabularies import corpus, smollm2_metadata

SMOLLM2 = smollm2_metadata()["tokenizer.chat_template"]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"city": "<Paris> & 'é'", "n": [1]}}}
SYSTEM = {"role": "system", "content": "  Be brief. "}
USER = {"role": "user", "content": "Hi there"}
ANSWER = {"role": "assistant", "content": "Hello!\n"}
THOUGHT = {"role": "assistant", "content": "4", "reasoning_content": "two and two"}
INLINE_THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": '{"t": 21}', "tool_call_id": "c1"}

CHATS: dict[str, list[dict[str, Any]]] = {
    "one turn": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER],
    "thought": [USER, THOUGHT, USER],
    "inline thought": [USER, INLINE_THOUGHT, USER],
}
TOOL_CHATS: dict[str, list[dict[str, Any]]] = {
    "call": [USER, CALLING, RESULT],
    "call and more": [USER, CALLING, RESULT, ANSWER, USER],
}
STYLES = {
    "smollm2": (SMOLLM2, CHATS),
    "chatml": (CHATML, CHATS),
    "llama": (LLAMA_STYLE, CHATS | TOOL_CHATS),
    "qwen": (QWEN_STYLE, CHATS | TOOL_CHATS),
    "gemma": (GEMMA_STYLE, CHATS),
}


@pytest.mark.parametrize("style", STYLES)
def test_chats_are_the_reference_token_for_token(style: str, tmp_path: Path) -> None:
    """B67, B68, B69: escapes of HTML, doubled begin tokens, thoughts that were dropped."""
    template, chats = STYLES[style]
    save_folder(tmp_path, template)
    text, reference = load_from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    texts = {
        name: [{"role": "user", "content": content}] for name, content in corpus().items() if "<|im_" not in content
    }
    for name, chat in (chats | texts).items():
        ids = text.encode_prompt(ChatPrompt(tuple(chat)), "messages")
        assert ids == reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False), name


def test_template_arguments_reach_the_template(tmp_path: Path) -> None:
    save_folder(tmp_path, QWEN_STYLE)
    text, reference = load_from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = text.encode_prompt(ChatPrompt((USER,), {"enable_thinking": False}), "messages")
    assert ids == reference.apply_chat_template(
        [USER], add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    assert ids != text.encode_prompt(ChatPrompt((USER,)), "messages")


def template(source: str, **more: Any) -> ChatTemplate:
    return ChatTemplate(source, "<s>", None, **more)


def render(source: str, **arguments: Any) -> str:
    return template(source).render([USER], arguments)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param("{{ {'a': '<&>é\"'} | tojson }}", '{"a": "<&>é\\""}', id="B68-json-without-escapes"),
        pytest.param("{{ [1, {'b': none}] | tojson(indent=2) }}", '[\n  1,\n  {\n    "b": null\n  }\n]', id="indented"),
        pytest.param("{{ bos_token }}|{{ eos_token }}|{{ tools }}", "<s>||None", id="an-absent-token-is-nothing"),
        pytest.param(
            "{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13", id="loop"
        ),
        pytest.param("{% for x in y %}a{% else %}none{% endfor %}", "none", id="undefined-is-empty"),
        pytest.param("{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ loop.last }}{% endfor %}", "a1True", id="items"),
        pytest.param("{% generation %}a{% endgeneration %}b", "ab", id="generation-tag"),
        pytest.param("{{ messages | map(attribute='role') | join('+') }}", "user", id="lazy-filters"),
        pytest.param("{{ ('%s-%d' % ('a', 3)) + '{:>4}'.format(7) }}", "a-3   7", id="formatting"),
        pytest.param("{{ 2 ** 10 }}{{ 'ab' * 2 }}{{ [1] * 2 }}", "1024abab[1, 1]", id="operators"),
        pytest.param("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc", id="blocks-leave-no-lines"),
    ],
)
def test_words_of_templates_mean_what_they_mean_in_transformers(source: str, text: str) -> None:
    assert render(source) == text


def test_the_date_is_given_from_outside() -> None:
    now = datetime(2031, 2, 3, tzinfo=UTC)
    assert template("{{ strftime_now('%d %b %Y') }}", now=lambda: now).render([USER], {}) == "03 Feb 2031"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{% for %}", id="B90-syntax"),
        pytest.param("{{ messages | nonsense }}", id="B90-unknown-filter"),
        pytest.param("{{ x | urlize }}", id="a-removed-filter"),
        pytest.param("{{ " + "(" * 2000 + ")" * 2000 + " }}", id="deep-nesting"),
        pytest.param("x" * (1024 * 1024 + 1), id="too-long"),
    ],
)
def test_a_broken_template_is_refused_at_load(source: str) -> None:
    """A broken template was found by the first request."""
    with pytest.raises(TemplateError, match="chat template"):
        template(source)


DOUBLED = "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(20) %}BODY{% endfor %}{{ ns.s | length }}"
LISTS = "{% set ns.s = [ns.s, ns.s] %}"
NESTED = "{% for a in range(99999) %}" * 3 + "x" + "{% endfor %}" * 3


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{{ ''.__class__.__mro__[1].__subclasses__() }}", id="B133-subclasses"),
        pytest.param("{{ raise_exception.__globals__['sys'] }}", id="B133-globals"),
        pytest.param("{{ lipsum.__globals__['os'].popen('true') }}", id="B133-lipsum"),
        pytest.param("{{ cycler.__init__.__globals__ }}", id="B133-cycler"),
        pytest.param("{{ self.__init__.__globals__ }}", id="B133-self"),
        pytest.param("{% set ns = namespace(__init__=1) %}{{ ns.__init__.__globals__ }}", id="B133-namespace"),
        pytest.param("{{ messages.append(1) }}{{ messages[0].update(a=1) }}", id="B133-changes-its-input"),
        pytest.param("{% include '/etc/passwd' %}", id="B133-include"),
        pytest.param("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", id="macros-that-recurse"),
        pytest.param("{{ range(10 ** 9) | list }}", id="a-range"),
        pytest.param("{{ undefined_thing.attribute }}", id="a-mistake"),
        pytest.param("{{ 1 / 0 }}", id="a-division"),
    ],
)
def test_a_hostile_or_mistaken_template_fails_alone(source: str) -> None:
    """A template inside a model file ran Python."""
    message = dict(USER)
    with pytest.raises(RenderFailure):
        template(source).render([message], {})
    assert message == USER


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(NESTED, id="B133-nested-loops"),
        pytest.param("{% for a in range(99999) if false %}{% endfor %}" * 30, id="loops-that-only-filter"),
        pytest.param(
            "{% for a in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}", id="loops-that-recurse"
        ),
        pytest.param("{% for a in range(9999) %}{{ range(9999) | map('string') | list }}{% endfor %}", id="filters"),
        pytest.param("{{ 'a' * 10 ** 10 }}", id="multiplied"),
        pytest.param("{{ [1] * 10 ** 10 }}", id="a-list-multiplied"),
        pytest.param("{{ 9 ** (9 ** 9) }}", id="a-power"),
        pytest.param("{{ '%1000000000d' % 1 }}", id="a-width"),
        pytest.param("{{ '%*d' % (1000000000, 1) }}", id="a-width-that-is-given"),
        pytest.param("{{ '{:1000000000}'.format(1) }}", id="a-format"),
        pytest.param("{{ '{:{}}'.format(1, 1000000000) }}", id="a-format-with-a-given-width"),
        pytest.param("{{ '%1000000000d' | format(1) }}", id="a-format-filter"),
        pytest.param("{{ 'a'.ljust(10 ** 9) }}{{ 'a' | center(10 ** 9) }}", id="padded"),
        pytest.param("{{ ('a\n' * 9999) | indent(10 ** 5) }}", id="indented"),
        pytest.param("{{ ('a' * 9999) | replace('a', 'b' * 9999) }}", id="replaced"),
        pytest.param("{{ ('a' * 9999).replace('', 'b' * 9999) }}", id="replaced-by-a-method"),
        pytest.param("{{ range(9999) | join('b' * 9999) }}", id="joined"),
        pytest.param("{{ ('b' * 9999).join(('a' * 9999) | list) }}", id="joined-by-a-method"),
        pytest.param(DOUBLED.replace("BODY", "{% set ns.s = ns.s + ns.s %}"), id="doubled-by-plus"),
        pytest.param(DOUBLED.replace("BODY", "{% set ns.s = ns.s ~ ns.s %}"), id="doubled-by-tilde"),
        pytest.param(DOUBLED.replace("BODY", "{% set ns.s = '%s%s' % (ns.s, ns.s) %}"), id="doubled-by-percent"),
        pytest.param(
            DOUBLED.replace("BODY", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"), id="doubled-by-a-block"
        ),
        pytest.param(DOUBLED.replace("BODY", LISTS) + "{{ ns.s | tojson }}", id="laughs"),
        pytest.param(DOUBLED.replace("BODY", LISTS) + "{{ ns.s }}", id="laughs-printed"),
        pytest.param(DOUBLED.replace("BODY", LISTS) + "{{ '%s' % ns.s }}", id="laughs-by-percent"),
        pytest.param(DOUBLED.replace("BODY", LISTS) + "{{ '{}'.format(ns.s) }}", id="laughs-by-a-method"),
        pytest.param("{% for a in range(9999) %}" + "x" * 9999 + "{% endfor %}", id="a-long-output"),
        pytest.param("{{ strftime_now('%1000000d') }}", id="a-date-with-a-width"),
    ],
)
def test_a_template_that_grows_or_does_not_end_meets_a_limit(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template inside a model file ran without end. With small limits, so that a missing charge shows as success."""
    monkeypatch.setattr(render_meter, "MAX_STEPS", 20_000)
    monkeypatch.setattr(render_meter, "MAX_MADE", 1_000_000)
    compiled = template(source)
    tracemalloc.start()
    try:
        with pytest.raises(RenderFailure) as failure:
            compiled.render([USER], {})
        _now, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(failure.value.__cause__, render_meter.RenderLimitExceeded)
    assert most_bytes < 8_000_000


def test_what_a_template_says_when_it_refuses_is_passed_on() -> None:
    with pytest.raises(RenderFailure, match="only one thing"):
        render("{{ raise_exception('only one thing') }}")


def test_a_clock_ends_what_steps_do_not_see() -> None:
    times = iter(range(0, 10_000, 3))
    with pytest.raises(RenderFailure, match="10 seconds"):
        template("{% for a in range(99) %}{% endfor %}", clock=lambda: float(next(times))).render([USER], {})


def test_the_limits_are_what_they_are_said_to_be() -> None:
    assert (render_meter.MAX_STEPS, render_meter.MAX_EXTRA_OUTPUT) == (1_000_000, 4 * 1024 * 1024)
    with pytest.raises(RenderFailure, match="1,000,000 steps"):
        render(NESTED)


def test_a_large_honest_chat_is_rendered() -> None:
    chat = [USER, {"role": "assistant", "content": "x" * 2000}] * 1500
    assert len(template(SMOLLM2).render(chat, {})) > 3_000_000
