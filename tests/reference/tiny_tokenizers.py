"""Small byte-level BPE tokenizers with the families' own special tokens, and chat templates with their structure.

The vocabulary is 256 bytes, the 202 merges of `merges.txt` (learned from a page of English, Russian, Chinese and code),
then the family's added tokens: small enough for tiny random models, and still a real BPE in which tokens join over the
border between template and user text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN_PLAIN_ADDED = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<tool_response>", "</tool_response>")
QWEN3_PLAIN_ADDED = (*QWEN_PLAIN_ADDED, "<think>", "</think>")
LLAMA3_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    "<|finetune_right_pad_id|>",
)  # fmt: skip


def build_tokenizer(
    special: tuple[str, ...],
    plain_added: tuple[str, ...] = (),
    *,
    split: str = QWEN_SPLIT,
    bos: str | None = None,
) -> Tokenizer:
    """A byte-level BPE; `bos` adds the post-processor that puts it first, as Llama 3's does."""
    lines = (Path(__file__).parent / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [(first, second) for first, second in map(str.split, lines)]
    entries = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=merges))
    if bos is None:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain_added])
    if bos is not None:
        bos_id = tokenizer.token_to_id(bos)
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
        )
    return tokenizer


def qwen_tokenizer(*, thinking: bool = False) -> Tokenizer:
    return build_tokenizer(QWEN_SPECIAL, QWEN3_PLAIN_ADDED if thinking else QWEN_PLAIN_ADDED)


def llama3_tokenizer() -> Tokenizer:
    return build_tokenizer(LLAMA3_SPECIAL, split=LLAMA3_SPLIT, bos="<|begin_of_text|>")


def save_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    template: str,
    *,
    eos: str,
    pad: str,
    bos: str | None = None,
    tokenizer_class: str = "PreTrainedTokenizerFast",
    template_file: str = "tokenizer_config.json",
    extra: dict[str, Any] | None = None,
) -> None:
    """`tokenizer.json`, `tokenizer_config.json` and the template where `template_file` says: there, in
    `chat_template.jinja` or in `chat_template.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    decoder = {
        str(i): {
            "content": t.content, "lstrip": t.lstrip, "normalized": t.normalized, "rstrip": t.rstrip,
            "single_word": t.single_word, "special": t.special,
        }
        for i, t in sorted(tokenizer.get_added_tokens_decoder().items())
    }  # fmt: skip
    config: dict[str, Any] = {
        "added_tokens_decoder": decoder,
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "tokenizer_class": tokenizer_class,
        **(extra or {}),
    }
    if template_file == "tokenizer_config.json":
        config["chat_template"] = template
    elif template_file == "chat_template.json":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    else:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")


QWEN2_VL_TEMPLATE = (
    "{% set pictures = namespace(n=0) %}{% set films = namespace(n=0) %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}"
    "{% set pictures.n = pictures.n + 1 %}{% if add_vision_id %}Picture {{ pictures.n }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' or 'video' in part %}"
    "{% set films.n = films.n + 1 %}{% if add_vision_id %}Video {{ films.n }}: {% endif %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CHATML_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- text(messages[0].content) + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nFunctions you may call:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nAnswer a call as <tool_call>\\n{\\"name\\": …}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + text(messages[0].content) + '<|im_end|>\\n' }}
{%- endif %}
"""

_TOOL_CALLS = """{%- for call in message.tool_calls or [] %}
    {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
    {%- if call.function %}{%- set call = call.function %}{%- endif %}
    {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
    {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
    {{- '}\\n</tool_call>' }}
{%- endfor %}
"""

_TOOL_TURN = """
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
"""

QWEN3_TEMPLATE = (
    "{%- macro text(content) %}{{- content }}{%- endmacro %}\n"
    + _CHATML_TOOLS
    + """{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == "user"
        and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}{%- set ns.last_query = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}{%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or thought) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        """
    + _TOOL_CALLS
    + "{{- '<|im_end|>\\n' }}"
    + _TOOL_TURN
    + """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
)

QWEN2_TEMPLATE = (
    "{%- macro text(content) %}{{- content }}{%- endmacro %}\n"
    + "{%- if not tools and messages[0].role != 'system' %}"
    + "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}\n"
    + _CHATML_TOOLS
    + """{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}{{- '<|im_start|>assistant\\n' + content }}
        """
    + _TOOL_CALLS
    + "{{- '<|im_end|>\\n' }}"
    + _TOOL_TURN
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
)

_VISION_TEXT = """{%- set seen = namespace(images=0, videos=0) %}
{%- macro text(content) %}
    {%- if content is string %}{{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {%- set seen.images = seen.images + 1 %}
                {%- if add_vision_id %}Picture {{ seen.images }}: {% endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part.type == 'video' or 'video' in part %}
                {%- set seen.videos = seen.videos + 1 %}
                {%- if add_vision_id %}Video {{ seen.videos }}: {% endif %}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}{{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
"""

QWEN3_VL_TEMPLATE = (
    _VISION_TEXT
    + _CHATML_TOOLS
    + """{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>user\\n' + text(message.content) + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = text(message.content) %}{{- '<|im_start|>assistant\\n' + content }}
        """
    + _TOOL_CALLS
    + "{{- '<|im_end|>\\n' }}"
    + _TOOL_TURN
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
)

LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

LLAVA_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

IDEFICS3_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
