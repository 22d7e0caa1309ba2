"""Generates the Python side of the contract twice, under out/contract/.

`current` is the contract as it stands in proto/proto. `newer` is a contract of the future: the
same files with fields, messages and an enum value that the gateway was not built with. Peers that
speak `newer` on both sides show that the gateway passes on what it does not know.
"""

import pathlib
import re
import shutil
import sys

import grpc_tools
from grpc_tools import protoc

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "proto" / "proto"
OUT = HERE / "out" / "contract"

# Added to every message below. 1999 takes a two-byte tag, 536870911 is the largest number there is.
NEW_FIELDS = """
  string newer_text = 1999;
  repeated sint64 newer_numbers = 2000;
  map<string, bytes> newer_map = 2001;
  Newer newer_message = 536870911;
"""
NEW_MESSAGE = """
message Newer {
  fixed64 fixed = 1;
  float number = 2;
  Newer inner = 3;
}
"""
# The relayed messages, and messages nested in them.
EXTENDED = {
    "yuzu/agent/v1/agent.proto": [
        "RegisterRequest", "RegisterResponse", "CommandRequest", "CommandResponse",
        "InventoryReport", "InventoryAck", "AgentInfo",
    ],
    "yuzu/common/v1/common.proto": ["ErrorDetail"],
}


def extend(path: str, text: str) -> str:
    """The text of one .proto file as a later release might write it."""
    for message in EXTENDED.get(path, []):
        text, count = re.subn(
            rf"^message {message} {{$", lambda match: match[0] + NEW_FIELDS, text, flags=re.M
        )
        if count != 1:
            sys.exit(f"generate.py: {path} has {count} messages named {message}")
    if path in EXTENDED:
        text += NEW_MESSAGE
    return re.sub(r"^(\s*)REJECTED = 4;$", r"\1REJECTED = 4;\n\1NEWER = 77;", text, flags=re.M)


def generate(name: str, change) -> None:
    """Writes the .proto files and the generated modules of one contract to out/contract/`name`."""
    target = OUT / name
    files = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.proto"))
    for file in files:
        copy = target / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(change(file, (SOURCE / file).read_text()))
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    status = protoc.main([
        "protoc", f"-I{target}", f"-I{well_known}",
        f"--python_out={target}", f"--grpc_python_out={target}", *files,
    ])
    if status != 0:
        sys.exit(f"generate.py: protoc failed for the contract '{name}'")


shutil.rmtree(OUT, ignore_errors=True)
generate("current", lambda _path, text: text)
generate("newer", extend)
