"""Reads the output of exchange.h: cases, one JSON object per line, with tensors in a separate file."""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print("SKIPPED: PyTorch is not installed for %s, so NOTHING was compared with it; "
          "'make test-parity' installs it" % sys.executable)
    sys.exit(77)

torch.set_num_threads(1)
DTYPES = {"f32": torch.float32, "i32": torch.int32}


def tensors_of(node, data):
    """The same JSON with tensors instead of their addresses."""
    if isinstance(node, list):
        return [tensors_of(item, data) for item in node]
    if not isinstance(node, dict):
        return node
    if "at" not in node:
        return {key: tensors_of(item, data) for key, item in node.items()}
    count = 1
    for size in node["shape"]:
        count *= size
    flat = torch.frombuffer(data, dtype=DTYPES[node["dtype"]], count=count, offset=node["at"])
    return flat.clone().reshape(node["shape"])


def run(program, *arguments):
    """The cases that `program` prints."""
    with tempfile.TemporaryDirectory(prefix="tandem-parity-") as directory:
        path = os.path.join(directory, "tensors")
        lines = subprocess.run([program, path, *arguments], check=True,
                               stdout=subprocess.PIPE).stdout
        with open(path, "rb") as file:
            data = bytearray(file.read())
    return [tensors_of(json.loads(line), data) for line in lines.decode().splitlines()]


def write_tensors(path, tensors):
    """All of them in sequence, as numbers of four bytes."""
    with open(path, "wb") as file:
        for tensor in tensors:
            file.write(tensor.detach().float().contiguous().numpy().tobytes())


def difference(ours, theirs, floor):
    """The largest difference as a fraction of the tensor's largest number, or of `floor` if that is larger. A
    number that is not finite makes it infinite."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if ours.shape != theirs.shape or not bool(torch.isfinite(ours).all()):
        return float("inf")
    return float((ours - theirs).abs().max() / max(float(theirs.abs().max()), floor))
