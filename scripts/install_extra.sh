#!/usr/bin/env bash
# install_extra.sh PYTHON EXTRA: installs what an extra of pyproject.toml lists, without building Octavo again.
set -eu
"$1" - "$2" <<'PYTHON' >build/extra.txt
import sys
from importlib.metadata import requires

extra = sys.argv[1]
for requirement in requires("octavo") or ():
    package, _, marker = requirement.partition(";")
    if f'extra == "{extra}"' in marker.replace("'", '"'):
        print(package.strip())
PYTHON
exec "$1" -m pip install --quiet --disable-pip-version-check -r build/extra.txt
