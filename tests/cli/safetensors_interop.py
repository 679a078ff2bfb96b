#!/usr/bin/env python3
"""Holds Tandem's safetensors files against Python's safetensors package.

    safetensors_interop.py check FILE   opens FILE with the package and prints, as JSON lines, its
                                        metadata and then name, dtype, shape and SHA-256 of each
                                        tensor, in order of name
    safetensors_interop.py make FILE    writes FILE with the package: every dtype of numpy,
                                        metadata, a scalar, empty tensors, odd names
    safetensors_interop.py make-odd FILE
                                        writes FILE by hand, the same and a BF16 tensor, in a form
                                        that is legal but that no package writes: data in order
                                        of name, unaligned, and a header without padding

Needs the packages safetensors and numpy. `check` reads the data twice, by the package and by hand
from the offsets in the header, and fails when the two differ.
"""

import hashlib
import json
import struct
import sys

import numpy as np
from safetensors import deserialize, safe_open
from safetensors.numpy import save_file

DTYPES = ["BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "F32", "F64"]
NUMPY = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16,
         "U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16,
         "F32": np.float32, "F64": np.float64}


def read_by_hand(path):
    """The header, and the bytes of each tensor, straight from the file."""
    with open(path, "rb") as file:
        raw = file.read()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", None)
    data = raw[8 + length:]
    tensors = {name: (entry, data[slice(*entry["data_offsets"])])
               for name, entry in header.items()}
    return raw, metadata, tensors


def check(path):
    raw, metadata, by_hand = read_by_hand(path)
    by_package = dict(deserialize(raw))
    with safe_open(path, framework="np") as file:  # memory-mapped
        assert sorted(file.keys()) == sorted(by_hand), "safe_open sees other names"
        assert (file.metadata() or {}) == (metadata or {}), "safe_open sees other metadata"
        for name in file.keys():
            entry, _ = by_hand[name]
            if entry["dtype"] in NUMPY:
                array = file.get_tensor(name)
                assert list(array.shape) == entry["shape"], name
                assert array.tobytes() == bytes(by_package[name]["data"]), name
    assert sorted(by_package) == sorted(by_hand), "deserialize sees other names"
    print(json.dumps({"metadata": metadata or {}}, sort_keys=True))
    for name in sorted(by_hand, key=lambda text: text.encode()):
        entry, data = by_hand[name]
        tensor = by_package[name]
        assert bytes(tensor["data"]) == data, f"{name}: the package reads other bytes"
        assert tensor["shape"] == entry["shape"], name
        print(json.dumps({"name": name, "dtype": entry["dtype"], "shape": entry["shape"],
                          "sha256": hashlib.sha256(data).hexdigest()}))


def make_tensors():
    rng = np.random.default_rng(7)
    tensors = {}
    for name in DTYPES:
        data = rng.integers(0, 2, 15) if name == "BOOL" else rng.integers(0, 100, 15)
        tensors[f"every.{name.lower()}"] = data.astype(NUMPY[name]).reshape(3, 5)
    tensors["scalar"] = np.array(2.5, dtype=np.float32)
    tensors["empty"] = np.zeros((4, 0, 2), dtype=np.int64)
    tensors["empty.too"] = np.zeros((0,), dtype=np.float16)
    tensors["rank8"] = np.arange(2 * 3, dtype=np.float64).reshape(1, 1, 2, 1, 3, 1, 1, 1)
    tensors["odd: \u00e9t\u00e9 \U0001f600 \"quoted\"\\\n"] = np.arange(3, dtype=np.uint8)
    tensors["large"] = rng.standard_normal((300, 500)).astype(np.float32)
    return tensors


METADATA = {"format": "np", "text": "line\nwith \"quotes\" and \u00e9", "empty": ""}


def make(path):
    save_file(make_tensors(), path, METADATA)


def make_odd(path):
    names = {np.dtype(value): key for key, value in NUMPY.items()}
    tensors = {name: (names[array.dtype], array.shape, array.tobytes())
               for name, array in make_tensors().items()}
    tensors["a.bf16"] = ("BF16", (3, 5), bytes(range(30)))
    tensors["a.single.byte"] = ("U8", (1,), b"x")  # so that the next one is unaligned
    header = {}
    data = b""
    for name in sorted(tensors):
        dtype, shape, content = tensors[name]
        header[name] = {"shape": list(shape), "dtype": dtype,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    header["__metadata__"] = METADATA
    text = json.dumps(header).encode()  # with escapes and spaces
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main(arguments):
    commands = {"check": check, "make": make, "make-odd": make_odd}
    if len(arguments) != 2 or arguments[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    commands[arguments[0]](arguments[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
