"""A look-up of the prefix cache as an answer tells it: with the words where a prompt left what is cached."""

from typing import Any

from octavo.flow.cache_report import CacheReport
from octavo.flow.request import GenerationRequest
from octavo.text.tokenizer import Tokenizer

_CONTEXT = 8  # tokens shown before and after the first one that differs


def told(report: CacheReport, request: GenerationRequest, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The report as JSON."""
    shown: dict[str, Any] = {
        "prompt_tokens": report.prompt_tokens,
        "hit_tokens": report.hit_tokens,
        "block_size": report.block_size,
        "hit_blocks": dict(report.tiers),
        "miss": None,
    }
    miss = report.miss
    if miss is None:
        return shown
    shown["miss"] = told_miss = {"cause": miss.cause, "position": miss.position, "tokens": miss.tokens}
    if miss.by or miss.ago:
        told_miss |= {"evicted_for": miss.by, "seconds_ago": round(miss.ago, 3), "unused_seconds": round(miss.idle, 3)}
    if miss.cause in ("new", "diverged") and miss.cached:
        ids = request.prompt_token_ids
        position = miss.position
        told_miss |= {
            "token_id": ids[position] if position < len(ids) else None,
            "cached_token_id": miss.cached[0],
        }
        if tokenizer is not None:
            told_miss |= {
                "text_before": tokenizer.decode(ids[max(0, position - _CONTEXT) : position], skip_special_tokens=False),
                "text": tokenizer.decode(ids[position : position + _CONTEXT], skip_special_tokens=False),
                "cached_text": tokenizer.decode(miss.cached[:_CONTEXT], skip_special_tokens=False),
            }
    return shown
