"""Lets these tests use the vocabularies of tests/text."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "text"))
