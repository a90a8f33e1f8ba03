"""What the user asked for: every option once, with its default, its help line and its spelling on the command line.

Names follow vLLM's engine arguments where vLLM has the option. `None` means "decide for me"; `config/resolve.py` turns
it into a value with a reason. Fields are the only list: `config/cli.py` makes flags of them, `LLM(...)` keywords too.
"""

import difflib
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from octavo.config.values import coerce
from octavo.errors import ConfigError

_WHOLE = 1 << 31  # more than any count that makes sense
_LONGEST = 1e9  # seconds


def option(
    default: object,
    help: str,
    *,
    within: tuple[float, float] | None = None,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    words: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with a help line.

    Args:
        within: least and largest number it may be.
        flags: extra spellings, e.g. ("-tp",).
        words: values that are taken as they are, also "none", which otherwise is the default of what may be None.
    """
    metadata = {"help": help, "within": within, "flags": flags, "metavar": metavar, "words": words}
    return field(default=default, metadata=metadata)


def size(default: str | None, help: str) -> Any:
    """A field whose text is a number of bytes; a wrong one is refused at once."""
    return field(default=default, metadata={"help": help, "size": True, "flags": (), "metavar": "SIZE"})


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
    quantization: str | None = option(
        None,
        "rounds unquantized weights while loading: int8, fp8 (8 bits a weight) or int4 (4.5 bits; embedding and "
        "head in 8); a quantized checkpoint (awq, gptq, compressed-tensors, fp8) is computed with as it is",
        flags=("-q",),
        metavar="int8|fp8|int4",
    )
    max_model_len: int | None = option(
        None,
        "longest prompt plus output, in tokens; 4k and 1M are understood (default: what the model was made for)",
        within=(1, 1 << 30),
    )
    seed: int = option(0, "seed of requests that bring none", within=(-(1 << 63), (1 << 64) - 1))
    generation_config: str = option("auto", "'auto': the model's defaults; 'vllm': neutral defaults; or a directory")
    chat_template: str | None = option(
        None, "Jinja chat template: a file or the text itself (default: the model's own)"
    )
    skip_tokenizer_init: bool = option(False, "serve token ids only")
    weight_cache: bool = option(True, "keep packed weights on disk for a fast start")
    weight_cache_dir: str | None = option(
        None, "where packed weights are kept (default: weights in the cache directory)"
    )
    weight_cache_size: str = size("8GiB", "most bytes the packed-weight cache may hold")
    runner: Literal["auto", "generate", "pooling"] = option(
        "auto", "generate text, or pool hidden states into vectors, classes and scores (auto: as the model is made)"
    )
    convert: Literal["auto", "none", "embed", "classify", "reward"] = option(
        "auto", "what a pooled model answers with (auto: as the model is made)"
    )
    task: Literal["auto", "generate", "embed", "embedding", "classify", "score", "reward"] = option(
        "auto", "vLLM's older name for runner and convert together"
    )
    pooler_config: str | None = option(
        None,
        'how states are pooled, for example {"pooling_type": "MEAN", "normalize": true}',
        flags=("--override-pooler-config",),
        metavar="JSON",
    )
    hf_overrides: str | None = option(
        None, 'values that replace those of config.json, for example {"num_labels": 1}', metavar="JSON"
    )
    trust_remote_code: bool = option(False, "refused when set: Octavo never runs code from a checkpoint")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: Literal[8, 16, 32, 64, 128] = option(16, "tokens a cache block holds")
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8_e4m3", "fp8_e5m2", "int4"] = option(
        "auto",
        "type of cached keys and values (auto: int8 with --quantization int8 or int4, else 16 bits)",
    )
    kv_cache_dtype_skip_layers: tuple[str, ...] = option(
        (),
        "layers that a quantized kv_cache_dtype leaves out: numbers, first, last, sliding_window, full_attention",
        metavar="LAYER",
    )
    kv_cache_size: str | None = field(
        default=None,
        metadata={
            "help": "what the KV cache takes: a share of what is free after the weights, as 0.9, or a size, as 8GiB "
            "(default: what is useful, within half of what is free)",
            "cache_size": True,
            "flags": (),
            "metavar": "SHARE|SIZE",
        },
    )
    kv_cache_memory_bytes: str | None = size(None, "size of the KV cache, e.g. 2GiB: vLLM's name for --kv-cache-size")
    leave_free: str | None = size(
        None, "memory that the KV cache leaves to others, e.g. 2GiB; alone: the cache takes all the rest"
    )
    gpu_memory_utilization: float | None = option(
        None,
        "most of the free memory that the KV cache may take when no size is given (default: 0.5)",
        within=(0.01, 1.0),
    )
    num_gpu_blocks_override: int | None = option(
        None, "number of cache blocks, whatever the memory", within=(1, _WHOLE)
    )
    enable_prefix_caching: bool = option(True, "reuse cached blocks of equal prefixes")
    cache_eviction: Literal["lru", "lfu", "priority-frequency"] = option(
        "priority-frequency", "which cached blocks are forgotten last"
    )
    cache_pin_budget: float = option(
        0.25, "share of the cache that requests may pin (cache_control, prompt_cache_retention)", within=(0.0, 1.0)
    )
    kv_host: str | None = size(None, "host memory for blocks that the KV cache has no room for, e.g. 2GiB")
    kv_disk: str | None = size(None, "disk space for such blocks, e.g. 4GiB; they outlive a restart")
    kv_disk_path: str | None = option(
        None, "directory of kv_disk, for one engine at a time (default: kv in the cache directory)", metavar="DIR"
    )


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """Who computes when."""

    max_num_seqs: int | None = option(
        None, "most sequences in one step (default: by threads and memory, octavo inspect tells)", within=(1, 65536)
    )
    max_num_batched_tokens: int | None = option(
        None, "most tokens in one step (default: by threads, octavo inspect tells)", within=(1, 1 << 24)
    )
    enable_chunked_prefill: bool = option(True, "split long prompts over steps")
    scheduling_policy: Literal["fcfs", "priority", "lpm", "sjf", "fair"] = option(
        "fcfs",
        "order of waiting requests: arrival, priority, longest cached prefix, shortest job, or fair between tenants",
    )
    max_waiting: int = option(4096, "requests that may wait; more are answered 429", within=(0, _WHOLE))
    max_waiting_tokens: int | None = option(
        None, "prompt tokens that may wait; more are answered 429", within=(1, 1 << 48)
    )
    request_timeout: float | None = option(
        None,
        "seconds a request may take in all; then it ends with what it has ('timeout'), or 504",
        within=(0.001, _LONGEST),
    )
    ttft_deadline: float | None = option(
        None, "seconds until a request's first token; later ones are answered 504", within=(0.001, _LONGEST)
    )
    target_itl_ms: float | None = option(
        None, "milliseconds between two tokens that prompts may not stretch", within=(0.1, 1e6)
    )
    tenant_weights: tuple[str, ...] = option((), "shares under the policy 'fair'; 1 where none", metavar="TENANT=X")
    profile: Literal["balanced", "latency", "throughput", "memory"] = option(
        "balanced", "sets step size, batch, cache and target together, and tells what it set"
    )


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """What computes."""

    backend: Literal["auto", "native", "torch"] = option("auto", "native kernels, or the PyTorch reference")
    isa: Literal["auto", "scalar", "avx2", "avx2_vnni", "avx512", "amx", "neon", "neon_dotprod", "neon_i8mm"] = option(
        "auto", "instruction set of the native kernels"
    )
    linear_compute: Literal["auto", "exact", "int16", "int8"] = option(
        "auto",
        "inputs of products with 8-bit and smaller weights: float32; rounded to 16 bits, nearly exact and twice as "
        "fast in batches and prompts; or to 8 bits, three times as fast (auto: int8 with --quantization, else int16)",
    )
    threads: int | None = option(None, "compute threads (default: the CPUs this process may use)", within=(1, 1024))
    tensor_parallel_size: int = option(
        1, "ranks one layer is cut over; more than 1 is not supported yet", flags=("-tp",), within=(1, 1 << 16)
    )
    pipeline_parallel_size: int = option(
        1, "pipeline stages; more than 1 is not supported yet", flags=("-pp",), within=(1, 1 << 16)
    )
    enable_sleep_mode: bool = option(
        False, "let an idle engine release its memory: LLM.sleep and wake_up; /sleep and /wake_up in development mode"
    )


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """The HTTP server."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one", within=(0, 65535))
    uds: str | None = option(None, "unix socket to listen on instead", metavar="PATH")
    root_path: str = option("", "path prefix behind a proxy")
    served_model_name: tuple[str, ...] = option((), "names of the model in the API; the first is echoed")
    api_key: tuple[str, ...] = option((), "keys of which a request must carry one", metavar="KEY")
    api_key_file: str | None = option(
        None, "more keys, hashed, with limits; `octavo key add` writes it, a change is taken up", metavar="FILE"
    )
    metrics_need_key: bool = option(True, "with keys: /metrics needs one, too")
    ssl_keyfile: str | None = option(None, "private key of the certificate (PEM); a change is taken up", metavar="FILE")
    ssl_certfile: str | None = option(None, "certificate and its chain (PEM): serve https", metavar="FILE")
    ssl_ca_certs: str | None = option(None, "authorities that clients' certificates are checked with", metavar="FILE")
    ssl_cert_reqs: Literal[0, 1, 2] = option(0, "clients' certificates: 0 not asked for, 1 checked if sent, 2 required")
    allowed_origins: tuple[str, ...] = option(("*",), "CORS origins")
    allowed_methods: tuple[str, ...] = option(("*",), "CORS methods")
    allowed_headers: tuple[str, ...] = option(("*",), "CORS headers")
    allow_credentials: bool = option(False, "CORS: with cookies and authorization")
    max_body_size: str = size("32MiB", "largest request body")
    max_connections: int = option(4096, "connections at once; more are answered 503", within=(1, 1 << 20))
    client_timeout: float = option(
        30.0, "seconds without progress after which a client that sends or reads is cut off", within=(0.05, _LONGEST)
    )
    keep_alive_timeout: float = option(5.0, "seconds a connection stays open unused", within=(0.05, _LONGEST))
    engine_timeout: float = option(
        120.0,
        "seconds the engine process may neither answer nor work before it is ended and started again; ten times as "
        "long where it works; 0 is no limit",
        within=(0.0, _LONGEST),
    )
    shutdown_timeout: float = option(
        30.0, "seconds running requests get to finish when the server stops", within=(0.0, _LONGEST)
    )
    access_log: str | None = option(None, "file for one JSON line a request; - is standard output", metavar="FILE")
    disable_access_log: bool = option(False, "no line a request in the log", flags=("--disable-uvicorn-access-log",))
    disable_access_log_for_endpoints: tuple[str, ...] = option((), "paths of which no line is written", metavar="PATH")
    enable_request_id_headers: bool = option(False, "answers carry X-Request-Id")
    disable_fastapi_docs: bool = option(False, "no /openapi.json and no /docs")
    max_logprobs: int = option(20, "most log-probabilities a request may ask for", within=(-1, _WHOLE))
    response_role: str = option("assistant", "role of chat answers")
    tool_call_parser: str = option("auto", "how tool calls are written: a format's name, none, or auto: by template")
    enable_auto_tool_choice: bool = option(True, "let the model choose to call tools")
    reasoning_parser: str = option(
        "auto", "how reasoning is marked: a format's name, none, or auto: by the chat template"
    )
    strict_requests: bool = option(False, "answer 400 where a field of a request would have no effect")
    enable_prompt_tokens_details: bool = option(True, "report cached tokens in usage")
    enable_force_include_usage: bool = option(False, "every stream ends with its usage")
    return_tokens_as_token_ids: bool = option(False, "log-probabilities name tokens as token_id:N")
    default_chat_template_kwargs: str | None = option(
        None, "variables of the chat template where a request sets none", metavar="JSON"
    )
    response_store: str | None = option(
        None,
        "where /v1/responses keeps what it stores: a file, memory, or none (default: a file in the cache directory)",
        metavar="PATH",
        words=("none",),
    )
    response_store_size: str = size("256MiB", "most that is kept of responses, for 30 days; the oldest go first")
    file_store: str | None = option(
        None,
        "where /v1/files keeps files and /v1/batches its state: a directory, or none (default: files in the cache "
        "directory)",
        metavar="DIR",
        words=("none",),
    )
    file_store_size: str = size("8GiB", "most that is kept of files, each for 30 days")
    max_file_size: str = size("200MiB", "largest file that is taken")
    batch_concurrency: int | None = option(
        None,
        "lines of batches at once (default: what the engine takes; an eighth of that beside other requests)",
        within=(1, 65536),
    )
    allowed_media_domains: tuple[str, ...] = option(
        (), "domains that prompts may name media of; *.domain takes subdomains (default: none)", metavar="DOMAIN"
    )
    allowed_local_media_path: str | None = option(
        None, "directory that file:// URLs in prompts may name media of (default: none)", metavar="DIR"
    )


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """What is measured and told."""

    enable_metrics: bool = option(True, "collect metrics; served at /metrics, and LLM.get_metrics()")
    disable_log_stats: bool = option(False, "no periodic throughput line")
    log_stats_interval: float = option(10.0, "seconds between throughput lines", within=(0.1, _LONGEST))
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "least severity that is logged")
    log_file: str | None = option(None, "file for log lines (default: standard error)", metavar="FILE")
    profiler_dir: str | None = option(
        None, "where start_profile has profiles written (default: profiles in the cache directory)", metavar="DIR"
    )


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
        known, other = option_names(), _other_names()
        for given, value in options.items():
            name = other.get(given, given)
            if name not in known:
                raise ConfigError(_unknown(name, known))
            if value is not None:
                section = SECTIONS[known[name]]
                metadata = next(f.metadata for f in fields(section) if f.name == name)
                sections[known[name]][name] = coerce(name, get_type_hints(section)[name], value, metadata)
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


def _other_names() -> dict[str, str]:
    """Long flags under which an option is known, too, as keywords, and the option's name."""
    return {
        flag.removeprefix("--").replace("-", "_"): f.name
        for cls in SECTIONS.values()
        for f in fields(cls)
        for flag in f.metadata["flags"]
        if flag.startswith("--")
    }


def choices_of(name: str) -> tuple[str, ...]:
    """What an option with a fixed list of values may be."""
    return get_args(get_type_hints(SECTIONS[option_names()[name]])[name])


def _unknown(name: str, known: dict[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown option '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")
