"""The command `octavo`: finds the subcommand, and turns every error into one line, a hint and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (Ctrl-C), 143 ended by SIGTERM
(`octavo quantize`, which tidies up first).
"""

import difflib
import os
import resource
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

# Name, module, and what it is for. A module is loaded only when its command runs.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("octavo.cli.serve", "answer over HTTP with an OpenAI-compatible API"),
    "chat": ("octavo.cli.chat", "talk to a model in the terminal"),
    "generate": ("octavo.cli.generate", "continue one prompt, from --prompt or standard input"),
    "run-batch": ("octavo.cli.run_batch", "answer a file of requests, without a server"),
    "replay": ("octavo.cli.replay", "give an answer again from its receipt, and tell whether it is the same"),
    "bench": ("octavo.cli.bench", "measure throughput and latency, here or of a running server"),
    "plan": ("octavo.cli.plan", "show what a model takes before it is loaded, what fits, and which flag gives what"),
    "quantize": ("octavo.cli.quantize", "round a model to fewer bits and write a checkpoint; says what that costs"),
    "key": ("octavo.cli.key", "make an API key with limits for a server"),
    "inspect": ("octavo.cli.inspect", "show what a model is and what Octavo would do with it, and why"),
}

_LIMITED = "memory is limited (ulimit -v, ulimit -d): raise the limit"
_NO_THREAD = "can't start new thread"  # CPython's words
# What libraries map before any model is looked at. With less some of them end the process in words of their own.
_LEAST_MIB = 192


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `octavo`; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "--version", "version"):
        from octavo import __version__

        print(f"octavo {__version__}")
        return 0
    if words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        return fail(f"no command '{words[0]}'", f"did you mean '{near[0]}'?" if near else "octavo --help lists them", 2)

    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    small = words[0] == "key" or not {"-h", "--help"}.isdisjoint(words)
    if not small and allowed != resource.RLIM_INFINITY and allowed < _LEAST_MIB << 20:
        return fail(f"{allowed >> 20} MiB of memory are allowed, and libraries alone take {_LEAST_MIB}", _LIMITED, 1)

    def run() -> int:
        command: Callable[[Sequence[str]], int] = import_module(COMMANDS[words[0]][0]).run
        return command(words[1:])

    return guarded(run)  # Ctrl-C while modules load is one, too


def guarded(run: Callable[[], int]) -> int:
    """Call `run`; what it raises on purpose becomes one line and an exit code, never a traceback."""
    from octavo.errors import ConfigError, InternalError, OctavoError, UnsupportedError

    try:
        return run()
    except (ConfigError, UnsupportedError) as error:
        return fail(str(error), "--help lists every option", 2)
    except InternalError as error:
        return fail(f"a bug in Octavo: {error}", "please report it, with the command", 1)
    except OctavoError as error:
        return fail(str(error), None, 1)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, RuntimeError) as error:
        library, words = isinstance(error, ImportError), str(error).strip()
        if not _memory_is_limited() or (not library and words != _NO_THREAD):
            raise
        said = (words or type(error).__name__).splitlines()[-1].strip()
        return fail(f"a library cannot be loaded: {said}" if library else said, _LIMITED, 1)
    except (MemoryError, OSError) as error:
        hint = _LIMITED if isinstance(error, MemoryError) and _memory_is_limited() else None
        return fail(f"{type(error).__name__}: {str(error) or 'there is no more'}", hint, 1)


def _memory_is_limited() -> bool:
    """This process may not have all the memory that there is."""
    return any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )


def fail(message: str, hint: str | None, code: int) -> int:
    """Print an error in one line, further lines indented, and return `code`."""
    first, *rest = message.strip().splitlines() or ["unknown error"]
    print(f"error: {first}", file=sys.stderr)
    for line in rest:
        print(f"  {line}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    return code


def _overview() -> str:
    lines = [f"  octavo {name:9} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(
        [
            "Octavo: LLM inference and serving, small and quick to start.",
            "",
            "commands",
            *lines,
            "",
            "  octavo COMMAND --help   every option of a command",
            "  octavo --version",
            "",
            "examples",
            "  octavo serve                              the demo model on http://127.0.0.1:8000",
            "  octavo serve Qwen/Qwen3-0.6B --port 9000  a model of the hub",
            "  octavo chat ./model.gguf                  a file",
            "  echo 'Once upon a time' | octavo generate --max-tokens 40",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
