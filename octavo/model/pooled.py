"""Makes a pooled model of a checkpoint: what its answer is, which states are taken, what is computed of them.

In this order: the flags, sentence-transformers' files, the architecture's name, the defaults of vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from octavo.config.pooling import PoolingWish
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.model.checkpoint.mapped import MappedFile
from octavo.model.families.encoder import architecture_of, gguf_head
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import WeightTable, at
from octavo.model.late_files import read_sides
from octavo.model.sentence_files import SentenceFiles, read_sentence_files
from octavo.model.token_classifier import CLASSIFIER, answer_tokens, classifier_rows
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import DecoderSpec, DenseSpec
from octavo.spec.pooling import PoolerSpec, PoolingKind, PoolingType, Squashing

_CLASSIFIERS: tuple[tuple[str, PoolingKind], ...] = (
    ("ForSequenceClassification", "classify"),
    ("ForTokenClassification", "token_classify"),
    ("ForRewardModel", "token_classify"),
    ("ForProcessRewardModel", "token_classify"),
)
_CONVERTED: dict[str, PoolingKind] = {"embed": "embed", "classify": "classify", "reward": "token_classify"}
_SQUASHED_BY: dict[str, Squashing] = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}
_CLASSIFIER_NAMES = ("score", "score.0", "classifier")
_MOST_LABELS = 1 << 20
_COLBERT = "HF_ColBERT"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory that is being opened. `family`: the module that has read the spec; encoders' have `read_head`."""

    directory: Path
    config: Mapping[str, Any]
    spec: DecoderSpec
    table: WeightTable
    family: object
    tensors: Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class PooledModel:
    """What a checkpoint becomes. `files`, `tensors`: what lies beside the model and belongs to it, too."""

    spec: DecoderSpec
    table: WeightTable
    pooler: PoolerSpec
    files: tuple[MappedFile, ...] = ()
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict[str, StoredTensor])


def is_pooled(config: Mapping[str, Any], spec: DecoderSpec, directory: Path, wish: PoolingWish) -> bool:
    """Whether a model is pooled, or else generates.

    Raises:
        UnsupportedError: it is to generate, and cannot.
    """
    name = architecture_of(config)
    other_head = any(name.endswith(end) for end, _ in _CLASSIFIERS)
    if wish.runner == "generate":
        if spec.head is None or other_head:
            raise UnsupportedError(f"{name} does not generate text; leave out --runner generate (--task generate)")
        return False
    if wish.runner == "pooling" or wish.convert in _CONVERTED or spec.head is None or other_head:
        return True
    bare = name.endswith("Model") and not name.endswith("LMHeadModel")  # as GPT-2 calls the one that generates
    return bare or (directory / "modules.json").is_file()


def pooled_model(opened: Checkpoint, wish: PoolingWish) -> PooledModel:
    """The model without its own head, with what pooling needs in its place.

    Raises:
        CheckpointError, ConfigError, UnsupportedError: a setting or file is wrong, or asks for what Octavo lacks.
    """
    config, table = opened.config, opened.table
    encoder = opened.spec.head is None
    kind = _kind_of(config, wish)
    sentence = read_sentence_files(opened.directory)
    spec, labels, tensors = replace(opened.spec, head=None), tuple[str, ...](), sentence.tensors
    ignored = [*table.ignore] if encoder else [*table.ignore, *(f"{name}.*" for name in table.model["head"].names)]
    late = kind == "embed" and _is_late(opened, sentence)
    if kind == "embed":
        head, names = _projections(opened, sentence)
        ignored += [f"{name}.*" for name in _classifier_names(table)]
    elif answer_tokens(config):
        rows = _answers(opened)
        labels, tensors = _labels_of_tokens(config, rows.shape[0]), {**tensors, f"{CLASSIFIER}.weight": rows}
        head, names = (DenseSpec("score", rows.shape[0], bias=False),), {"pooler.score": at(CLASSIFIER)}
    else:
        _require_classifier(opened)
        labels = _labels(config)
        head, names = _classifier(opened, len(labels))
    spec = replace(spec, pooled_head=head)
    table = replace(table, model={**table.model, **names}, ignore=tuple(ignored))
    pooler = _pooler(config, spec, kind, labels, encoder, sentence, wish)
    if late:
        asked = wish.config.use_activation if wish.config.normalize is None else wish.config.normalize
        sides = read_sides(opened.directory, own=not sentence.present)
        pooler = replace(pooler, late=True, normalize=asked is not False, sides=sides)
    return PooledModel(spec, table, pooler, sentence.files, tensors)


def _is_late(opened: Checkpoint, sentence: SentenceFiles) -> bool:
    """Whether texts are compared token by token (Khattab and Zaharia 2020, arXiv:2004.12832): ColBERT's own files, or
    sentence-transformers' with a layer for every token and no pooling, as PyLate writes them."""
    unpooled = sentence.present and sentence.how is None and bool(sentence.dense)
    return unpooled or architecture_of(opened.config) == _COLBERT


