"""Computes Tandem's single ops again with PyTorch, forward and backward, and compares.

Usage: op_parity.py PROGRAM, where PROGRAM is built from op_parity.c. Outputs and gradients must agree to 1e-5 of
a tensor's largest number. Images are [B, H, W, C] in Tandem and [B, C, H, W] in PyTorch. Exits with 77, which
means skipped, without PyTorch.
"""
import collections
import math
import sys

import exchange
import torch
from torch.nn import functional

MOST, FLOOR = 1e-5, 1e-3
CASES = {"relu": 1, "gelu": 1, "gelu_tanh": 1, "silu": 1, "tanh": 1, "sigmoid": 1, "softmax": 1,
         "matmul": 14, "linear": 1, "add": 3, "mul": 3, "scale": 1, "sum": 5, "mean": 4,
         "transpose": 4, "concat": 3, "slice": 3, "split": 3, "layer_norm": 2, "rms_norm": 2,
         "batch_norm": 2, "batch_norm_fixed": 2, "attention": 4, "conv2d": 6, "conv1d": 6,
         "max_pool": 3, "average_pool": 3, "global_pool": 1, "embedding": 1, "cross_entropy": 4,
         "mse": 1, "l1": 1, "huber": 1, "bce": 1, "kl": 1, "penalty": 2}


def channels_first(x):
    return x.movedim(-1, 1)


def channels_last(x):
    return x.movedim(1, -1)


def gelu_tanh(x):
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS = (lambda x: x, functional.relu, functional.gelu, gelu_tanh, functional.silu,
               torch.tanh, torch.sigmoid)


def matmul(case, p, _):
    a, b = (p[name].transpose(-2, -1) if turned else p[name]
            for name, turned in zip(("x", "w"), case["trans"]))
    return ACTIVATIONS[case["activation"]](a @ b + p.get("bias", 0))


def linear(case, p, _):
    return functional.gelu(functional.linear(p["x"], p["w"], p["bias"]))


def reduced(function):
    def op(case, p, _):
        return function(p["x"]) if case["axis"] < 0 else function(p["x"], dim=case["axis"])
    return op


def cut(case, p, _):
    return p["x"].narrow(case["axis"], case["begin"], case["end"] - case["begin"])


def split(case, p, _):
    first, second, third = p["x"].chunk(3, dim=case["axis"])
    return first + 2 * second + 3 * third


def rms_norm(case, p, _):
    """An implementation of the op, which PyTorch does not have."""
    mean_square = (p["x"] * p["x"]).mean(dim=-1, keepdim=True)
    return p["x"] * torch.rsqrt(mean_square + case["eps"]) * p["gamma"]


def convolution(function):
    def op(case, p, _):
        return channels_last(function(
            channels_first(p["x"]), channels_first(p["w"]), p["bias"], case["stride"],
            case["padding"], case["dilation"], case["groups"]))
    return op


def max_pool(case, p, _):
    return channels_last(functional.max_pool2d(
        channels_first(p["x"]), case["kernel"], case["stride"], case["padding"]))


def average_pool(case, p, _):
    return channels_last(functional.avg_pool2d(
        channels_first(p["x"]), case["kernel"], case["stride"], case["padding"],
        count_include_pad=False))


def layer_norm(case, p, _):
    return functional.layer_norm(p["x"], p["gamma"].shape, p["gamma"], p["beta"], case["eps"])


def batch_norm(case, p, _):
    """Changes the running statistics in place."""
    return channels_last(functional.batch_norm(
        channels_first(p["x"]), p["running_mean"], p["running_var"], p["gamma"], p["beta"],
        training=True, momentum=case["momentum"]))


def batch_norm_fixed(case, p, _):
    return channels_last(functional.batch_norm(
        channels_first(p["x"]), p["fixed_mean"], p["fixed_var"], p["gamma"], p["beta"],
        training=False, eps=case["eps"]))


