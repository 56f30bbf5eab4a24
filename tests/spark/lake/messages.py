"""Protobuf as an application has it: classes that protoc generates from a .proto file, and its descriptor set."""

import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

from grpc_tools import protoc

OLD = """
syntax = "proto3";
package sensors;
import "google/protobuf/timestamp.proto";

enum Unit { UNKNOWN = 0; CELSIUS = 1; }

message Point { int32 x = 1; int32 y = 2; }

message Reading {
  double temp = 1;
  Unit unit = 2;
  optional string note = 3;
  int64 serial_number = 4;
  uint64 big = 5;
  repeated Point path = 6;
  map<string, float> limits = 7;
  map<int32, bool> flags = 8;
  bytes raw = 9;
  google.protobuf.Timestamp at = 10;
  Point place = 11;
  uint32 small = 12;
  repeated string tags = 13;
}

message Tree { Tree left = 1; }
"""
NEW = OLD.replace("int64 serial_number = 4;", "reserved 4;").replace(
    "repeated string tags = 13;", "repeated string tags = 13; optional int32 battery = 14;"
)
"""One field removed, and one added."""


class Compiled(NamedTuple):
    """What protoc made of a file."""

    module: Any
    descriptor: Path


def describe(folder: Path, text: str, name: str, *options: str) -> Path:
    """Run protoc, and return the descriptor set that it makes."""
    source, made = folder / f"{name}.proto", folder / f"{name}.desc"
    source.write_text(text)
    include = str(Path(protoc.__file__).parent / "_proto")
    asked = ["protoc", f"-I{folder}", f"-I{include}", f"--descriptor_set_out={made}", *options, str(source)]
    assert protoc.main(asked) == 0
    return made


def compile_proto(folder: Path, text: str, name: str) -> Compiled:
    """Run protoc, and import the classes that it generates."""
    made = describe(folder, text, name, "--include_imports", f"--python_out={folder}")
    spec = importlib.util.spec_from_file_location(f"made_{name}", folder / f"{name}_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return Compiled(module, made)
