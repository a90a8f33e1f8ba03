"""How a family says where its weights are: canonical names on the left, the file's names and transforms on the right.

Canonical names: `embed positions embed_norm project_in final_norm project_out head`; in a layer, `mixer.` (the first
branch) and `mlp.` (the last one) before `norm post_norm after_norm`, and attention's `q k v` (or `qkv`, stacked in this
order) `out q_norm k_norm`, an MLP's `gate up` (or `gate_up`) `down`. A name stands for a module: its matrix or gain
ends with ".weight", its bias with ".bias". Latent attention has `q_down q_norm q kv_down latent_norm kv_up out`. A
gated convolution has `project conv out`, a state space `inner_norm decay skip step_bias` besides; the last three are
vectors of that very name, as are `sinks` and `distances` of attention. What a model needs of the table, its spec says.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """One module of a checkpoint. In `names`, the first that exists is taken; {p} is the file's prefix, {i} the layer.

    transpose: the file has [in, out]. add_one: the gain is stored less one. unpair: rows of each head come in
    consecutive rotary pairs, and are reordered to halves. first_row: rows before it are dropped. negative_exp: what is
    stored is the logarithm of the negative. flat: a matrix is read as a vector, row by row.
    """

    names: tuple[str, ...]
    transpose: bool = False
    add_one: bool = False
    unpair: bool = False
    first_row: int = 0
    negative_exp: bool = False
    flat: bool = False


def at(
    *names: str,
    transpose: bool = False,
    add_one: bool = False,
    unpair: bool = False,
    first_row: int = 0,
    negative_exp: bool = False,
    flat: bool = False,
) -> Source:
    """A Source, shorter to write."""
    return Source(names, transpose, add_one, unpair, first_row, negative_exp, flat)


@dataclass(frozen=True, slots=True)
class WeightTable:
    """All sources of a family in one file layout.

    prefixes: what {p} may be; the first with which an `embed` exists is the file's.
    ignore: shell patterns of tensors that are known and not needed. Any other unused tensor is an error.
    """

    model: Mapping[str, Source]
    layer: Mapping[str, Source]
    prefixes: tuple[str, ...] = ("",)
    ignore: tuple[str, ...] = ()
