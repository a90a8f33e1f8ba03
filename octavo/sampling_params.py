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
