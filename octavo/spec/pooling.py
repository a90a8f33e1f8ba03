"""What a model's hidden states are read as when no token is drawn, unless a request wants it otherwise."""

from dataclasses import dataclass, field
from typing import Literal

# Which hidden states stand for a text: the first or last token's, their mean, or every one. "step": every one that
# stands at a marking token, as reward models of reasoning steps are read.
PoolingType = Literal["cls", "last", "mean", "all", "step"]
# What is done with the numbers of a classifier.
Squashing = Literal["none", "sigmoid", "softmax"]
# What the answer is: a vector for a text, or numbers of classes, for a text or for each of its tokens.
PoolingKind = Literal["embed", "classify", "token_classify"]


@dataclass(frozen=True, slots=True)
class SideSpec:
    """How a query or a document of late interaction is read.

    Attributes:
        mark: token behind the first one; "": none.
        length: most tokens, special ones and the mark included; longer texts are cut.
        filled: shorter ones are filled up to that with mask tokens, which are read as any others.
    """

    mark: str
    length: int
    filled: bool = False


@dataclass(frozen=True, slots=True)
class SidesSpec:
    """Both sides, and the tokens of documents that get no vector."""

    query: SideSpec
    document: SideSpec
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolerSpec:
    """How hidden states become an answer.

    Attributes:
        kind: what the answer is.
        how: which states are taken.
        width: numbers of an answer.
        normalize: vectors get the length 1.
        squashing: of classes. score_squashing: of the one number of a cross-encoder.
        matryoshka: lengths that vectors may be cut to; None: any; (): none, the model was not trained for that.
        dimensions: the length they are cut to where a request does not say; None: their own.
        labels: names of the classes.
        max_length: tokens of a text that the model is made for; None: as many as it has positions.
        token_types: kinds of tokens that the model tells apart.
        prompts: texts that go before a text, by name; `default_prompt` names the one where none is asked for.
        lowercase: texts are made lower case first.
        joined: the two texts of a pair are read as one, the second right behind the first.
        late: texts are compared token by token (late interaction), so every token has its vector.
        sides: what `late` models put into queries and documents; None: nothing.
        step_tag, returned: for "step": the marking token; and the classes that are returned, () for all.
    """

    kind: PoolingKind
    how: PoolingType
    width: int
    normalize: bool = True
    squashing: Squashing = "softmax"
    score_squashing: Squashing = "sigmoid"
    matryoshka: tuple[int, ...] | None = ()
    dimensions: int | None = None
    labels: tuple[str, ...] = ()
    max_length: int | None = None
    token_types: int = 0
    prompts: dict[str, str] = field(default_factory=dict[str, str])
    default_prompt: str | None = None
    lowercase: bool = False
    joined: bool = False
    late: bool = False
    sides: SidesSpec | None = None
    step_tag: int | None = None
    returned: tuple[int, ...] = ()