def attention(case, p, inputs):
    B, T, C = p["x"].shape[0], p["x"].shape[1], p["x"].shape[2] // 3
    q, k, v = (part.reshape(B, T, case["heads"], -1).transpose(1, 2)
               for part in p["x"].split(C, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(C // case["heads"])
    hidden = torch.zeros(B, 1, T, T, dtype=torch.bool)
    if case["causal"]:
        hidden = hidden | torch.ones(T, T, dtype=torch.bool).triu(1)
    if case["lengths"]:
        hidden = hidden | (torch.arange(T) >= inputs["lengths"].reshape(B, 1, 1, 1))
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=3)
    return (weights @ v).transpose(1, 2).reshape(B, T, C)


def cross_entropy(case, p, inputs):
    return case["scale"] * functional.cross_entropy(
        p["x"], inputs["classes"].long(), ignore_index=case["ignore"], reduction="sum",
        label_smoothing=case["label_smoothing"])


def penalty(case, p, _):
    return case["scale"] * (p["x"].abs() ** case["power"]).sum()


def summed(loss):
    def op(case, p, inputs):
        more = {"delta": case["delta"]} if loss is functional.huber_loss else {}
        return case["scale"] * loss(p["x"], inputs["target"], reduction="sum", **more)
    return op


OPS = {
    "relu": lambda case, p, _: functional.relu(p["x"]),
    "gelu": lambda case, p, _: functional.gelu(p["x"]),
    "gelu_tanh": lambda case, p, _: gelu_tanh(p["x"]),
    "silu": lambda case, p, _: functional.silu(p["x"]),
    "tanh": lambda case, p, _: torch.tanh(p["x"]),
    "sigmoid": lambda case, p, _: torch.sigmoid(p["x"]),
    "softmax": lambda case, p, _: torch.softmax(p["x"], dim=-1),
    "matmul": matmul, "linear": linear,
    "add": lambda case, p, _: p["x"] + p["w"],
    "mul": lambda case, p, _: p["x"] * p["w"],
    "scale": lambda case, p, _: p["x"] * case["factor"],
    "sum": reduced(torch.sum), "mean": reduced(torch.mean),
    "transpose": lambda case, p, _: p["x"].permute(case["perm"]),
    "concat": lambda case, p, _: torch.cat([p["x"], p["x1"], p["x2"]], dim=case["axis"]),
    "slice": cut, "split": split,
    "embedding": lambda case, p, inputs: functional.embedding(inputs["ids"].long(), p["x"]),
    "layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm,
    "batch_norm_fixed": batch_norm_fixed, "attention": attention,
    "conv2d": convolution(functional.conv2d), "conv1d": convolution(functional.conv1d),
    "max_pool": max_pool, "average_pool": average_pool,
    "global_pool": lambda case, p, _: p["x"].mean(dim=(1, 2)),
    "cross_entropy": cross_entropy, "penalty": penalty,
    "mse": summed(functional.mse_loss), "l1": summed(functional.l1_loss),
    "huber": summed(functional.huber_loss),
    "bce": summed(functional.binary_cross_entropy_with_logits), "kl": summed(functional.kl_div),
}


def compare_run(case, run):
    """The largest difference and its position."""
    first = {name: tensor.clone() for name, tensor in run["params"].items()}
    params = {name: tensor.requires_grad_(not name.startswith(("running_", "fixed_")))
              for name, tensor in run["params"].items()}
    out = OPS[case["op"]](case, params, run["inputs"])
    loss = (out * run["inputs"]["r"]).sum() if "r" in run["inputs"] else out
    loss.backward()
    pairs = {"output": (run["out"]["out"], out)}
    for name, param in params.items():
        if name.startswith("fixed_"):
            continue
        ours, theirs = run["grads"][name], param.grad
        if name.startswith("running_"):  # the rule of tdm_graph_statistic, with what was observed
            ours = (1 - case["momentum"]) * first[name] + case["momentum"] * ours
            theirs = param
        pairs[name] = (ours, theirs)
    return max((exchange.difference(ours, theirs, FLOOR), name)
               for name, (ours, theirs) in pairs.items())


def main():
    counts, failures = collections.Counter(), 0
    for case in exchange.run(sys.argv[1]):
        counts[case["op"]] += 1
        for run in case["runs"]:
            worst, where = compare_run(case, run)
            failures += not worst <= MOST
            settings = {key: value for key, value in case.items() if key not in ("op", "runs")}
            print("%s %s %s (%s kernels): differs by %.2g, worst %s"
                  % ("ok  " if worst <= MOST else "FAIL", case["op"], settings or "",
                     run["backend"], worst, where))
    if counts != collections.Counter(CASES):
        print("FAIL: cases are missing")
        failures += 1
    print("%d cases of %d ops against PyTorch %s, %d failed"
          % (sum(counts.values()), len(counts), torch.__version__, failures))
    sys.exit(failures > 0)


main()
