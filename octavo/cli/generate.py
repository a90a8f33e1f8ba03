"""`octavo generate`: continues one prompt and streams the answer to standard output."""

import sys
import time
from collections.abc import Sequence

from octavo.cli.options import add_sampling_flags, command_parser, read_config, sampling_values
from octavo.errors import InvalidRequestError

_DEFAULT_TOKENS = 256


def run(arguments: Sequence[str]) -> int:
    """Generate; figures go to standard error with --stats."""
    parser = command_parser("generate", "Continue a prompt; without --prompt it is read from standard input.")
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    parser.add_argument("--chat", action="store_true", help="treat the prompt as a user's message")
    parser.add_argument("--system", metavar="TEXT", help="system message, with --chat")
    parser.add_argument("--stats", action="store_true", help="print times and rates when done")
    add_sampling_flags(parser)
    parsed = parser.parse_args(arguments)
    config = read_config(parsed)
    prompt = parsed.prompt if parsed.prompt is not None else _read_prompt()

    from octavo.api.offline import OfflineEngine  # after the flags are known to be right

    began = time.perf_counter()
    engine = OfflineEngine(config)
    try:
        if parsed.chat:
            system = [{"role": "system", "content": parsed.system}] if parsed.system else []
            prompt = engine.inputs.render([*system, {"role": "user", "content": prompt}])
        params = engine.inputs.default_params(**{"max_tokens": _DEFAULT_TOKENS, **sampling_values(parsed)})
        request = engine.prepare(prompt, params, add_special_tokens=not parsed.chat)
        first, count = 0.0, 0
        for deltas in engine.stream([request]):
            first = first or time.perf_counter()
            for delta in deltas:
                count += len(delta.token_ids)
                print(delta.text, end="", flush=True)
        print()
        if parsed.stats:
            _print_stats(len(request.prompt_token_ids), count, first - began, time.perf_counter() - first)
    finally:
        engine.close()
    return 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        print("prompt (end with Ctrl-D):", file=sys.stderr)
    text = sys.stdin.read().strip("\n")
    if not text:
        raise InvalidRequestError("there is no prompt: give --prompt TEXT or pipe one in (a word alone is the model)")
    return text


def _print_stats(prompt: int, generated: int, to_first: float, after_first: float) -> None:
    rate = f", {(generated - 1) / after_first:.1f} tokens/s" if generated > 1 and after_first > 0 else ""
    print(
        f"{prompt} prompt tokens, {generated} generated; {to_first:.2f} s from start to first token{rate}",
        file=sys.stderr,
    )
