"""vLLM's options that Octavo lacks: which are accepted because nothing has to be done, and which are refused.

Nothing is silently ignored: a neutral value passes, an accepted one is answered with a note, all others with an error.
"""

from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Foreign:
    """One option of vLLM.

    `neutral` are values that ask for nothing, besides None and False. `reason` completes "NAME ...".
    """

    reason: str
    refused: bool = True
    neutral: tuple[object, ...] = ()


def _accepted(reason: str, *neutral: object) -> Foreign:
    return Foreign(reason, refused=False, neutral=neutral)


def _refused(reason: str, *neutral: object) -> Foreign:
    return Foreign(reason, neutral=neutral)


_NOT_YET = "is not supported yet"
_NO_CAPTURE = "has no effect: programs are recorded once when the model loads"
_ONE_RANK = "has no effect with one rank"

FOREIGN: dict[str, Foreign] = {
    # Nothing has to be done.
    "swap_space": _accepted("has no effect: kv_host keeps blocks of preempted sequences, else they are recomputed", 0),
    "disable_custom_all_reduce": _accepted(_ONE_RANK),
    "distributed_executor_backend": _accepted(_ONE_RANK, "mp", "uni"),
    "max_seq_len_to_capture": _accepted(_NO_CAPTURE),
    "compilation_config": _accepted(_NO_CAPTURE, 0, {}),
    "cudagraph_capture_sizes": _accepted(_NO_CAPTURE),
    "enforce_eager": _accepted(_NO_CAPTURE),
    "async_scheduling": _accepted("has no effect on a CPU: there is no idle device to hide planning behind", True),
    "disable_log_requests": _accepted("has no effect: requests are not logged", True),
    "use_v2_block_manager": _accepted("has no effect: there is one block manager", True),
    "num_scheduler_steps": _accepted("has no effect: one step is planned at a time", 1),
    "preemption_mode": _accepted("has no effect: preempted sequences are always computed again", "recompute"),
    "max_num_partial_prefills": _accepted("has no effect: prompts share a step as the token budget allows", 1),
    "device": _accepted("has no effect: --backend chooses what computes", "auto", "cpu"),
    "tokenizer_revision": _accepted("has no effect: the tokenizer is the model's own"),
    "api_server_count": _accepted("has no effect: there is one API process", 1),
    "uvicorn_log_level": _accepted("has no effect: use log_level", "info", "warning"),
    "enable_ssl_refresh": _accepted("has no effect: a new certificate is always taken up", True),
    "enable_server_load_tracking": _accepted("has no effect: /load always tells", True),
    "enable_log_requests": _accepted("has no effect: prompts are never logged; access_log has a line a request"),
    "enable_log_outputs": _accepted("has no effect: answers are never logged"),
    "max_log_len": _accepted("has no effect: prompts and answers are never logged"),
    "h11_max_incomplete_event_size": _accepted("has no effect: the head of a request may take 64 KiB"),
    "h11_max_header_count": _accepted("has no effect: the head of a request may take 64 KiB"),
    "max_parallel_loading_workers": _accepted("has no effect: weights are packed by the whole thread team"),
    "safetensors_load_strategy": _accepted("has no effect: files are always mapped", "lazy", "mmap"),
    # Values of these that mean "the usual" pass.
    "tokenizer_mode": _refused("can only be 'auto'", "auto", "hf"),
    "load_format": _refused("can only be 'auto': safetensors and GGUF are recognised", "auto", "safetensors", "gguf"),
    "model_impl": _refused("can only be 'auto': Octavo has one implementation of a model", "auto", "vllm"),
    "data_parallel_size": _refused(f"above 1 {_NOT_YET}", 1),
    "cpu_offload_gb": _refused("has nothing to offload from: weights are in main memory", 0),
    "chat_template_content_format": _refused("can only be 'auto'", "auto"),
    "config_format": _refused("can only be 'auto'", "auto", "hf"),
    "limit_mm_per_prompt": _refused("asks for images, audio or video, which are not supported yet", {}),
    # Not there.
    "enable_lora": _refused(f"(LoRA adapters) {_NOT_YET}"),
    "lora_modules": _refused(f"(LoRA adapters) {_NOT_YET}", [], ()),
    "speculative_config": _refused(f"(speculative decoding) {_NOT_YET}"),
    "override_generation_config": _refused("is not supported yet: pass the values in SamplingParams", {}),
    "tool_parser_plugin": _refused("is not supported: plugins would run code in the server", ""),
    "structured_outputs_config": _refused("is not supported: there is one backend, and nothing to set", {}),
    "logits_processors": _refused("is not supported: callables would leave the native step", [], ()),
    "kv_transfer_config": _refused(_NOT_YET),
    "enable_expert_parallel": _refused(_NOT_YET),
    "trust_request_chat_template": _refused("is not supported: templates come from the model or --chat-template"),
    "enable_per_request_metrics": _refused("is not supported: access_log and /metrics tell what requests take"),
    "headless": _refused("is not supported: there is one node"),
    "ssl_ciphers": _refused("is not supported: Python's choice of ciphers is used"),
    "log_config_file": _refused("is not supported: log_level, log_file and access_log say what goes where"),
    "middleware": _refused("is not supported: put a proxy in front", [], ()),
    "enable_prompt_embeds": _refused(_NOT_YET),
}


def split_foreign(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Own options, and a note for each of vLLM's that was given but needs nothing done.

    Raises:
        UnsupportedError: an option asks for something that Octavo does not do; says what.
    """
    own: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in options.items():
        foreign = FOREIGN.get(name)
        if foreign is None:
            own[name] = value
        elif value is None or value is False or value in foreign.neutral:
            continue
        elif foreign.refused:
            raise UnsupportedError(f"{name} {foreign.reason}")
        else:
            notes.append(f"{name} {foreign.reason}")
    return own, notes
