"""Every field that vLLM (0.11 to 0.33) takes on each route, with a value that asks for something, and what it needs.

Names are those of the request classes that its documentation shows. A field is used (the engine or the answer sees it),
told (the answer's `warnings` name it, and with --strict-requests it is a 400) or refused (a 400 that names it).
"""

from dataclasses import dataclass, field
from typing import Any

USER = {"role": "user", "content": "Hi"}
TALK = {"messages": [USER]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
PAIR = {"text_1": "a", "text_2": ["b", "c"]}


@dataclass(frozen=True)
class Field:
    """A field's value; `beside`: other fields that it goes with."""

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)


def _fields(**given: Any) -> dict[str, Field]:
    return {name: value if isinstance(value, Field) else Field(value) for name, value in given.items()}


_SAMPLING = _fields(
    frequency_penalty=0.5,
    presence_penalty=0.5,
    repetition_penalty=1.1,
    logit_bias={"65": 5.0},
    max_tokens=3,
    n=2,
    seed=7,
    stop=["o"],
    stream=True,
    stream_options=Field({"include_usage": True}, {"stream": True}),
    temperature=0.5,
    top_p=0.5,
    top_k=5,
    min_p=0.1,
    use_beam_search=True,
    length_penalty=Field(0.5, {"use_beam_search": True}),
    stop_token_ids=[111],
    include_stop_str_in_output=Field(True, {"stop": ["o"]}),
    ignore_eos=Field(True, {"max_tokens": 5}),
    min_tokens=2,
    skip_special_tokens=False,
    spaces_between_special_tokens=False,
    truncate_prompt_tokens=3,
    truncation_side=Field("right", {"truncate_prompt_tokens": 3}),
    prompt_logprobs=1,
    logprob_token_ids=[65],
    allowed_token_ids=[65, 66],
    bad_words=["oh"],
    watermarking=True,
    response_format=FORM,
    structured_outputs={"regex": "a+"},
    priority=3,
    request_id="mine",
    session_id="s",
    return_tokens_as_token_ids=Field(True, {"logprobs": True, "max_tokens": 5}),
    return_token_ids=True,
    return_token_offsets=True,
    return_mm_kwargs=False,
    routed_experts_prompt_start=2,
    cache_salt="salt",
    kv_transfer_params={"a": 1},
    ec_transfer_params={"a": 1},
    vllm_xargs={"a": 1},
    repetition_detection={"max_pattern_size": 3},
    thinking_token_budget=5,
    stream_interval=4,
    mm_processor_kwargs={"a": 1},
    media_io_kwargs={"image": {"a": 1}},
    user="me",
    echo=True,
    add_special_tokens=True,
    # Of older versions, still sent.
    best_of=2,
    early_stopping=Field(True, {"use_beam_search": True}),
    guided_json={"type": "object"},
    guided_regex="a+",
    guided_choice=["a", "b"],
    guided_grammar='start: "a"',
    guided_decoding_backend="xgrammar",
    guided_whitespace_pattern=Field(" ?", {"guided_json": {"type": "object"}}),
    logits_processors=["a.b"],
)

_TEMPLATE = _fields(
    add_generation_prompt=False,
    continue_final_message=Field(True, {"messages": [USER, {"role": "assistant", "content": "Well"}]}),
    chat_template="{{ 1 }}",
    chat_template_kwargs={"loud": True},
    tools=Field([TOOL]),
)

CHAT = {
    **_SAMPLING,
    **_TEMPLATE,
    **_fields(
        max_completion_tokens=3,
        logprobs=True,
        top_logprobs=Field(2, {"logprobs": True}),
        tool_choice=Field("required", {"tools": [TOOL]}),
        reasoning_effort="low",
        include_reasoning=False,
        parallel_tool_calls=Field(False, {"tools": [TOOL], "tool_choice": "required"}),
        documents=[{"title": "a", "text": "b"}],
        return_prompt_text=True,
        modalities=["audio"],
        audio={"voice": "x"},
        functions=[{"name": "f"}],
        function_call="auto",
        metadata={"a": "b"},
        store=True,
        service_tier="flex",
        verbosity="low",
        prediction={"type": "content"},
        web_search_options={},
        prompt_cache_key="k",
        safety_identifier="me",
    ),
}
COMPLETION = {**_SAMPLING, **_fields(logprobs=2, suffix="end", prompt_embeds="AAAA", max_tokens=2)}
COMPLETION["return_tokens_as_token_ids"] = Field(True, {"logprobs": 1, "max_tokens": 5})
for _name in ("media_io_kwargs", "mm_processor_kwargs"):
    COMPLETION.setdefault(_name, Field({"a": 1}))