def _projections(opened: Checkpoint, sentence: SentenceFiles) -> tuple[tuple[DenseSpec, ...], dict[str, Any]]:
    """What makes vectors of states, and where its weights are.

    Raises:
        CheckpointError: a ColBERT without its layer.
    """
    if sentence.dense or architecture_of(opened.config) != _COLBERT:
        return sentence.dense, {f"pooler.{dense.name}": at(f"{dense.name}.linear") for dense in sentence.dense}
    weight = opened.tensors.get("linear.weight")
    if weight is None or len(weight.shape) != 2:
        raise CheckpointError(f"{opened.directory} has no matrix linear.weight, which makes a ColBERT's vectors")
    layer = DenseSpec("linear", weight.shape[0], bias="linear.bias" in opened.tensors)
    return (layer,), {"pooler.linear": at("linear")}


def pooled_gguf(opened: Checkpoint, metadata: Mapping[str, Any], wish: PoolingWish) -> PooledModel | None:
    """The model of a GGUF file, if it is pooled: an encoder, or when flags or its own pooling type say so.

    Raises:
        ConfigError, UnsupportedError: a setting is wrong, or asks for what Octavo lacks.
    """
    kinds: dict[object, PoolingType] = {1: "mean", 2: "cls", 3: "last"}  # llama.cpp's numbers
    number = metadata.get(f"{metadata.get('general.architecture')}.pooling_type", 0)
    encoder = opened.spec.head is None
    if wish.runner == "generate" and encoder:
        raise UnsupportedError(f"{opened.directory} does not generate text; leave out --runner generate (--task)")
    asked = encoder or wish.runner == "pooling" or wish.convert in _CONVERTED
    if wish.runner == "generate" or not (asked or number in kinds):
        return None
    classes = encoder and "cls.output.weight" in opened.tensors and wish.convert != "embed"
    if wish.convert not in ("auto", "none", "embed") and not classes:
        raise UnsupportedError("this GGUF file has no classifier: it can be made an embedding model (--convert embed)")
    sentence = SentenceFiles(how=kinds.get(number))
    spec, table, labels = replace(opened.spec, head=None), opened.table, tuple[str, ...]()
    unused = ["cls.*", "cls.output.*"] if encoder and not classes else []
    if classes:
        labels = _labels(opened.config)
        spec = replace(spec, pooled_head=gguf_head(spec, opened.tensors, len(labels)))
    elif not encoder:
        unused = [f"{name}.*" for name in table.model["head"].names]
    kind: PoolingKind = "classify" if classes else "embed"
    pooler = _pooler(opened.config, spec, kind, labels, encoder, sentence, wish)
    return PooledModel(spec, replace(table, ignore=(*table.ignore, *unused)), pooler)


def _kind_of(config: Mapping[str, Any], wish: PoolingWish) -> PoolingKind:
    name = architecture_of(config)
    named: list[PoolingKind] = [kind for end, kind in _CLASSIFIERS if name.endswith(end)]
    usual = named[0] if named else "embed"
    asked: PoolingKind = _CONVERTED.get(wish.convert, usual)
    # A classifier of tokens is one, whatever it is called.
    return usual if asked == "classify" and usual != "embed" else asked


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the classes: two without names where the file is silent, as transformers has it."""
    given: object = config.get("id2label")
    if isinstance(given, dict) and given:
        names = cast(dict[Any, Any], given)
        by_number = {int(number): str(name) for number, name in names.items() if str(number).isdigit()}
        if sorted(by_number) != list(range(len(names))):
            raise CheckpointError("config: id2label does not name the classes 0, 1, 2, ...")
        return tuple(by_number[number] for number in range(len(by_number)))
    count = ConfigReader(config).size("num_labels", 2, most=_MOST_LABELS)
    return tuple(f"LABEL_{number}" for number in range(count))


def _classifier_names(table: WeightTable) -> tuple[str, ...]:
    """Where a checkpoint may have a classifier."""
    own = [name for key, source in table.model.items() if key.startswith("pooler.") for name in source.names]
    return (*own, *_CLASSIFIER_NAMES)


def _require_classifier(opened: Checkpoint) -> None:
    """Raises:
    ConfigError: a model without classes is to have some.
    """
    names = _classifier_names(opened.table)
    if not any(tensor.rpartition(".")[0] in names for tensor in opened.tensors):
        raise ConfigError(
            f"{opened.directory} has no classifier ({', '.join(_CLASSIFIER_NAMES)}): leave out --convert classify and "
            "reward (--task), or name tokens whose logits are the classes: "
            '--hf-overrides \'{"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}\''
        )


def _answers(opened: Checkpoint) -> StoredTensor:
    """The rows of a decoder's head that are its classes.

    Raises:
        UnsupportedError: it has no head.
    """
    heads = (*opened.table.model["head"].names, *opened.table.model["embed"].names) if opened.spec.head else ()
    for name in heads:
        for prefix in opened.table.prefixes:
            tensor = opened.tensors.get(f"{name.format(p=prefix)}.weight")
            if tensor is not None:
                return classifier_rows(opened.config, tensor, opened.directory)
    raise UnsupportedError(f"classifier_from_token: {architecture_of(opened.config)} predicts no tokens")


def _labels_of_tokens(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """The tokens; of two that make one class, the second."""
    return answer_tokens(config)[-count:]


def _classifier(opened: Checkpoint, labels: int) -> tuple[tuple[DenseSpec, ...], dict[str, Any]]:
    """The head's layers, and where their weights are if the family does not know."""
    config, spec = opened.config, opened.spec
    read_head = getattr(opened.family, "read_head", None)
    if read_head is not None:
        return read_head(config, spec, labels), {}
    if "score.0.weight" in opened.tensors:  # two layers, as Qwen2ForRewardModel and Qwen2ForProcessRewardModel have
        layers = DenseSpec("first", spec.hidden, activation="relu"), DenseSpec("score", labels)
        return layers, {"pooler.first": at("score.0"), "pooler.score": at("score.2")}
    biased = architecture_of(config).endswith("ForTokenClassification")
    return (DenseSpec("score", labels, bias=biased),), {"pooler.score": at("score", "classifier")}


