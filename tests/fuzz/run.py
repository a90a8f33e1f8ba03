"""Runs fuzzing targets under atheris, each in a process of its own, for a time that is given.

    python -m tests.fuzz.run [--seconds 60] [--corpus DIRECTORY] [TARGET ...]

An input that makes a target fail is left in the corpus directory as TARGET.failed (TARGET.timeout-... and so on where
the fuzzer itself gave up); the exit status is then 1. Atheris is no dependency of anything: `make fuzz` installs it.
"""

import argparse
import subprocess
import sys
from pathlib import Path


def _one(name: str, seconds: int, corpus: Path) -> int:
    """This process becomes the fuzzer; it does not return before the time is over."""
    import atheris  # type: ignore[import-not-found]  # no dependency of the tests

    with atheris.instrument_imports(include=["octavo"]):
        from tests.fuzz.targets import TARGETS

    target, folder = TARGETS[name], corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    words = corpus / f"{name}.words"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in w.encode()) + '"\n' for w in target.words))
    options = [f"-max_total_time={seconds}", "-timeout=25", "-rss_limit_mb=4096", "-print_final_stats=1"]
    options += [f"-dict={words}"] if target.words else []
    options += [f"-artifact_prefix={corpus / name}.", str(folder)]

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except BaseException:
            (corpus / f"{name}.failed").write_bytes(data)
            raise

    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()
    return 0


def main() -> int:
    names = ("answer", "detokenizer", "messages", "gguf", "safetensors", "bodies")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[[], *names], metavar="TARGET", help=", ".join(names))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        return _one(given.targets[0], given.seconds, given.corpus)
    failed: list[str] = []
    for name in given.targets or names:
        print(f"--- {name}, {given.seconds} s", flush=True)
        words = [name, "--here", "--seconds", str(given.seconds), "--corpus", str(given.corpus)]
        if subprocess.run([sys.executable, "-m", "tests.fuzz.run", *words]).returncode:
            failed.append(name)
    print("failed: " + ", ".join(failed) if failed else "nothing found")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
