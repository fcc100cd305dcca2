"""Generate the Python stubs of the wire contract beside the .proto files, or check that they are up to date.

python protos/generate.py            write them
python protos/generate.py --check    exit with 1 if what is there differs from what would be written
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parent


def compile_protos(source: Path, files: list[Path], generators: list[str], target: Path) -> None:
    """Run the protocol compiler with some of its generators over some .proto files of a folder."""
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={source}"),
            *(f"--plugin=protoc-gen-{name}={scripts / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")),
            *(f"--{name}_out={'quiet:' if 'mypy' in name else ''}{target}" for name in generators),
            *map(str, files),
        ]
    )
    if done.returncode:
        sys.exit("the .proto files do not compile; no stub was written")


def fresh_stubs(source: Path) -> dict[Path, bytes]:
    """What the stubs of a folder should be, by path relative to it."""
    files = sorted(source.rglob("*.proto"))
    services = [file for file in files if re.search(r"^service ", file.read_text(), re.MULTILINE)]
    with tempfile.TemporaryDirectory() as folder:
        compile_protos(source, files, ["python", "mypy"], Path(folder))
        compile_protos(source, services, ["grpc_python", "mypy_grpc"], Path(folder))
        return present_stubs(Path(folder))


def present_stubs(folder: Path) -> dict[Path, bytes]:
    """The stubs that are in a folder, by path relative to it."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*_pb2*.py*") if path.suffix != ".pyc"}


def main() -> None:
    """Write or check the stubs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the stubs are stale")
    parser.add_argument("--protos", type=Path, default=PROTOS, help="the contract's folder (default: this file's)")
    arguments = parser.parse_args()

    folder: Path = arguments.protos.resolve()
    fresh, present = fresh_stubs(folder), present_stubs(folder)
    stale = sorted(path for path in fresh.keys() | present.keys() if fresh.get(path) != present.get(path))

    if arguments.check and stale:
        sys.exit(f"stale stubs: {', '.join(map(str, stale))}; run `make protos` and commit what it writes")
    for path in stale:
        if path in fresh:
            (folder / path).write_bytes(fresh[path])
            print(f"wrote {path}")
        else:
            (folder / path).unlink()
            print(f"removed {path}")


if __name__ == "__main__":
    main()
