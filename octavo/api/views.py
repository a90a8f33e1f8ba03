"""vLLM's configuration objects, as far as scripts read them: what an engine is, under vLLM's names; nothing to set."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

from octavo.engine.build import Engine
from octavo.engine.client import EngineInfo
from octavo.engine.frontend import Frontend
from octavo.errors import UnsupportedError


class MissingError(UnsupportedError, AttributeError):
    """A name of vLLM's that is not there; `hasattr` says no, everybody else is told why."""


class View:
    """Values by name.

    Raises:
        MissingError: another name is read.
    """

    _name = "View"  # until there is one: `copy` asks an empty object what it has

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        known = ", ".join(sorted(key for key in self.__dict__ if not key.startswith("_")))
        raise MissingError(f"{self._name}.{name} is not there; what can be read is {known}")

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.__dict__.items() if not name.startswith("_"))
        return f"{self._name}({', '.join(shown)})"


def refuse(owner: str, missing: Mapping[str, str], name: str) -> NoReturn:
    """Answer to an attribute that a class does not have.

    Raises:
        MissingError: vLLM's has it; says what to do instead.
        AttributeError: nobody has it.
    """
    if name in missing:
        raise MissingError(f"{owner}.{name} {missing[name]}")
    raise AttributeError(f"'{owner}' object has no attribute {name!r}")


# vLLM's methods and attributes that Octavo lacks, of all of its classes.
_NO_MODEL = "is not supported: there is no Python model or worker to reach; weights are packed for native code"
_NO_ADAPTERS = "is not supported yet: adapters cannot be loaded"
_NO_UPDATES = "is not supported: weights do not change; make an engine of the new ones"
_NO_MEDIA = "is not supported: models read text only"
MISSING = {
    **dict.fromkeys(("collective_rpc", "apply_model", "model_executor", "engine_core", "driver_worker"), _NO_MODEL),
    **dict.fromkeys(("add_lora", "remove_lora", "list_loras", "pin_lora"), _NO_ADAPTERS),
    **dict.fromkeys(
        ("init_weight_transfer_engine", "update_weights", "start_weight_update", "finish_weight_update"), _NO_UPDATES
    ),
    **dict.fromkeys(("mm_processor", "multi_modal_config"), _NO_MEDIA),
    "set_tokenizer": "is not supported: the engine has one tokenizer; LLM(..., tokenizer=...) says which",
    "release_kv_cache_memory": "is not supported: use sleep(level=1)",
    "do_log_stats": "is not supported: get_metrics() gives the figures",
    "from_vllm_config": "is not supported: use from_engine_args",
    "scale_elastic_ep": "is not supported: there is one rank",
}


def model_config(frontend: Frontend, engine: Engine) -> View:
    """The model."""
    model, info = frontend.config.model, engine.info
    hf_config = SimpleNamespace(**{**engine.source.config, "to_dict": lambda: dict(engine.source.config)})
    pooled = frontend.pooler is not None
    values: dict[str, Any] = {
        "model": str(model.model or frontend.path),
        "tokenizer": str(model.tokenizer or model.model or frontend.path),
        "served_model_name": frontend.shown_name,
        "revision": model.revision,
        "seed": model.seed,
        "dtype": engine.resolved.model.weights.value,
        "quantization": engine.source.quantized.method if engine.source.quantized is not None else None,
        "max_model_len": info.max_model_len,
        "max_logprobs": frontend.config.serving.max_logprobs,
        "skip_tokenizer_init": model.skip_tokenizer_init,
        "trust_remote_code": False,
        "is_encoder_decoder": False,
        "is_multimodal_model": False,
        "runner_type": "pooling" if pooled else "generate",
        "hf_config": hf_config,
        "hf_text_config": hf_config,
        "architectures": list(engine.source.config.get("architectures", ())),
        "generation_config": model.generation_config,
        "get_vocab_size": _constant(info.vocab),
        "get_hidden_size": _constant(engine.source.spec.hidden),
        "get_diff_sampling_param": frontend.sampling_defaults,
    }
    return View("model_config", values)


def cache_config(frontend: Frontend, engine: Engine) -> View:
    """The KV cache."""
    resolved, info = engine.resolved, engine.info
    values = {
        "block_size": info.block_size,
        "num_gpu_blocks": info.num_blocks,
        "num_cpu_blocks": 0,
        "cache_dtype": resolved.model.kv_cache_dtype.value,
        "enable_prefix_caching": resolved.cache.prefix_caching.value,
        "kv_cache_memory_bytes": resolved.cache.cache_bytes.value,
    }
    return View("cache_config", values)


def scheduler_config(frontend: Frontend, engine: Engine) -> View:
    """What a step may hold."""
    info = engine.info
    values = {
        "max_num_seqs": info.max_num_seqs,
        "max_num_batched_tokens": info.max_num_batched_tokens,
        "max_model_len": info.max_model_len,
        "policy": frontend.config.scheduling.scheduling_policy,
        "enable_chunked_prefill": engine.resolved.model.chunked.value,
        "runner_type": "generate" if frontend.pooler is None else "pooling",
    }
    return View("scheduler_config", values)


def vllm_config(frontend: Frontend, engine: Engine) -> View:
    """All of them."""
    ranks = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "world_size")
    values = {
        "model_config": model_config(frontend, engine),
        "cache_config": cache_config(frontend, engine),
        "scheduler_config": scheduler_config(frontend, engine),
        "parallel_config": View("parallel_config", dict.fromkeys(ranks, 1)),
        "device_config": View("device_config", {"device_type": "cpu"}),
        "lora_config": None,
        "speculative_config": None,
        "kv_transfer_config": None,
    }
    return View("vllm_config", values)


def supported_tasks(frontend: Frontend, info: EngineInfo) -> tuple[str, ...]:
    """What the model can be asked."""
    return ("generate",) if frontend.pooler is None else tuple(frontend.pooling(info).tasks)


def _constant(value: int) -> Callable[[], int]:
    return lambda: value
