"""Which family reads which checkpoint: the one list. A new family is a module here and one line below."""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from octavo.errors import UnsupportedError
from octavo.model.families import (
    bert,
    deepseek,
    distilbert,
    gemma3,
    gpt2,
    granite,
    granite_hybrid,
    lfm2,
    llama,
    llama4,
    modernbert,
    mpnet,
    nomic_bert,
    opt,
    qwen2,
    qwen3,
    roberta,
)
from octavo.model.families.table import WeightTable
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import DecoderSpec


class Family(Protocol):
    """What a family's module holds."""

    __name__: str
    ARCHITECTURES: tuple[str, ...]  # names in config.json's `architectures`
    GGUF_ARCHITECTURES: tuple[str, ...]  # names in GGUF's `general.architecture`
    WEIGHTS: WeightTable
    GGUF_WEIGHTS: WeightTable

    def read_spec(self, config: Mapping[str, Any]) -> DecoderSpec: ...

    def read_gguf_config(self, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]: ...


FAMILIES = cast(
    tuple[Family, ...],
    (
        *(llama, qwen2, qwen3, gemma3, granite, opt, gpt2, deepseek, lfm2, granite_hybrid, llama4),
        *(bert, roberta, distilbert, modernbert, mpnet, nomic_bert),
    ),
)

TABLE: dict[str, Family] = {name: family for family in FAMILIES for name in family.ARCHITECTURES}
# Names of a decoder's checkpoints that have another head than the one that predicts tokens, or none.
_POOLED_ENDS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForProcessRewardModel", "ForRewardModel"),
    "Model",
)
_GENERATING_ENDS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
GGUF_TABLE: dict[str, Family] = {name: family for family in FAMILIES for name in family.GGUF_ARCHITECTURES}


def family_name(family: Family) -> str:
    """Its module's last name: "llama", "gemma3", ..."""
    return family.__name__.rpartition(".")[2]


def family_of(architectures: object) -> Family:
    """The family of a config.json's `architectures`.

    Raises:
        UnsupportedError: none reads it; lists those that are read.
    """
    names = (
        [name for name in cast(list[object], architectures) if isinstance(name, str)]
        if isinstance(architectures, list)
        else []
    )
    for name in names:
        family = TABLE.get(name) or _family_of_pooled(name)
        if family is not None:
            return family
    raise UnsupportedError(f"architecture {', '.join(names) or 'missing in config.json'}; there are {', '.join(TABLE)}")


def _family_of_pooled(name: str) -> Family | None:
    """The family of a decoder whose checkpoint is named for another head."""
    for end in _POOLED_ENDS:
        if name.endswith(end):
            base = name.removesuffix(end).removesuffix("Text")
            return next((TABLE[base + other] for other in _GENERATING_ENDS if base + other in TABLE), None)
    return None


def family_of_gguf(architecture: object) -> Family:
    """The family of a GGUF file's `general.architecture`.

    Raises:
        UnsupportedError: as `family_of`.
    """
    family = GGUF_TABLE.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise UnsupportedError(f"GGUF architecture {architecture!r}; there are {', '.join(GGUF_TABLE)}")
    return family
