"""Trains Tandem's models again with PyTorch and compares.

Usage: model_parity.py PROGRAM CASE..., where PROGRAM is built from model_parity.c, which has the cases. Loss,
gradients and running statistics of one step must agree to 1e-5 of a tensor's largest number, with the initial
weights, with those that training starts from (in most models the same) and with the final ones; the losses of
the training run to 1e-4 at every step, and so must the running statistics at its end. Then the program gets the
weights that PyTorch has trained, and its model for inference must give PyTorch's logits. PyTorch also computes
in double precision, which shows which side has the larger rounding error; for slow models only if the comparison
fails. Exits with 77, which means skipped, without PyTorch.
"""
import os
import sys
import tempfile

import exchange
import torch
from torch import nn
from torch.nn import functional
from torch_models import MODELS, Kinks

GRAD_MOST, LOSS_MOST, CURVE_MOST, LOGIT_MOST = 1e-5, 1e-6, 1e-4, 1e-5
SLOW = ("resnet18",)  # in double precision: a minute and more
FLOOR = 1e-4  # what a tensor's largest number counts as at least


def make_model(case, weights, dtype):
    model = MODELS[case["case"]](case).to(dtype)
    state = model.state()
    expected = {name for name in weights if not name.startswith("input.")}
    assert {model.our_name(name) for name in state} == expected, "tensors are not the same"
    with torch.no_grad():
        for name, tensor in state.items():
            ours = model.from_ours(name, weights[model.our_name(name)])
            assert tensor.shape == ours.shape, name
            tensor.copy_(ours)
    return model


def make_optimiser(case, model):
    if case["optimiser"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=case["momentum"],
                               weight_decay=case["weight_decay"])
    assert case["optimiser"] == "adamw"
    return torch.optim.AdamW(model.parameters(), lr=case["lr"], eps=case["eps"],
                             betas=(case["beta1"], case["beta2"]),
                             weight_decay=case["weight_decay"])


def input_of(batch, dtype):
    return batch["x"].to(dtype) if batch["x"].is_floating_point() else batch["x"].long()


def loss_of(model, batch, dtype):
    logits = model(input_of(batch, dtype))
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                    batch["classes"].long().reshape(-1))


def statistics_of(state):
    return {name: tensor for name, tensor in state.items() if ".running_" in name}


def one_step(case, weights, dtype, rectifier=None):
    """Loss and, with Tandem's names and layouts, gradients and statistics of the first batch."""
    model = make_model(case, weights, dtype)
    if rectifier:
        model.rectifier = rectifier
    loss = loss_of(model, case["batches"][0], dtype)
    loss.backward()
    grads = {model.our_name(name): model.to_ours(name, param.grad)
             for name, param in model.named_parameters()}
    return float(loss), apart(grads), statistics_of(model.state())


def worst_tensor(a, b):
    """The largest difference, and its position."""
    assert a.keys() == b.keys(), "tensors are missing"
    return max((exchange.difference(a[name], b[name], FLOOR), name) for name in b)


def one_step_beside(ours, case, weights, dtype, most):
    """one_step() with those undecided numbers of the rectifiers (see Kinks) on the other side that bring the
    gradients to Tandem's, and how many these are. An error in Tandem's numbers is not among them."""
    kinks, turned = Kinks(), []
    loss, grads, statistics = one_step(case, weights, dtype, kinks)

    def total(other):
        return sum(exchange.difference(ours[name], other[name], FLOOR) for name in ours)

    for _, call, place in sorted(kinks.near):
        if worst_tensor(ours, grads)[0] <= most:
            break
        trial = one_step(case, weights, dtype, Kinks(turned + [(call, place)]))[1]
        if total(trial) < 0.9 * total(grads):
            grads = trial
            turned.append((call, place))
    return loss, grads, statistics, len(turned)


def apart(grads):
    """Separates the weights of queries, keys and values: those of the values have much larger gradients. Their
    biases stay together: a bias of the keys does not affect attention, so its gradient is zero except for
    rounding, and its size cannot be used as a scale."""
    parts = {}
    for name, grad in grads.items():
        pieces = grad.chunk(3) if name.endswith("c_attn.weight") else (grad,)
        for piece, label in zip(pieces, (".q", ".k", ".v") if len(pieces) == 3 else ("",)):
            parts[name + label] = piece
    return parts


def train(case, dtype):
    """The losses of the training run, and the trained model."""
    model = make_model(case, case["start"], dtype)
    optimiser = make_optimiser(case, model)
    losses = []
    for step in range(len(case["losses"])):
        optimiser.zero_grad()
        loss = loss_of(model, case["batches"][step % len(case["batches"])], dtype)
        loss.backward()
        if case["clip_norm"] > 0:
            nn.utils.clip_grad_norm_(model.parameters(), case["clip_norm"])
        optimiser.step()
        losses.append(float(loss))
    return losses, model