def _pooler(
    config: Mapping[str, Any],
    spec: DecoderSpec,
    kind: PoolingKind,
    labels: tuple[str, ...],
    encoder: bool,
    sentence: SentenceFiles,
    wish: PoolingWish,
) -> PoolerSpec:
    asked = wish.config
    of_text, of_tokens = cast("PoolingType | None", asked.of_text), cast("PoolingType | None", asked.of_tokens)
    if kind == "token_classify" and of_text and not of_tokens:
        kind = "classify"  # one state stands for the text then
    if kind == "classify" and of_tokens and not of_text:
        kind = "token_classify"
    how = (of_tokens if kind == "token_classify" else of_text) or _usual(config, kind, encoder, sentence)
    if of_tokens == "step" and kind != "token_classify":
        raise ConfigError("pooler_config: pooling type STEP is for models with classes of every token")
    if how == "step" and asked.step_tag_id is None:
        raise ConfigError("pooler_config: pooling type STEP needs step_tag_id, the token that marks a step")
    classes, scores = _squashing(config, len(labels))
    if asked.squashes is not None:
        classes = classes if asked.squashes else "none"
        scores = scores if asked.squashes else "none"
    normalizes = asked.use_activation if asked.normalize is None else asked.normalize
    if normalizes is None:
        normalizes = sentence.normalize or not sentence.present
    return PoolerSpec(
        kind=kind,
        how=how,
        width=spec.pooled_width,
        normalize=normalizes,
        squashing=classes,
        score_squashing=scores,
        matryoshka=_matryoshka(config, spec, wish),
        dimensions=asked.dimensions,
        labels=labels,
        max_length=sentence.max_length,
        token_types=spec.embedding.token_types or 0,
        prompts=dict(sentence.prompts),
        default_prompt=sentence.default_prompt,
        lowercase=sentence.lowercase,
        joined=not ConfigReader(config).flag("use_sep_token", not answer_tokens(config)),
        step_tag=asked.step_tag_id,
        returned=tuple(asked.returned_token_ids or ()),
    )


def _usual(config: Mapping[str, Any], kind: PoolingKind, encoder: bool, sentence: SentenceFiles) -> PoolingType:
    if kind == "token_classify":
        return "all"
    if kind == "embed" and sentence.how is not None:
        return sentence.how
    if kind == "classify" and ConfigReader(config).text("classifier_pooling", "cls") == "mean":
        return "mean"
    return "cls" if encoder else "last"


def _squashing(config: Mapping[str, Any], labels: int) -> tuple[Squashing, Squashing]:
    """Of classes, and of a cross-encoder's number: by the problem's type, and by what sentence-transformers noted."""
    by_count: Squashing = "sigmoid" if labels < 2 else "softmax"
    by_type: dict[object, Squashing] = {"regression": "none", "multi_label_classification": "sigmoid"}
    classes = by_type.get(config.get("problem_type"), by_count)
    noted: object = config.get("sbert_ce_default_activation_function")
    section: object = config.get("sentence_transformers")
    if isinstance(section, dict):
        noted = cast(dict[str, Any], section).get("activation_fn", noted)
    if noted is None:
        return classes, by_count
    name = str(noted).rpartition(".")[2]
    if name not in _SQUASHED_BY:
        raise UnsupportedError(f"config: scores pass {str(noted)[:128]!r}; there are {', '.join(_SQUASHED_BY)}")
    return classes, _SQUASHED_BY[name]


def _matryoshka(config: Mapping[str, Any], spec: DecoderSpec, wish: PoolingWish) -> tuple[int, ...] | None:
    """Lengths that vectors may be cut to (Kusupati et al. 2022, arXiv:2205.13147)."""
    read = ConfigReader(config)
    lengths = wish.config.matryoshka_dimensions or read.indices("matryoshka_dimensions")
    if lengths:
        wrong = [length for length in lengths if not 1 <= length <= spec.pooled_width]
        if wrong:
            raise ConfigError(f"matryoshka_dimensions has {wrong[0]}; this model's vectors have {spec.pooled_width}")
        return tuple(sorted(set(lengths)))
    given = wish.config.is_matryoshka
    return None if (read.flag("is_matryoshka", False) if given is None else given) else ()
