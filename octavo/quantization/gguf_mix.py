"""Which block format each matrix of a GGUF file gets: the types people ask for by name, plain ones and mixes.

Mixes give more bits to what costs most when it is rounded: the head, and values and down projections of the first and
last eighth of the layers and of every third between, as files in circulation under these names do.
"""

from dataclasses import dataclass

from octavo.quantization.format import FORMATS


@dataclass(frozen=True, slots=True)
class Mix:
    """A type. base: of most matrices; more: of values and down projections in `_favoured` layers; head: of the head.

    number: the file's `general.file_type`. everywhere: `more` is of the first layers' values and down projections only.
    """

    number: int
    base: str
    more: str
    head: str
    first_only: bool = False


MIXES: dict[str, Mix] = {
    "Q4_0": Mix(2, "q4_0", "q4_0", "q6_k"),
    "Q4_1": Mix(3, "q4_1", "q4_1", "q6_k"),
    "Q5_0": Mix(8, "q5_0", "q5_0", "q6_k"),
    "Q5_1": Mix(9, "q5_1", "q5_1", "q6_k"),
    "Q8_0": Mix(7, "q8_0", "q8_0", "q8_0"),
    "Q4_K_S": Mix(14, "q4_k", "q5_k", "q6_k", first_only=True),
    "Q4_K_M": Mix(15, "q4_k", "q6_k", "q6_k"),
    "Q5_K_S": Mix(16, "q5_k", "q5_k", "q6_k"),
    "Q5_K_M": Mix(17, "q5_k", "q6_k", "q6_k"),
    "Q6_K": Mix(18, "q6_k", "q6_k", "q6_k"),
}
ALIASES = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
# What takes the place of a format whose blocks do not divide a row: as many bits, or a few more.
_SMALLER_BLOCKS = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
_PLAIN = "f16"


def format_of(mix: Mix, name: str, layer: int | None, layers: int, columns: int) -> str:
    """The format of a matrix.

    Args:
        name: "head" (also of an embedding that is the head, too), "v", "down", or anything else.
        layer: None outside of layers.
    """
    chosen = mix.base
    if name == "head":
        chosen = mix.head
    elif layer is not None and name in ("v", "down"):
        favoured = layer < max(layers // 8, 1) if mix.first_only else _favoured(layer, layers)
        chosen = mix.more if favoured else mix.base
    for format in (chosen, _SMALLER_BLOCKS.get(chosen, chosen)):
        if columns % FORMATS[format].elements == 0:
            return format
    return _PLAIN


def _favoured(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
