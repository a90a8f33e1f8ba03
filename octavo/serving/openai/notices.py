"""Which known fields of a body have no effect, or another than they say: what the answer's `warnings` tell of them."""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from octavo.flow.sampler_order import FILTERS, left_out
from octavo.flow.sampling_params import LARGEST_BIAS, SamplingParams
from octavo.serving.nested import MESSAGES, TOOLS, unknown_fields
from octavo.serving.openai.schema import MOST_WARNINGS, ChatRequest, GenerateRequest, GenerationFields
from octavo.serving.state import ServerState

_NOT_GREEDY = {**FILTERS, "dynatemp_range": 0.0, "mirostat": 0}
_OF_MIROSTAT = {"mirostat_tau": 5.0, "mirostat_eta": 0.1}
# Flags that may stand among the variables of a template.
_FLAGS = ("add_generation_prompt", "continue_final_message")
_NOT_BARE = ("stream_options", "return_token_ids", "return_tokens_as_token_ids", "echo", "prompt_logprobs")
_PLAIN_TIERS = (None, "auto", "default")


def notices(body: GenerationFields, params: SamplingParams, state: ServerState) -> Iterator[str]:
    """One line for each field that asks for something which does not happen."""
    if body.priority and state.policy != "priority":
        yield f"priority has no effect: the server's scheduling policy is {state.policy!r}"
    if params.greedy:
        yield from _idle(body, _NOT_GREEDY, f"at temperature {body.temperature or 0} the likeliest token is taken")
    if params.mirostat:
        yield from _idle(body, FILTERS, "mirostat takes its place")
    else:
        yield from _idle(body, _OF_MIROSTAT, "mirostat is off")
    if params.samplers is not None:
        yield from _idle(body, left_out(params.samplers), "samplers does not name what applies it")
    wide = [key for key, value in (body.logit_bias or {}).items() if abs(value) > LARGEST_BIAS]
    if wide:
        yield f"logit_bias of token {wide[0][:32]} was brought into the range of +-{LARGEST_BIAS:g}"
    if body.truncation_side is not None and body.truncate_prompt_tokens is None:
        yield "truncation_side has no effect without truncate_prompt_tokens"
    if isinstance(body, ChatRequest):
        yield from _chat_notices(body, state)
    if isinstance(body, GenerateRequest):
        yield from _bare_notices(body)


def _bare_notices(body: GenerateRequest) -> Iterator[str]:
    for name in _NOT_BARE:
        if getattr(body, name) not in (None, False):
            yield f"{name} has no effect here: the answer has texts alone, each with its prompt before it"


def template_notices(state: ServerState, variables: Mapping[str, Any] | None) -> Iterator[str]:
    """One line for each variable of a request that the chat template does not read."""
    template = state.inputs.chat_template
    for name in islice(variables or (), MOST_WARNINGS):
        if template is not None and name not in _FLAGS and not template.mentions(name):
            yield f"chat_template_kwargs.{name[:64]} has no effect: the model's chat template does not read it"


def _idle(body: GenerationFields, neutral: Mapping[str, float], why: str) -> Iterator[str]:
    for name, off in neutral.items():
        if getattr(body, name) not in (None, off, -1):
            yield f"{name} has no effect: {why}"


def _chat_notices(body: ChatRequest, state: ServerState) -> Iterator[str]:
    limits = (body.max_tokens, body.max_completion_tokens)
    reasons = state.formats.reasoning is not None
    template = state.inputs.chat_template
    found = (
        (None not in limits and limits[0] != limits[1], "max_tokens has no effect: max_completion_tokens wins"),
        (body.metadata, "metadata is not kept"),
        (
            body.echo and (not body.messages or body.messages[-1].get("role") != state.config.response_role),
            f"echo has no effect: the last message is not of the role {state.config.response_role!r}",
        ),
        (
            body.documents and template is not None and not template.mentions("documents"),
            "documents has no effect: the model's chat template does not read it",
        ),
        (body.store, "store has no effect: answers are not kept"),
        (body.service_tier not in _PLAIN_TIERS, "service_tier has no effect: there is one"),
        (body.function_call is not None, "function_call has no effect without functions: use tools and tool_choice"),
        (body.tool_choice == "auto" and not body.tools, "tool_choice has no effect without tools"),
        (body.parallel_tool_calls is not None and not body.tools, "parallel_tool_calls has no effect without tools"),
        (
            body.include_reasoning is not None and not reasons,
            "include_reasoning has no effect: this model's reasoning is not told apart (--reasoning-parser)",
        ),
        (
            body.reasoning_effort is not None and not state.formats.shows_effort,
            "reasoning_effort has no effect: the model's chat template does not read it",
        ),
    )
    yield from (text for condition, text in found if condition)
    yield from template_notices(state, body.chat_template_kwargs)
    reads = template.mentions if template is not None else None
    inside = unknown_fields(body.messages, MESSAGES, "messages", reads), unknown_fields(body.tools, TOOLS, "tools")
    yield from islice(chain(*inside), MOST_WARNINGS)
