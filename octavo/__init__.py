"""Octavo: LLM inference and serving. `from octavo import LLM, SamplingParams` works as with vLLM.

Names are loaded when they are first used, so that `import octavo` and the command line stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.api.async_llm import AsyncEngineArgs, AsyncLLM, AsyncLLMEngine
    from octavo.api.llm import LLM
    from octavo.api.llm_engine import EngineArgs, LLMEngine
    from octavo.api.outputs import BeamSearchOutput, CompletionOutput, RequestOutput
    from octavo.api.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from octavo.api.prompts import TextPrompt, TokensPrompt
    from octavo.config.engine import EngineConfig
    from octavo.config.pooling import PoolerConfig
    from octavo.flow.beam_search_params import BeamSearchParams
    from octavo.flow.pooling_params import PoolingParams
    from octavo.flow.sampling_params import RequestOutputKind, SamplingParams
    from octavo.flow.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"

_HOME = {
    "LLM": "octavo.api.llm",
    "SamplingParams": "octavo.flow.sampling_params",
    "BeamSearchParams": "octavo.flow.beam_search_params",
    "RequestOutputKind": "octavo.flow.sampling_params",
    "StructuredOutputsParams": "octavo.flow.structured_outputs",
    "RequestOutput": "octavo.api.outputs",
    "CompletionOutput": "octavo.api.outputs",
    "BeamSearchOutput": "octavo.api.outputs",
    "PoolingOutput": "octavo.api.pooling_outputs",
    "PoolingRequestOutput": "octavo.api.pooling_outputs",
    "EmbeddingOutput": "octavo.api.pooling_outputs",
    "EmbeddingRequestOutput": "octavo.api.pooling_outputs",
    "ClassificationOutput": "octavo.api.pooling_outputs",
    "ClassificationRequestOutput": "octavo.api.pooling_outputs",
    "ScoringOutput": "octavo.api.pooling_outputs",
    "ScoringRequestOutput": "octavo.api.pooling_outputs",
    "PoolingParams": "octavo.flow.pooling_params",
    "PoolerConfig": "octavo.config.pooling",
    "TextPrompt": "octavo.api.prompts",
    "TokensPrompt": "octavo.api.prompts",
    "EngineConfig": "octavo.config.engine",
    "EngineArgs": "octavo.api.llm_engine",
    "LLMEngine": "octavo.api.llm_engine",
    "AsyncLLM": "octavo.api.async_llm",
    "AsyncLLMEngine": "octavo.api.async_llm",
    "AsyncEngineArgs": "octavo.api.async_llm",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineConfig",
    "LLMEngine",
    "PoolerConfig",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
