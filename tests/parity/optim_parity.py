"""Compares Tandem's optimisers and schedules with PyTorch's.

Usage: optim_parity.py PROGRAM, where PROGRAM prints Tandem's results (optim_parity.c). PyTorch computes every
case with the same gradients, and the results are compared step by step; an average of the weights is compared
with torch.optim.swa_utils.AveragedModel. Exits with 77, which means skipped, without PyTorch.
"""
import json
import math
import subprocess
import sys

import exchange  # noqa: F401  comes first: it ends the test without PyTorch
import torch
from torch.optim import lr_scheduler, swa_utils


def make_optimiser(case, tensors):
    """PyTorch's optimiser for a case; None if PyTorch has none with that name."""
    groups = [{"params": [tensors["a"]]}, {"params": [tensors["b"]]}]
    if case["groups"]:
        groups[1].update(lr=case["lr"] * 0.25, weight_decay=0)
    common = {"lr": case["lr"], "weight_decay": case["weight_decay"]}
    betas = (case["beta1"], case["beta2"])
    kind = case["optimiser"]
    if kind == "sgd":
        return torch.optim.SGD(groups, momentum=case["momentum"], nesterov=case["nesterov"], **common)
    if kind == "adagrad":
        return torch.optim.Adagrad(groups, eps=case["eps"], **common)
    if kind == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=case["alpha"], eps=case["eps"],
                                   momentum=case["momentum"], centered=case["centred"], **common)
    if kind == "adam":
        return torch.optim.Adam(groups, betas=betas, eps=case["eps"], **common)
    if kind == "adamw":
        return torch.optim.AdamW(groups, betas=betas, eps=case["eps"], **common)
    return None


def make_average(case, tensors):
    """The object that computes the average of the parameters, initialised with the first; None without an
    average."""
    decay = case["ema"]
    if decay == 0:
        return None
    average = swa_utils.AveragedModel(
        torch.nn.ParameterDict(tensors),
        avg_fn=lambda shadow, param, _: decay * shadow + (1 - decay) * param)
    average.update_parameters(torch.nn.ParameterDict(tensors))
    return average


def difference(case, ours, theirs):
    """The largest difference, relative to the number or to a step."""
    theirs = theirs.detach().double()
    scale = torch.clamp(theirs.abs(), min=case["lr"])
    return float(((torch.tensor(ours, dtype=torch.float64) - theirs).abs() / scale).max())


def compare_optimiser(case):
    tensors = {name: torch.nn.Parameter(torch.tensor(values, dtype=torch.float32))
               for name, values in case["first"].items()}
    optimiser = make_optimiser(case, tensors)
    average = make_average(case, tensors)
    worst = 0.0
    for step in case["steps"]:
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(step["grads"][name], dtype=torch.float32)
        if case["clip_value"] > 0:
            torch.nn.utils.clip_grad_value_(tensors.values(), case["clip_value"])
        if case["clip_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(tensors.values(), case["clip_norm"])
        optimiser.step()
        for name, tensor in tensors.items():
            worst = max(worst, difference(case, step["params"][name], tensor))
        if average:
            average.update_parameters(torch.nn.ParameterDict(tensors))
            for name, tensor in average.module.items():
                worst = max(worst, difference(case, step["ema"][name], tensor))
    return worst


def make_schedule(case, optimiser):
    """PyTorch's schedule without warm-up; None where it has none."""
    kind = case["schedule"]
    steps = case["steps"] - case["warmup"]
    if kind == "constant":
        return lr_scheduler.LambdaLR(optimiser, lambda step: 1.0)
    if kind == "step":
        return lr_scheduler.StepLR(optimiser, case["every_steps"], case["gamma"])
    if kind == "multi_step":
        return lr_scheduler.MultiStepLR(optimiser, case["milestones"], case["gamma"])
    if kind == "exponential":
        return lr_scheduler.ExponentialLR(optimiser, case["gamma"])
    if kind == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimiser, steps, case["floor"])
    if kind == "linear":
        return lr_scheduler.LinearLR(optimiser, 1.0, case["floor"] / case["lr"], steps)
    if kind == "one_cycle":
        return lr_scheduler.OneCycleLR(
            optimiser, case["lr"], total_steps=steps, pct_start=case["peak_at"],
            anneal_strategy=case["anneal"], cycle_momentum=False,
            div_factor=case["start_divisor"], final_div_factor=case["end_divisor"])
    if kind == "inverse_sqrt":  # PyTorch has none of that name, but the formula
        first = max(case["warmup"], 1)

        def factor(step):
            return max(math.sqrt(first / (step + case["warmup"] + 1)), case["floor"] / case["lr"])
        return lr_scheduler.LambdaLR(optimiser, factor)
    if kind == "reduce_on_plateau":
        return lr_scheduler.ReduceLROnPlateau(
            optimiser, factor=case["gamma"], patience=case["patience"],
            threshold=case["threshold"], cooldown=case["cooldown"], min_lr=case["floor"])
    return None


def pytorch_rates(case):
    """PyTorch's learning rates for the steps after a warm-up."""
    tensor = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([tensor], lr=case["lr"])
    schedule = make_schedule(case, optimiser)
    count = case["steps"] - case["warmup"]
    rates = []
    for step in range(count):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if step + 1 == count:
            break
        if case["schedule"] == "reduce_on_plateau":
            schedule.step(case["evaluations"][step + case["warmup"]])
        else:
            schedule.step()
    return rates


def pytorch_warm_up(case, top):
    """LinearLR over a warm-up that ends at `top`."""
    tensor = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([tensor], lr=top)
    schedule = lr_scheduler.LinearLR(optimiser, 1.0 / case["warmup"], 1.0, case["warmup"] - 1)
    rates = []
    for _ in range(case["warmup"]):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return rates


def compare_schedule(case):
    """The largest difference, relative to the highest rate."""
    theirs = pytorch_rates(case)
    if case["warmup"] > 0:
        top = case["lr"] if case["schedule"] == "inverse_sqrt" else theirs[0]
        theirs = pytorch_warm_up(case, top) + theirs
    assert len(theirs) == len(case["rates"])
    return max(abs(a - b) for a, b in zip(case["rates"], theirs)) / case["lr"]


def main():
    lines = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout
    failures = 0
    counts = {"optimiser": 0, "schedule": 0}
    for line in lines.splitlines():
        case = json.loads(line)
        what = "optimiser" if "optimiser" in case else "schedule"
        if what == "optimiser":
            worst, most = compare_optimiser(case), 2e-5
        else:
            worst, most = compare_schedule(case), 1e-9
        counts[what] += 1
        ok = worst <= most
        failures += not ok
        settings = {key: case[key] for key in ("clip_norm", "clip_value", "ema", "groups")
                    if case.get(key)}
        print("%s %s %s: differs by %.2g" % ("ok  " if ok else "FAIL", case[what], settings or "",
                                             worst))
    print("%d optimisers and %d schedules against PyTorch %s, %d failed"
          % (counts["optimiser"], counts["schedule"], torch.__version__, failures))
    if counts["optimiser"] < 16 or counts["schedule"] < 26:
        print("FAIL: cases are missing")
        failures += 1
    sys.exit(failures > 0)


main()
