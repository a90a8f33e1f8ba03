"""Reads the files that sentence-transformers puts beside a model: which states are pooled, what follows, prompts.

Source: sentence-transformers' documentation of modules.json, and the files of sentence-transformers/all-MiniLM-L6-v2,
google/embeddinggemma-300m and Qwen/Qwen3-Embedding-0.6B.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.checkpoint.mapped import MappedFile
from octavo.model.checkpoint.safetensors import read_safetensors
from octavo.model.families.reader import ConfigReader
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import DenseSpec
from octavo.spec.pooling import PoolingType
from octavo.text.json_files import read_json, read_json_if_present

_MODES: dict[str, PoolingType] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_OTHER_MODES = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_MODE_NAMES: dict[str, PoolingType] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_MODEL_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
_MOST_BYTES = 1 << 20  # of modules.json; a list, so not read as the other files


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """What the files say. `present`: there is a modules.json. `tensors`: weights of dense layers, by prefixed name."""

    present: bool = False
    how: PoolingType | None = None
    normalize: bool = False
    dense: tuple[DenseSpec, ...] = ()
    files: tuple[MappedFile, ...] = ()
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict[str, StoredTensor])
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    default_prompt: str | None = None


def read_sentence_files(directory: Path) -> SentenceFiles:
    """Everything that is there; nothing of it has to be.

    Raises:
        CheckpointError: a file is damaged.
        UnsupportedError: a module or a setting that Octavo does not have.
    """
    length, lowercase = _read_limits(directory)
    prompts, default = _read_prompts(directory)
    modules = _read_modules(directory)
    if modules is None:
        return SentenceFiles(max_length=length, lowercase=lowercase, prompts=prompts, default_prompt=default)
    how: PoolingType | None = None
    normalize = False
    dense: list[DenseSpec] = []
    files: list[MappedFile] = []
    tensors: dict[str, StoredTensor] = {}
    for kind, path in modules:
        if kind == "Pooling":
            how = _read_pooling(directory / path)
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense":
            file = MappedFile(_weights_of(directory / path))
            found = {f"{path}.{name}": tensor for name, tensor in read_safetensors(file).items()}
            dense.append(_read_dense(directory / path, path, found))
            files.append(file)
            tensors |= found
        elif kind not in ("Transformer", "Dropout"):
            raise UnsupportedError(f"{directory / 'modules.json'} has a module {kind!r}; it is not supported")
    return SentenceFiles(True, how, normalize, tuple(dense), tuple(files), tensors, length, lowercase, prompts, default)


def _read_modules(directory: Path) -> list[tuple[str, str]] | None:
    """Kind and directory of each module in order; None without a modules.json."""
    import json

    path = directory / "modules.json"
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CheckpointError(f"{path} is larger than {_MOST_BYTES} bytes")
        listed = cast(object, json.loads(path.read_text("utf-8")))
        entries = [cast(dict[str, Any], entry) for entry in cast(list[Any], listed)]
        ordered = sorted(entries, key=lambda entry: int(entry.get("idx", 0)))
        found = [(str(entry["type"]).rpartition(".")[2], str(entry.get("path", ""))) for entry in ordered]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no list of modules ({type(error).__name__}: {error})") from None
    for kind, place in found:
        if place and (Path(place).is_absolute() or ".." in Path(place).parts):
            raise CheckpointError(f"{path}: module {kind} lies outside the model's directory: {place[:128]}")
    return found


def _read_pooling(directory: Path) -> PoolingType:
    config = read_json(directory / "config.json")
    read = ConfigReader(config)
    if isinstance(config.get("pooling_mode"), str):  # the newer spelling
        name = read.text("pooling_mode", "")
        if name not in _MODE_NAMES:
            raise UnsupportedError(f"{directory}: pooling_mode {name!r}; there are {', '.join(_MODE_NAMES)}")
        return _MODE_NAMES[name]
    for name in _OTHER_MODES:
        if read.flag(name, False):
            raise UnsupportedError(f"{directory}: {name} is not supported; there are {', '.join(_MODES)}")
    chosen: list[PoolingType] = [mode for name, mode in _MODES.items() if read.flag(name, False)]
    if len(chosen) != 1:
        raise UnsupportedError(f"{directory}: {len(chosen)} pooling modes are on; exactly one is supported")
    return chosen[0]


def _read_dense(directory: Path, path: str, tensors: Mapping[str, StoredTensor]) -> DenseSpec:
    read = ConfigReader(read_json(directory / "config.json"))
    activation = read.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if activation not in ("Tanh", "Identity", "ReLU", "GELU", "SiLU"):
        raise UnsupportedError(f"{directory}: activation {activation!r} is not supported")
    names = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
    kind = names.get(activation)
    return DenseSpec(
        path,
        read.size("out_features"),
        bias=f"{path}.linear.bias" in tensors,
        activation=None if kind is None else read.activation("_", kind),
        tanh=activation == "Tanh",
    )


def _weights_of(directory: Path) -> Path:
    path = directory / "model.safetensors"
    if path.is_file():
        return path
    raise UnsupportedError(
        f"{path} does not exist; weights in other formats (pytorch_model.bin) are not read: save them as safetensors"
    )


def _read_limits(directory: Path) -> tuple[int | None, bool]:
    """Most tokens of a text, and whether texts are made lower case."""
    for kind in _MODEL_KINDS:
        config = read_json_if_present(directory / f"sentence_{kind}_config.json")
        if config:
            read = ConfigReader(config)
            return read.optional_size("max_seq_length"), read.flag("do_lower_case", False)
    return None, False


def _read_prompts(directory: Path) -> tuple[dict[str, str], str | None]:
    path = directory / "config_sentence_transformers.json"
    config = read_json_if_present(path)
    given: object = config.get("prompts") or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"{path}: prompts is no object of texts")
    prompts = {str(name): str(text) for name, text in cast(dict[Any, Any], given).items() if text is not None}
    default: object = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{path}: default_prompt_name {default!r} is none of its prompts")
    return prompts, None if default is None else str(default)
