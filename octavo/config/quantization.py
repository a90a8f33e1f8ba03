"""Decides whether weights are rounded while they load, and what products with rounded weights do with their inputs."""

from octavo.errors import ConfigError, UnsupportedError

_ASKED = "asked for"
FORMAT_OF_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# What most weights are stored as under each scheme; octavo/quantization/quantize.py has the rest.
FORMAT_OF_SCHEME = {"int8": "int8_row_f32_rotated", "int4": "int4s_row_f32_rotated", "fp8": "e4m3_row_f32"}
# Of which weights this does not hold, as a model's headers cannot tell.
EXCEPT_OF_SCHEME = {"int4": "; layers that were rounded to 4 bits before stay on their grid, in q4_1"}
# vLLM's names of quantized checkpoints, and the kind each is; any kernel of its own is not a choice here.
_CHECKPOINTS = {
    "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq",
    "compressed-tensors": "compressed-tensors", "compressed_tensors": "compressed-tensors", "fp8": "fp8",
    "fbgemm_fp8": "fp8", "modelopt": "fp8", "gguf": "gguf", "auto-round": "auto-round", "inc": "auto-round",
}  # fmt: skip
_MISSING = ("bitsandbytes", "torchao", "ptpc_fp8", "mxfp4", "mxfp8", "modelopt_fp4", "experts_int8", "quark", "hqq")


def choose_quantization(asked: str | None, stored: str, method: str = "") -> tuple[str, str]:
    """The scheme that unquantized weights are rounded by, or "none"; and why.

    Args:
        stored: the format that most weights have in the file.
        method: what the checkpoint itself says it is ("gptq", ...), with a description after a colon; "": nothing.

    Raises:
        UnsupportedError: a name of vLLM's that Octavo has nothing for.
        ConfigError: another name, or the file is quantized already.
    """
    quantized = stored not in FORMAT_OF_DTYPE.values() or bool(method)
    kind, _, text = method.partition(": ")
    kind = kind or ("gguf" if quantized else "")
    if asked in (None, "auto", "none") or (quantized and _CHECKPOINTS.get(asked) == kind):
        return ("none", f"the file's {stored}{f' ({text})' if text else ''}" if quantized else "not asked for")
    ours = ", ".join(FORMAT_OF_SCHEME)
    if quantized and (asked in _CHECKPOINTS or asked in FORMAT_OF_SCHEME):
        what = f"the checkpoint is {kind}" if kind != "gguf" else "it is a GGUF file"
        coded = " already" if stored in FORMAT_OF_DTYPE.values() else f", its weights are {stored} already"
        raise ConfigError(
            f"quantization {asked}: {what}{coded}, and rounding it again would only lose; "
            "leave it out, or load the unquantized model"
        )
    if asked == "gguf":
        raise ConfigError(f"quantization gguf: the model is no quantized GGUF file but {stored}; {ours} would round it")
    if asked in _CHECKPOINTS and asked not in FORMAT_OF_SCHEME:
        raise ConfigError(
            f"quantization {asked}: the model's configuration speaks of no quantization, its weights are {stored}; "
            f"leave it out, or let one of {ours} round them"
        )
    if asked in _MISSING:
        raise UnsupportedError(f"quantization {asked} is not supported; {ours} round an unquantized checkpoint")
    if asked not in FORMAT_OF_SCHEME:
        raise ConfigError(f"unknown quantization {asked!r}: there are {ours}")
    return (asked, _ASKED)


def choose_linear_compute(asked: str, weights: str, scheme: str, backend: str) -> tuple[str, str]:
    """Choose "exact", "int16" or "int8": what products with weights of block formats do with their inputs; and why.

    Args:
        weights: the format that most weights of layers have in memory.
        scheme: what they were rounded by while they loaded, or "none".

    Raises:
        UnsupportedError: the backend cannot.
    """
    if backend != "native":
        if asked not in ("auto", "exact"):
            raise UnsupportedError(f"linear_compute {asked} is not supported with the {backend} backend; leave it out")
        return ("exact", f"all that the {backend} backend has")
    if asked != "auto":
        return (asked, _ASKED)
    if weights in FORMAT_OF_DTYPE.values():
        return ("exact", f"weights are {weights}")
    if scheme == "fp8" or weights.startswith("e4m3"):
        return ("exact", "codes that are floats are multiplied as floats")
    if scheme in FORMAT_OF_SCHEME:
        return ("int8", f"weights are rounded to {scheme} for speed, and rounding inputs costs little beside that")
    return ("int16", f"a file in {weights} answers as it was made to, for half of what float32 inputs cost in prompts")
