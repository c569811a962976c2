"""Fuzzes the FFI handlers, starting from corpus.bin, and adds inputs to it that increase coverage.

python -m tests.fuzz cpu --seconds 600

It needs clang++ with libFuzzer (Debian: clang libclang-rt-14-dev). Inputs that fail are written to the corpus' folder.
"""

import argparse
import pathlib
import shutil
import subprocess
import tempfile

from benchmarks.lowering import executed_ptx
from tests.kernels import build

CORPUS = pathlib.Path(__file__).parent / "corpus.bin"


def unpack(folder: pathlib.Path) -> None:
    content, start = CORPUS.read_bytes(), 0
    while start < len(content):
        size = int.from_bytes(content[start : start + 2], "little")
        (folder / f"{start:08}").write_bytes(content[start + 2 : start + 2 + size])
        start += 2 + size


def pack(folder: pathlib.Path) -> None:
    inputs = sorted(path.read_bytes() for path in folder.iterdir())
    CORPUS.write_bytes(b"".join(len(data).to_bytes(2, "little") + data for data in inputs))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", choices=["contract", "cpu_contract", "cpu", "cuda"])
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args()
    if shutil.which(build.COMPILERS["fuzzer"]) is None:
        parser.error(f"{build.COMPILERS['fuzzer']} is not installed")
    if not options.backend.startswith("cpu") and executed_ptx.missing():
        parser.error(executed_ptx.missing())
    program = build.fuzzer(options.backend, "fuzzer")
    with tempfile.TemporaryDirectory() as temporary:
        known, found = (pathlib.Path(temporary) / name for name in ("known", "found"))
        known.mkdir()
        found.mkdir()
        unpack(known)
        limits = ["-max_len=96", "-timeout=60", "-rss_limit_mb=4096"]
        fuzzing = [*limits, f"-artifact_prefix={CORPUS.parent}/", "-print_final_stats=1"]
        subprocess.run([program, *fuzzing, f"-max_total_time={options.seconds}", found, known], check=True)
        subprocess.run([program, *limits, "-merge=1", known, found], check=True)
        pack(known)


if __name__ == "__main__":
    main()
