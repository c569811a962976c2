#!/usr/bin/env python3
"""A wrapper of nvcc and of fatbinary, for machine code of architectures that only a newer ptxas knows.

nvcc would reject their names. So the wrapper of nvcc leaves them out, and passes them in an environment variable to the
wrapper of fatbinary, which nvcc runs. It has the newer ptxas compile the same PTX for them, with the same options.
cuda12.py copies this file into its toolkit, under both names, so it imports no other one.
"""

import os
import pathlib
import re
import subprocess
import sys

ARCHITECTURES = "100", "120"
VARIABLE = "NEWER_ARCHITECTURES"
PROGRAMS = pathlib.Path(__file__).parent
OWN = PROGRAMS.parent / "own"  # the toolkit's own nvcc and fatbinary
CODE = "|".join(f"sm_{name}" for name in ARCHITECTURES)


def nvcc(arguments: list[str]) -> int:
    command = [str(OWN / "nvcc"), *(re.sub(rf"({CODE}),", "", argument) for argument in arguments)]
    newer = " ".join(re.findall(rf"({CODE}),", " ".join(arguments)))
    status = subprocess.run(command, env=os.environ | {VARIABLE: newer}).returncode
    if "--list-gpu-code" in arguments:
        print(CODE.replace("|", "\n"))
    return status


def fatbinary(arguments: list[str]) -> int:
    """Adds the machine code to the images, if the PTX is one of them. nvcc passes the options of ptxas in --cmdline."""
    newer = os.environ.get(VARIABLE, "").split()
    ptx = [found[1] for word in arguments if (found := re.match("--image3=kind=ptx,sm=80,file=(.+)", word))]
    options = [option for word in arguments if word.startswith("--cmdline=") for option in word[10:].split()]
    images = {code: pathlib.Path(f"{path}.{code}.cubin") for code in newer for path in ptx}
    try:
        for code, image in images.items():
            command = [str(PROGRAMS / "ptxas"), f"-arch={code}", "-m64", *options, *ptx, "-o", str(image)]
            if status := subprocess.run(command).returncode:
                return status
        added = [f"--image3=kind=elf,sm={code[3:]},file={image}" for code, image in images.items()]
        return subprocess.run([str(OWN / "fatbinary"), *arguments, *added]).returncode
    finally:
        for image in images.values():
            image.unlink(missing_ok=True)


if __name__ == "__main__":
    program = {"nvcc": nvcc, "fatbinary": fatbinary}[pathlib.Path(__file__).name]
    sys.exit(program(sys.argv[1:]))
