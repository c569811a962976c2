"""Fuzzes the FFI handlers, from corpus.bin on, and adds to it what reaches more.

python -m tests.fuzz cpu --seconds 600

It needs clang++ with libFuzzer (Debian: clang libclang-rt-14-dev). What breaks is written beside the corpus.
"""

import argparse
import pathlib
import shutil
import subprocess
import tempfile

from tests.kernels import build

CORPUS = pathlib.Path(__file__).parent / "corpus.bin"


def unpack(folder: pathlib.Path) -> None:
    content, at = CORPUS.read_bytes(), 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 2], "little")
        (folder / f"{at:08}").write_bytes(content[at + 2 : at + 2 + size])
        at += 2 + size


def pack(folder: pathlib.Path) -> None:
    inputs = sorted(path.read_bytes() for path in folder.iterdir())
    CORPUS.write_bytes(b"".join(len(one).to_bytes(2, "little") + one for one in inputs))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", choices=["contract", "cpu", "cuda"])
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args()
    if shutil.which(build.COMPILERS["fuzzer"]) is None:
        parser.error(f"{build.COMPILERS['fuzzer']} is not installed")
    program = build.fuzzer(options.backend, "fuzzer")
    with tempfile.TemporaryDirectory() as temporary:
        known, found = (pathlib.Path(temporary) / name for name in ("known", "found"))
        known.mkdir()
        found.mkdir()
        unpack(known)
        limits = ["-max_len=96", "-timeout=60", "-rss_limit_mb=4096"]
        here = [*limits, f"-artifact_prefix={CORPUS.parent}/", "-print_final_stats=1"]
        subprocess.run([program, *here, f"-max_total_time={options.seconds}", found, known], check=True)
        subprocess.run([program, *limits, "-merge=1", known, found], check=True)
        pack(known)


if __name__ == "__main__":
    main()
