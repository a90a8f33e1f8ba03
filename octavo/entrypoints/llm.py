"""Where scripts written for vLLM import `LLM` from."""

from octavo.api.llm import LLM

__all__ = ["LLM"]
