"""The Python mirrors of the native structs and enums are what a C compiler makes of the header."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

from octavo.flow.sampler_order import Sampler
from octavo.kernels.cpu.library import declarations
from octavo.kernels.cpu.structs import STRUCTS, ActivationCode, Coding, Format, Opcode

HEADERS = Path(__file__).parents[2] / "native" / "include"
INSTRUCTION = (HEADERS / "octavo" / "instruction.h").read_text()
ABI = (HEADERS / "octavo" / "abi.h").read_text()


def test_structs_have_the_compiler_layout(tmp_path):
    lines = []
    for struct in STRUCTS:
        name = struct.__name__
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));' for field in struct._fields_]
    source = tmp_path / "layout.cpp"
    body = "\n".join(lines)
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "octavo/instruction.h"\nint main() {{\n{body}\n}}\n'
    )
    compiler = next(path for name in ("c++", "g++", "clang++") if (path := shutil.which(name)))
    subprocess.run([compiler, "-I", str(HEADERS), str(source), "-o", str(tmp_path / "layout")], check=True)
    output = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    found = {name: int(value) for name, value in (line.split() for line in output.splitlines())}
    mirrored = {struct.__name__: ctypes.sizeof(struct) for struct in STRUCTS}
    mirrored |= {f"{s.__name__}.{field[0]}": getattr(s, field[0]).offset for s in STRUCTS for field in s._fields_}
    assert mirrored == found


def test_structs_have_all_fields_of_the_header():
    for struct in STRUCTS:
        body = re.search(r"typedef struct \{([^}]*)\} " + struct.__name__ + ";", INSTRUCTION)
        assert body is not None, struct.__name__
        code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
        names = [
            re.sub(r"\[\d+\]", "", part).split()[-1].lstrip("*") for part in re.split(r"[;,]", code) if part.strip()
        ]
        assert names == [field[0] for field in struct._fields_], struct.__name__


def test_enums_have_the_numbers_of_the_header():
    for enum, name, prefix in (
        (Opcode, "OctavoOpcode", ""),
        (Format, "OctavoFormat", ""),
        (ActivationCode, "OctavoActivation", ""),
        (Coding, "OctavoCoding", "CODING_"),
        (Sampler, "OctavoSampler", ""),
    ):
        body = re.search(rf"enum {name} \{{([^}}]*)\}}", INSTRUCTION)
        assert body is not None, name
        members = {key: int(value) for key, value in re.findall(rf"OCTAVO_{prefix}(\w+) = (\d+)", body[1])}
        assert members == {member.name: member.value for member in enum}


def test_every_declaration_of_the_header_is_typed():
    typed = {name for name, _, _ in declarations(ABI)}
    code = re.sub(r"/\*.*?\*/", "", ABI, flags=re.DOTALL)
    assert typed == set(re.findall(r"(octavo_\w+)\(", code))
    assert len(typed) > 10
