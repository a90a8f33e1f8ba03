"""`python -m octavo.entrypoints.openai.api_server --model ...`: `octavo serve` under vLLM's name."""

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
