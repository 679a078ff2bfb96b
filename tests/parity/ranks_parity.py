"""Trains with `tandem train -n N` and again with PyTorch in a single process, and compares.

Usage: ranks_parity.py TANDEM CASE.... Each case has data that both use in the same order; the initial weights
are Tandem's. The batch is cut into four lanes. With every number of ranks the losses of 100 steps must agree
with PyTorch's to 1e-4 at every step, and so must the running statistics of a batch norm over the whole batch at
the end. Exits with 77, which means skipped, without PyTorch.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

import exchange  # noqa: F401 (which ends the program with a message if PyTorch is missing)
import model_parity
import torch
from torch import nn
from torch_models import MODELS, ImageModel

STEPS, BATCHES, LIMIT_S = 100, 5, 300
RANKS = (2, 3)


class Normed(ImageModel):
    """conv, batch norm, relu, pool; the same without a pool; the mean over the image; a linear layer."""

    NAMES = {"conv1": "0.conv", "norm1": "1.batch_norm", "conv2": "4.conv", "norm2": "5.batch_norm"}

    def __init__(self, case):
        super().__init__(case)
        self.conv1, self.norm1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, case["classes"])

    def our_name(self, name):
        first, rest = name.split(".", 1)
        return "%s.%s" % (self.NAMES.get(first, first), rest)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(self.images(x))))
        x = torch.relu(self.norm2(self.conv2(nn.functional.max_pool2d(x, 2))))
        return self.head(x.mean(dim=(2, 3)))


MODELS["normed"] = Normed

CASES = {
    "mlp relu": dict(
        job="model: {kind: mlp, hidden: [32, 24], activation: relu, dropout: 0}",
        optim=dict(kind="adamw", lr=0.003, weight_decay=0.1),
        features=13, classes=7, batch=16),
    "gpt": dict(
        job="model: {kind: gpt, layers: 2, width: 32, heads: 4, context: 16, dropout: 0}",
        optim=dict(kind="adamw", lr=0.003, beta2=0.99, weight_decay=0.1, clip_norm=1.0),
        context=16, heads=4, layers=2, batch=8),
    "normed": dict(
        job="layers: [conv: {channels: 8, bias: no}, batch_norm, relu, max_pool: 2,\n"
            "  conv: {channels: 16, bias: no}, batch_norm, relu, global_pool]",
        optim=dict(kind="sgd", lr=0.05, momentum=0.9, weight_decay=0.0005),
        features=64, image=[8, 8, 1], classes=4, batch=12, sync=True),
}
OPTIM = dict(kind="adamw", lr=0.001, momentum=0.0, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0,
             clip_norm=0.0)


def write_rows(case, directory):
    """Normal features and uniform classes as CSV, with enough digits to read each number back exactly."""
    generator = torch.Generator().manual_seed(11)
    rows = BATCHES * case["batch"]
    x = torch.randn(rows, case["features"], generator=generator)
    classes = torch.randint(case["classes"], (rows,), generator=generator)
    classes[:case["classes"]] = torch.arange(case["classes"])  # every one of them is there
    with open(os.path.join(directory, "data"), "w") as out:
        for row, label in zip(x.tolist(), classes.tolist()):
            out.write("".join("%.9g," % number for number in row) + "%d\n" % label)
    size = case["batch"]
    return [dict(x=x[i:i + size], classes=classes[i:i + size]) for i in range(0, rows, size)]


def write_text(case, directory):
    """Characters; a sample is a window, and its classes are the following characters."""
    length, size = case["context"], case["batch"]
    rows = BATCHES * size
    text = "".join("the quick brown fox jumps over a lazy dog"[7 * i * i % 41] for i in range(rows + length))
    with open(os.path.join(directory, "data"), "w") as out:
        out.write(text)
    tokens = torch.tensor([sorted(set(text)).index(c) for c in text], dtype=torch.int32)
    windows = tokens.unfold(0, length + 1, 1)
    return [dict(x=windows[i:i + size, :-1], classes=windows[i:i + size, 1:])
            for i in range(0, rows, size)]


def write_job(case, optim, directory):
    words = ", ".join("%s: %s" % (key, value if isinstance(value, str) else "%.17g" % value)
                      for key, value in optim.items())
    image = "" if "image" not in case else ", shape: [%d, %d]" % tuple(case["image"][:2])
    with open(os.path.join(directory, "job.yaml"), "w") as out:
        out.write("name: parity\nseed: 5\n%s\noptim: {%s}\n" % (case["job"], words))
        out.write("data: {train: data, shuffle: false%s%s}\n" % (
            "" if "context" in case else ", normalise: none", image))
        out.write("train: {batch: %d, steps: %d}\nrun: {log_every_steps: 1}\n" % (case["batch"], STEPS))
        out.write("parallel: {lanes: 4, sync_batchnorm: %s}\n" % str(case.get("sync", False)).lower())


def tandem(program, directory, ranks, *sets):
    """The output of a training run."""
    command = [program, "train", "job.yaml", "-q", "--json", "-n", str(ranks)]
    for word in sets:
        command += ["--set", word]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    return json.loads(done.stdout.decode().splitlines()[-1])


def model_of(directory, result):
    """The tensors of the model in a checkpoint."""
    with open(os.path.join(directory, result["checkpoint"]), "rb") as file:
        data = bytearray(file.read())
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__" or name.startswith(("optim.", "ema.", "input.")):
            continue
        assert entry["dtype"] == "F32", name
        first, end = entry["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.float32, offset=8 + length + first,
                                count=(end - first) // 4)
        tensors[name] = flat.clone().reshape(entry["shape"])
    return tensors


def losses_of(directory, result):
    with open(os.path.join(directory, result["run"], "metrics.jsonl")) as lines:
        return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def compare(program, name):
    given = CASES[name]
    optim = {**OPTIM, **given["optim"]}
    case = dict(case=name, heads=given.get("heads"), layers=given.get("layers"), image=given.get("image"),
                classes=given.get("classes"), optimiser=optim["kind"], **optim)
    failures = 0
    with tempfile.TemporaryDirectory(prefix="tandem-parity-") as directory:
        case["batches"] = (write_text if "context" in given else write_rows)(given, directory)
        write_job(given, given["optim"], directory)
        # The first weights: a step that is too short to change them. (It changes statistics.)
        first = model_of(directory, tandem(program, directory, 1, "optim.lr=1e-30", "train.steps=1"))
        for key, tensor in first.items():
            if ".running_" in key:
                tensor.fill_(float(key.endswith("_var")))
        case["first"] = case["start"] = first
        case["losses"] = [0.0] * STEPS
        theirs, model = model_parity.train(case, torch.float32)
        for ranks in RANKS:
            result = tandem(program, directory, ranks)
            ours = losses_of(directory, result)
            assert len(ours) == STEPS and ours[-1] < 0.8 * ours[0], "it must learn something"
            title = "%s on %d ranks" % (name, ranks)
            failures += model_parity.report("%s, %d steps from %.4f to %.4f" % (
                title, STEPS, ours[0], ours[-1]), model_parity.CURVE_MOST, ours, theirs, None,
                model_parity.worst_ratio)
            statistics = model_parity.statistics_of(model_of(directory, result))
            if statistics:
                expected = {model.our_name(key): tensor
                            for key, tensor in model_parity.statistics_of(model.state()).items()}
                failures += model_parity.report_tensors(title + ", statistics", model_parity.CURVE_MOST,
                                                        statistics, expected, None)
    return failures


def main():
    program, names = os.path.abspath(sys.argv[1]), sys.argv[2:]
    assert names, "usage: ranks_parity.py TANDEM CASE..."
    failures = sum(compare(program, name) for name in names)
    print("%d models on %d numbers of ranks against PyTorch %s, %d failed" % (
        len(names), len(RANKS), torch.__version__, failures))
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