RESPONSES = _fields(
    background=True,
    include=["message.output_text.logprobs"],
    instructions="Be short.",
    max_output_tokens=3,
    max_tool_calls=2,
    metadata={"a": "b"},
    logit_bias={"65": 5.0},
    parallel_tool_calls=Field(
        False, {"tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "required"}
    ),
    previous_response_id="resp_1",
    prompt={"id": "p"},
    reasoning={"effort": "low"},
    service_tier="flex",
    store=False,
    stream=True,
    temperature=0.5,
    text={"format": {"type": "json_object"}},
    tool_choice=Field("required", {"tools": [{"type": "function", "name": "f", "parameters": {}}]}),
    tools=[{"type": "function", "name": "f", "parameters": {}}],
    top_logprobs=2,
    top_p=0.5,
    top_k=3,
    truncation="auto",
    user="me",
    skip_special_tokens=False,
    include_stop_str_in_output=Field(True, {"stop": ["o"]}),
    prompt_cache_key="k",
    request_id="mine",
    mm_processor_kwargs={"a": 1},
    priority=3,
    cache_salt="salt",
    enable_response_messages=True,
    previous_input_messages=[USER],
    previous_response={"id": "x"},
    structured_outputs={"regex": "a+"},
    repetition_penalty=1.1,
    seed=7,
    stop=["o"],
    ignore_eos=Field(True, {"max_output_tokens": 5}),
    vllm_xargs={"a": 1},
    conversation="c",
    stream_options=Field({"include_obfuscation": True}, {"stream": True}),
    safety_identifier="me",
)

MESSAGES = _fields(
    max_tokens=3,
    metadata={"user_id": "me"},
    output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    stop_sequences=["o"],
    stream=True,
    system="Be short.",
    temperature=0.5,
    tool_choice=Field({"type": "any"}, {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
    tools=[{"name": "f", "input_schema": {"type": "object"}}],
    top_k=3,
    top_p=0.5,
    thinking={"type": "enabled", "budget_tokens": 2000},
    service_tier="auto_only",
    container="c",
    mcp_servers=[{"name": "x"}],
    context_management={"edits": []},
    kv_transfer_params={"a": 1},
    chat_template_kwargs={"loud": True},
    cache_control={"type": "ephemeral"},
)
COUNT_TOKENS = {
    name: MESSAGES[name] for name in ("system", "tool_choice", "tools", "chat_template_kwargs", "context_management")
}

TOKENIZE = {
    **_TEMPLATE,
    **_fields(
        add_special_tokens=True,
        return_token_strs=True,
        media_io_kwargs={"image": {"a": 1}},
        mm_processor_kwargs={"a": 1},
        prompt=Field("Hi", {"messages": None}),
    ),
}
DETOKENIZE = _fields(skip_special_tokens=True)

# A route, a body that is answered, and the fields.
GENERATING: dict[str, tuple[dict[str, Any], dict[str, Field]]] = {
    "/v1/chat/completions": ({**TALK, "seed": 1}, CHAT),
    "/v1/completions": ({"prompt": "Hello", "max_tokens": 16, "seed": 1}, COMPLETION),
    "/v1/responses": ({"input": "Hi", "seed": 1}, RESPONSES),
    "/v1/messages": ({"model": "tiny", "max_tokens": 30, "seed": 1, **TALK}, MESSAGES),
    "/v1/messages/count_tokens": ({"model": "tiny", **TALK}, COUNT_TOKENS),
    "/generate": ({"prompt": "Hello", "max_tokens": 16, "seed": 1}, _SAMPLING),
    "/tokenize": (TALK, TOKENIZE),
    "/detokenize": ({"tokens": [72]}, DETOKENIZE),
}

# --- pooled routes ---------------------------------------------------------------------------------------------------

_POOLED = _fields(
    user="me",
    truncate_prompt_tokens=4,
    truncation_side=Field("left", {"truncate_prompt_tokens": 4}),
    padding="max_length",
    request_id="mine",
    priority=3,
    mm_processor_kwargs={"a": 1},
    cache_salt="salt",
    use_activation=False,
    normalize=False,
)
_INPUT = {
    **_POOLED,
    **_fields(
        add_special_tokens=False,
        chat_template="{{ 1 }}",
        media_io_kwargs={"image": {"a": 1}},
        messages=Field([USER], {"input": None}),
    ),
}
_ENCODED = {
    **_INPUT,
    **_fields(
        encoding_format="base64",
        embed_dtype=Field("float16", {"encoding_format": "base64"}),
        endianness=Field("big", {"encoding_format": "base64"}),
        dimensions=8,
    ),
}
LONG = "the quick brown fox jumps over the lazy dog"
EMBEDDING = {
    "/v1/embeddings": ({"input": LONG}, _ENCODED),
    "/pooling": ({"input": LONG}, {**_ENCODED, **_fields(task="token_embed", step_tag_id=3, returned_token_ids=[1])}),
    "/score": ({"text_1": LONG, "text_2": ["a", "b"]}, _POOLED),
    "/rerank": ({"query": LONG, "documents": ["a", "b"]}, {**_POOLED, **_fields(top_n=1, return_documents=False)}),
}
CLASSIFYING = {
    "/classify": ({"input": LONG}, _INPUT),
    "/score": ({"text_1": LONG, "text_2": ["a", "b"]}, _POOLED),
    "/rerank": ({"query": LONG, "documents": ["a", "b"]}, {**_POOLED, **_fields(top_n=1)}),
}
