"""Bodies of the pooled routes: OpenAI's embeddings, vLLM's pooling, classes and scores, Jina's and Cohere's ranks."""

from typing import Any, Literal

import msgspec

from octavo.serving.openai.schema import JsonObject

Encoding = Literal["float", "base64", "bytes", "bytes_only"]
ElementType = Literal["float32", "float16", "bfloat16"]
Endianness = Literal["native", "big", "little"]


class PooledFields(msgspec.Struct, kw_only=True):
    """What all of them have in common. None always means "not given"."""

    model: str | None = None
    user: str | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    softmax: bool | None = None
    activation: bool | None = None
    timeout: float | None = None
    # Refused unless neutral; see `job.py`.
    mm_processor_kwargs: Any = None
    chat_template: str | None = None


class InputFields(PooledFields, kw_only=True):
    """Texts, token ids, or a conversation that becomes one text."""

    input: Any = None
    messages: list[JsonObject] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    tools: list[JsonObject] | None = None


class EncodedFields(InputFields, kw_only=True):
    """How numbers are written."""

    encoding_format: Encoding | None = None
    embed_dtype: ElementType | None = None
    endianness: Endianness | None = None
    dimensions: int | None = None
    prompt_name: str | None = None


class EmbeddingRequest(EncodedFields, kw_only=True):
    """POST /v1/embeddings."""


class CohereEmbedRequest(PooledFields, kw_only=True):
    """POST /v2/embed."""

    input_type: str | None = None
    texts: Any = None
    inputs: Any = None
    images: list[Any] | None = None
    embedding_types: list[str] | None = None
    output_dimension: int | None = None
    max_tokens: int | None = None
    truncate: str | None = None


class PoolingRequest(EncodedFields, kw_only=True):
    """POST /pooling."""

    task: str | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None


class ClassifyRequest(InputFields, kw_only=True):
    """POST /classify."""


class PairFields(PooledFields, kw_only=True):
    """How long each text of a pair may be, in tokens; 0: as long as it is."""

    max_tokens_per_query: int | None = None
    max_tokens_per_doc: int | None = None


class ScoreRequest(PairFields, kw_only=True):
    """POST /score: two texts or lists of them, under any of vLLM's names."""

    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None


class RerankRequest(PairFields, kw_only=True):
    """POST /rerank, as Jina's v1 and Cohere's v2 have it."""

    query: Any = None
    documents: Any = None
    top_n: int | None = None
    return_documents: bool | None = None
