"""What runs where, and why: the native library of this machine, and the kernel of every weight format."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.structs import format_code
from octavo.ops.weight import PackedWeight

_ISA_REASON = {
    "amx": "the CPU has AMX for bf16 and bytes, and the kernel lets this process use it",
    "avx512": "the CPU has AVX-512 with VNNI, but no AMX that this process may use",
    "avx2_vnni": "the CPU has AVX2 and AVX-VNNI, but no AVX-512 with VNNI",
    "avx2": "the CPU has AVX2 and FMA, but neither AVX-VNNI nor AVX-512 with VNNI",
    "neon_i8mm": "the CPU is a 64-bit ARM with matrix products of bytes (i8mm) and with bf16",
    "neon_dotprod": "the CPU is a 64-bit ARM with dot products of bytes, but without i8mm and bf16",
    "neon": "the CPU is a 64-bit ARM without dot products of bytes",
    "scalar": "the CPU has none of the vector extensions with a build of their own",
}


_DENSE = ("f32", "f16")
_ROUNDED = {"int8": "activations in 8 bits, one scale for 32", "int16": "activations in 16 bits, one scale for 128"}
_WHOLE_ROWS = ("int8_row", "int4s_row")  # multiply inputs in 8 bits that have one scale, too


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """One line of the table: `what` runs as `kernel`, because of `reason`."""

    what: str
    kernel: str
    reason: str


def kernel_choices(
    library: NativeLibrary, weights: Iterable[PackedWeight], forced: bool, compute: str = "exact"
) -> list[KernelChoice]:
    """The library, then each weight format in use with its share of the weights.

    Args:
        forced: the instruction set was asked for by name.
        compute: what products with weights of block formats do with their inputs, as --linear-compute names it.
    """
    reason = "asked for with --isa" if forced else _ISA_REASON.get(library.isa, "it is the best build present")
    choices = [KernelChoice("all ops", f"native {library.isa}", reason)]
    held: Counter[str] = Counter()
    for weight in weights:
        for segment in weight.segments:
            held[segment.format] += segment.rows * weight.shape[1]
    total = sum(held.values())
    for name, elements in held.most_common():
        choices.append(_format_choice(name, elements / total, compute))
        if name == "bf16":
            choices.append(bf16_choice(library))
    return choices


def bf16_choice(library: NativeLibrary) -> KernelChoice:
    """How products of bf16 are made, and the measurement that says so."""
    products = library.bf16_products()
    if products.way == "tiles":
        return KernelChoice("products of bf16", "TDPBF16PS", "32 inputs of 16 rows at a time")
    if products.way == "pairs" and library.isa == "neon_i8mm":
        reason = "they widen as they multiply, with float32's bits; BFDOT and BFMMLA round otherwise"
        return KernelChoice("products of bf16", "BFMLALB and BFMLALT", reason)
    kernel = "VDPBF16PS" if products.way == "pairs" else "widened to float32"
    if not products.pairs:
        return KernelChoice("products of bf16", kernel, "the CPU has no instruction for them")
    bits = "the same bits" if products.same_bits else "other bits"
    rates = f"{products.pairs / 1e9:.0f} GFLOP/s by VDPBF16PS, {products.floats / 1e9:.0f} widened"
    return KernelChoice("products of bf16", kernel, f"one thread probed here: {rates}, with {bits}")


def _format_choice(name: str, share: float, compute: str) -> KernelChoice:
    code = format_code(name)
    kernel = "none" if code is None else f"linear {name}, panels of 16 rows"
    inputs = "activations stay float32"
    if name == "bf16":
        inputs = "activations rounded to bf16"
    elif compute in _ROUNDED and name not in _DENSE and not name.startswith("e4m3"):
        by_token = compute == "int8" and name.startswith(_WHOLE_ROWS)
        inputs = "activations in 8 bits, one scale a token" if by_token else _ROUNDED[compute]
        inputs += ", rotated" if name.endswith("_rotated") else ""
    return KernelChoice(f"weights in {name}", kernel, f"{share:.0%} of the elements are stored so; {inputs}")