def report(what, most, ours, theirs, exact, worst_of):
    """Prints one line; returns 1 if the comparison failed. `exact` may be None."""
    worst = worst_of(ours, theirs)
    failed = not worst <= most
    line = "%s %s: differs by %.2g" % ("FAIL" if failed else "ok  ", what, worst)
    if exact is not None:
        line += " (of double precision: ours %.2g, PyTorch's %.2g)" % (
            worst_of(ours, exact), worst_of(theirs, exact))
    print(line, flush=True)
    return int(failed)


def report_tensors(what, most, ours, theirs, exact):
    """Compares tensors by name."""
    what = "%s, worst %s" % (what, worst_tensor(ours, theirs)[1])
    return report(what, most, ours, theirs, exact, lambda a, b: worst_tensor(a, b)[0])


def worst_ratio(a, b):
    """Compares losses, step by step."""
    return max(abs(x / y - 1) for x, y in zip(a, b))


def compare_step(case, when):
    ours = apart({name: grad for name, grad in case[when + "_grads"].items()
                  if ".running_" not in name})
    loss, grads, statistics, turned = one_step_beside(ours, case, case[when], torch.float32, GRAD_MOST)
    exact_loss, exact_grads, exact_statistics, _ = one_step_beside(ours, case, case[when],
                                                                   torch.float64, GRAD_MOST)
    title = "%s, %s weights" % (case["case"], when)
    failures = report(title + ", loss", LOSS_MOST, [case[when + "_loss"]], [loss], [exact_loss],
                      worst_ratio)
    failures += report_tensors("%s, %d gradients (%d numbers turned)" % (title, len(grads), turned),
                               GRAD_MOST, ours, grads, exact_grads)
    if statistics:
        failures += report_tensors("%s, %d statistics" % (title, len(statistics)), GRAD_MOST,
                                   statistics_of(case[when + "_after"]), statistics,
                                   exact_statistics)
    return failures


def compare_training(case):
    """The number of failures, and the model that PyTorch has trained."""
    ours, (theirs, model) = case["losses"], train(case, torch.float32)
    exact, exact_model = None, None
    if case["case"] not in SLOW or worst_ratio(ours, theirs) > CURVE_MOST:
        exact, exact_model = train(case, torch.float64)
    assert len(ours) == 100 and ours[-1] < 0.8 * ours[0], "it must learn something"
    failures = report("%s, %d steps from %.4f to %.4f" % (case["case"], len(ours), ours[0],
                                                          ours[-1]),
                      CURVE_MOST, ours, theirs, exact, worst_ratio)
    statistics = statistics_of(model.state())
    if statistics:
        failures += report_tensors(
            "%s, %d statistics after the training" % (case["case"], len(statistics)), CURVE_MOST,
            statistics_of(case["last"]), statistics,
            statistics_of(exact_model.state()) if exact_model else None)
    return failures, model


def compare_inference(program, case, model):
    """The logits of PyTorch's weights in Tandem and in PyTorch."""
    state = {model.our_name(name): model.to_ours(name, tensor)
             for name, tensor in model.state().items()}
    with tempfile.TemporaryDirectory(prefix="tandem-parity-") as directory:
        path = os.path.join(directory, "weights")
        exchange.write_tensors(path, [state.get(name, first)
                                      for name, first in case["first"].items()])
        ours = exchange.run(program, case["case"], path)[0]["outputs"]
    model.eval()
    with torch.no_grad():
        theirs = {"logits": model(input_of(case["batches"][0], torch.float32))}
        exact = {"logits": model.double()(input_of(case["batches"][0], torch.float64))}
    return report_tensors(case["case"] + ", inference with PyTorch's weights", LOGIT_MOST, ours,
                          theirs, exact)


def compare(program, name):
    case = exchange.run(program, name)[0]
    same = all(bool((case["start"][key] == first).all()) for key, first in case["first"].items())
    failures = sum(compare_step(case, when)
                   for when in (("first", "last") if same else ("first", "start", "last")))
    failed, model = compare_training(case)
    return failures + failed + compare_inference(program, case, model)


def main():
    program, names = sys.argv[1], sys.argv[2:]
    assert names, "usage: model_parity.py PROGRAM CASE..."
    failures = sum(compare(program, name) for name in names)
    print("%d models against PyTorch %s, %d failed" % (len(names), torch.__version__, failures))
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
