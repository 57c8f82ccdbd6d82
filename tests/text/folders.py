"""Model folders with a tiny tokenizer, written as `transformers` writes them, and templates in the known styles."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from text.vocabularies import fixture

CONTROL = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>")
WORDS_OF_ANSWERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_STYLE = """{{- bos_token }}
{%- set date = strftime_now("%Y") if strftime_now is defined else "then" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
<|im_start|>system

Year: {{ date }}
{{ system }}<|im_end|>
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|im_start|>assistant\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{ "}<|im_end|>" }}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n\\n' }}
{%- endif %}
"""
QWEN_STYLE = """{%- macro show(text) %}{{ text | string }}{% endmacro %}
{%- set ns = namespace(last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" %}{% set ns.last = messages | length - loop.index %}{% break %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content, thought = message.content, "" %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif "</think>" in content %}
            {%- set thought = content.split("</think>")[0].split("<think>")[-1].strip("\\n") %}
            {%- set content = content.split("</think>")[-1].lstrip("\\n") %}
        {%- endif %}
        {{- "<|im_start|>assistant\\n" }}{% generation %}
        {%- if loop.index0 > ns.last or thought %}{{- "<think>\\n" ~ thought ~ "\\n</think>\\n\\n" }}{% endif %}
        {{- show(content) }}
        {%- for call in message.tool_calls or [] %}
            {{- "\\n<tool_call>\\n" }}{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
            {{- "\\n</tool_call>" }}
        {%- endfor %}{{ "<|im_end|>\\n" }}{% endgeneration %}
    {%- else %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- "<think>\\n\\n</think>\\n\\n" }}{% endif %}
{%- endif %}
"""
GEMMA_STYLE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = messages[0]['content'] + '\\n\\n' -%}{%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}{%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") }}{{ message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
NO_SYSTEM = """{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}{{ raise_exception("System role not supported") }}{%- endif -%}
    {{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] + '<end_of_turn>\\n' }}
{%- endfor -%}
"""
FIRST_SYSTEM_ONLY = """{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for message in messages if message.role != 'system' %}[{{ message.role }}]{{ message.content }}{% endfor %}"""


def save_folder(folder: Path, template: str | None, *, adds_bos: bool = False, **config: Any) -> None:
    """Write a folder; `config` goes into generation_config.json."""
    vocabulary = fixture("tiny_vocabularies.json")["byte_level"]
    ids = {text: token_id for token_id, text in enumerate(vocabulary["tokens"])}
    merges = [tuple(line.split(" ")) for line in vocabulary["merges"]]
    library = Tokenizer(models.BPE(vocab=ids, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(list(CONTROL))
    library.add_tokens([AddedToken(text, normalized=False) for text in WORDS_OF_ANSWERS])
    if adds_bos:
        begin = ("<|begin|>", library.token_to_id("<|begin|>"))
        library.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[begin])
    write: Any = PreTrainedTokenizerFast
    tokenizer = write(tokenizer_object=library, bos_token="<|begin|>", eos_token="<|im_end|>", chat_template=template)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(config))
