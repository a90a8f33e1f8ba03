"""Decides whether weights are rounded while they load, and what products with rounded weights do with their inputs."""

from octavo.errors import ConfigError, UnsupportedError

_ASKED = "asked for"
FORMAT_OF_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# What most weights are stored as under each scheme; octavo/quantization/quantize.py has the rest.
FORMAT_OF_SCHEME = {"int8": "q8_0", "int4": "q4_1"}
# vLLM's names of checkpoints' own formats, and of roundings of its own.
_CHECKPOINTS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "bitsandbytes", "torchao", "modelopt")
_FP8 = ("fp8", "fbgemm_fp8", "ptpc_fp8", "mxfp4", "mxfp8")


def choose_quantization(asked: str | None, stored: str) -> tuple[str, str]:
    """The scheme that unquantized weights are rounded by, or "none"; and why.

    Args:
        stored: the format that most weights have in the file.

    Raises:
        UnsupportedError: a name of vLLM's that Octavo has nothing for.
        ConfigError: another name, or the file is quantized already.
    """
    quantized = stored not in FORMAT_OF_DTYPE.values()
    if asked in (None, "auto", "none") or (asked == "gguf" and quantized):
        return ("none", f"the file's {stored}" if quantized else "not asked for")
    ours = " and ".join(FORMAT_OF_SCHEME)
    if asked == "gguf":
        raise ConfigError(f"quantization gguf: the model is no quantized GGUF file but {stored}; {ours} would round it")
    if asked in _CHECKPOINTS:
        raise UnsupportedError(f"quantization {asked} is not supported yet; {ours} round an unquantized checkpoint")
    if asked in _FP8:
        raise UnsupportedError(f"quantization {asked} is not supported; {ours} are, and GGUF files of any type")
    if asked not in FORMAT_OF_SCHEME:
        raise ConfigError(f"unknown quantization {asked!r}: there are {ours}")
    if quantized:
        raise ConfigError(
            f"quantization {asked}: the file's weights are {stored} already, and rounding them again would only lose; "
            "leave it out, or load the unquantized model"
        )
    return (asked, _ASKED)


def choose_linear_compute(asked: str, weights: str, scheme: str, backend: str) -> tuple[str, str]:
    """Choose "exact" or "int8": what products with weights of block formats do with their inputs; and why.

    Args:
        weights: the format that most weights have in memory.
        scheme: what they were rounded by while they loaded, or "none".

    Raises:
        UnsupportedError: the backend cannot.
    """
    if backend != "native":
        if asked == "int8":
            raise UnsupportedError(f"linear_compute int8 is not supported with the {backend} backend; leave it out")
        return ("exact", f"all that the {backend} backend has")
    if asked != "auto":
        return (asked, _ASKED)
    if weights in FORMAT_OF_DTYPE.values():
        return ("exact", f"weights are {weights}")
    if scheme in FORMAT_OF_SCHEME:
        return ("int8", f"weights are rounded to {weights} for speed, and rounding inputs costs little beside that")
    return ("exact", f"a file in {weights} answers as it was made to; int8 is faster in prompts and batches")
