"""Where scripts written for vLLM import sampling parameters from."""

from octavo.flow.beam_search_params import BeamSearchParams
from octavo.flow.repetition_params import RepetitionDetectionParams
from octavo.flow.sampling_params import RequestOutputKind, SamplingParams
from octavo.flow.structured_outputs import StructuredOutputsParams

__all__ = [
    "BeamSearchParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> object:
    if name == "GuidedDecodingParams":  # vLLM's older name; SamplingParams(guided_decoding=...) is answered likewise
        raise ImportError(
            "GuidedDecodingParams is StructuredOutputsParams now, with the same fields: "
            "SamplingParams(structured_outputs=StructuredOutputsParams(...))"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
