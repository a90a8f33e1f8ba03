"""The offline part of `octavo bench`: one sequence alone, one long prompt, and many sequences at once."""

import time
from collections.abc import Iterator
from random import Random

from octavo.api.offline import OfflineEngine
from octavo.cli.bench_figures import Line, Load, summary
from octavo.config.engine import EngineConfig
from octavo.errors import ConfigError
from octavo.flow.request import GenerationRequest
from octavo.flow.sampling_params import SamplingParams


def measure_offline(config: EngineConfig, load: Load) -> Iterator[Line]:
    """Rows of the table, each as soon as it is measured. Prompts are random tokens, so no prefix is shared."""
    engine = OfflineEngine(config)
    try:
        room = engine.engine.info.max_model_len
        if load.prompt_tokens + load.output_tokens > room:
            raise ConfigError(
                f"prompts and answers of {load.prompt_tokens} + {load.output_tokens} exceed {room} tokens"
            )
        random = Random(0)
        _measure(engine, "warm-up", [_request(engine, random, 16, 4)])
        alone = [_request(engine, random, load.prompt_tokens, load.output_tokens)]
        yield _measure(engine, "one request", alone)
        long = min(room - 1, max(512, load.prompt_tokens))
        yield _measure(engine, f"prompt of {long}", [_request(engine, random, long, 1)])
        many = [_request(engine, random, load.prompt_tokens, load.output_tokens) for _ in range(load.requests)]
        yield _measure(engine, "all at once", many)
    finally:
        engine.close()


def _request(engine: OfflineEngine, random: Random, prompt: int, output: int) -> GenerationRequest:
    ids = [random.randrange(engine.engine.info.vocab) for _ in range(prompt)]
    return engine.prepare(ids, SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False))


def _measure(engine: OfflineEngine, what: str, requests: list[GenerationRequest]) -> Line:
    began = time.perf_counter()
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    counts = dict.fromkeys((request.id for request in requests), 0)
    for deltas in engine.stream(requests):
        now = time.perf_counter()
        for delta in deltas:
            first.setdefault(delta.request_id, now)
            last[delta.request_id] = now
            counts[delta.request_id] += len(delta.token_ids)
    seconds = time.perf_counter() - began
    per_token = [(last[name] - first[name]) / (count - 1) for name, count in counts.items() if count > 1]
    prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
    return summary(
        what, [at - began for at in first.values()], per_token, (prompt_tokens, sum(counts.values())), seconds
    )
