"""What the user asked for: every option once, with its default, its help line and its spelling on the command line.

Names follow vLLM's engine arguments where vLLM has the option. `None` means "decide for me"; `config/resolve.py` turns
it into a value with a reason. Fields are the only list: `config/cli.py` makes flags of them, `LLM(...)` keywords too.
"""

import difflib
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

from octavo.config.values import coerce
from octavo.errors import ConfigError


def option(default: object, help: str, *, flags: tuple[str, ...] = (), metavar: str | None = None) -> Any:
    """A dataclass field with a help line and extra flag spellings (`flags`, e.g. ("-tp",))."""
    return field(default=default, metadata={"help": help, "flags": flags, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is read."""

    model: str | None = option(
        None, "directory in Hugging Face layout, .gguf file or hub name (default: the demo model)"
    )
    tokenizer: str | None = option(None, "tokenizer directory or hub name (default: the model's own)")
    revision: str | None = option(None, "hub revision of the model")
    download_dir: str | None = option(None, "where hub downloads are kept (default: the hub library's cache)")
    hf_token: str | None = option(None, "hub access token")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = option(
        "auto", "type of unquantized weights: auto keeps the file's"
    )
    quantization: str | None = option(None, "quantization format of the checkpoint (default: read from it)")
    max_model_len: int | None = option(None, "longest prompt plus output, in tokens; 4k and 1M are understood")
    seed: int = option(0, "seed of requests that bring none")
    generation_config: str = option("auto", "'auto': the model's defaults; 'vllm': neutral defaults; or a directory")
    chat_template: str | None = option(None, "Jinja chat template: a file or the text itself")
    skip_tokenizer_init: bool = option(False, "serve token ids only")
    weight_cache: bool = option(True, "keep packed weights on disk for a fast start")
    weight_cache_dir: str | None = option(None, "where packed weights are kept")
    weight_cache_size: str = option("8GiB", "most bytes the packed-weight cache may hold")
    trust_remote_code: bool = option(False, "refused when set: Octavo never runs code from a checkpoint")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = option(16, "tokens a cache block holds: 16 or 32")
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = option("auto", "type of cached keys and values")
    kv_cache_memory_bytes: str | None = option(None, "size of the KV cache, e.g. 2GiB (default: from what is free)")
    gpu_memory_utilization: float = option(0.5, "share of free memory the KV cache may take when no size is given")
    num_gpu_blocks_override: int | None = option(None, "number of cache blocks, whatever the memory")
    enable_prefix_caching: bool = option(True, "reuse cached blocks of equal prefixes")


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """Who computes when."""

    max_num_seqs: int | None = option(None, "most sequences in one step")
    max_num_batched_tokens: int | None = option(None, "most tokens in one step")
    enable_chunked_prefill: bool = option(True, "split long prompts over steps")
    scheduling_policy: Literal["fcfs", "priority", "lpm", "sjf", "fair"] = option(
        "fcfs",
        "order of waiting requests: arrival, priority, longest cached prefix, shortest job, or fair between tenants",
    )
    max_waiting: int = option(4096, "requests that may wait; more are answered 429")
    max_waiting_tokens: int | None = option(None, "prompt tokens that may wait; more are answered 429")
    request_timeout: float | None = option(None, "seconds a request may take in all; later ones end with 504")
    ttft_deadline: float | None = option(None, "seconds until a request's first token; later ones are answered 504")
    target_itl_ms: float | None = option(None, "milliseconds between two tokens that prompts may not stretch")
    tenant_weights: tuple[str, ...] = option((), "shares under the policy 'fair'; 1 where none", metavar="TENANT=X")
    profile: Literal["balanced", "latency", "throughput", "memory"] = option(
        "balanced", "sets step size, batch, cache and target together, and tells what it set"
    )


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """What computes."""

    backend: Literal["auto", "native", "torch"] = option("auto", "native kernels, or the PyTorch reference")
    isa: Literal["auto", "scalar", "avx2", "avx512", "neon"] = option("auto", "instruction set of the native kernels")
    threads: int | None = option(None, "compute threads (default: the CPUs this process may use)")
    tensor_parallel_size: int = option(
        1, "ranks one layer is cut over; more than 1 is not supported yet", flags=("-tp",)
    )
    pipeline_parallel_size: int = option(1, "pipeline stages; more than 1 is not supported yet", flags=("-pp",))
    enforce_eager: bool = option(False, "accepted for compatibility: programs need no capture time on CPUs")


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """The HTTP server."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one")
    uds: str | None = option(None, "unix socket to listen on instead")
    api_key: str | None = option(None, "key that requests must carry")
    served_model_name: tuple[str, ...] = option((), "names of the model in the API; the first is echoed")
    root_path: str = option("", "path prefix behind a proxy")
    allowed_origins: tuple[str, ...] = option(("*",), "CORS origins")
    max_body_size: str = option("32MiB", "largest request body")
    shutdown_timeout: float = option(30.0, "seconds running requests get to finish when the server stops")
    disable_access_log: bool = option(False, "no line a request")
    max_logprobs: int = option(20, "most log-probabilities a request may ask for")
    response_role: str = option("assistant", "role of chat answers")
    enable_prompt_tokens_details: bool = option(True, "report cached tokens in usage")


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """What is measured and told."""

    enable_metrics: bool = option(True, "collect metrics; served at /metrics, and LLM.get_metrics()")
    disable_log_stats: bool = option(False, "no periodic throughput line")
    log_stats_interval: float = option(10.0, "seconds between throughput lines")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "least severity that is logged")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All sections. Build with `EngineConfig.from_options(model=..., max_num_seqs=...)`."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    execution: ExecutionConfig = ExecutionConfig()
    serving: ServingConfig = ServingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @classmethod
    def from_options(cls, **options: Any) -> "EngineConfig":
        """Build from flat option names, as `LLM(...)` takes them; a missing or None option keeps its default.

        Raises:
            ConfigError: an unknown name (with the nearest known one), or a value of the wrong type.
        """
        sections: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
        known = option_names()
        for name, value in options.items():
            if name not in known:
                raise ConfigError(_unknown(name, known))
            if value is not None:
                kind = get_type_hints(SECTIONS[known[name]])[name]
                sections[known[name]][name] = coerce(name, kind, value)
        return cls(**{section: SECTIONS[section](**values) for section, values in sections.items()})


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduling": SchedulingConfig,
    "execution": ExecutionConfig,
    "serving": ServingConfig,
    "telemetry": TelemetryConfig,
}


def option_names() -> dict[str, str]:
    """Every option's name and the section it belongs to. Names are unique over sections."""
    return {f.name: section for section, cls in SECTIONS.items() for f in fields(cls)}


def _unknown(name: str, known: dict[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown option '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")
