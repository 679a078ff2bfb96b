"""Trains Tandem's models again with PyTorch and compares.

Usage: model_parity.py PROGRAM, where PROGRAM is made from model_parity.c. Loss and gradients of one
step must agree to 1e-5 of a tensor's largest gradient, before and after training, and the losses
of the training to 1e-4 at every step. PyTorch does all of it in double precision as well, which
tells whose rounding a difference is. Ends with 77, which means skipped, without PyTorch.
"""
import sys

import exchange
import torch
from torch import nn
from torch.nn import functional

GRAD_MOST, LOSS_MOST, CURVE_MOST = 1e-5, 1e-6, 1e-4
GRAD_FLOOR = 1e-4  # what a tensor's largest gradient counts as at least


class Mlp(nn.Module):
    """Layers fc1, fc2, ...; names are ours."""

    def __init__(self, case):
        super().__init__()
        self.activation = functional.relu if case["case"] == "mlp relu" else functional.gelu
        self.count = sum(name.endswith(".weight") for name in case["first"])
        for i in range(1, self.count + 1):
            outs, ins = case["first"]["fc%d.weight" % i].shape
            self.add_module("fc%d" % i, nn.Linear(ins, outs))

    def forward(self, x):
        for i in range(1, self.count + 1):
            x = getattr(self, "fc%d" % i)(x)
            x = self.activation(x) if i < self.count else x
        return x


class Gpt(nn.Module):
    """GPT-2 from PyTorch's own transformer layers."""

    def __init__(self, case):
        super().__init__()
        (vocabulary, width), context = (case["first"]["wte.weight"].shape,
                                        case["first"]["wpe.weight"].shape[0])
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(nn.TransformerEncoderLayer(
            width, case["heads"], 4 * width, dropout=0.0, batch_first=True, norm_first=True,
            activation=lambda x: functional.gelu(x, approximate="tanh"))
            for _ in range(case["layers"]))
        self.ln_f = nn.LayerNorm(width)
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x, src_mask=self.mask)
        return self.ln_f(x) @ self.wte.weight.t()


# What PyTorch's transformer layer calls the parts of a block of GPT-2.
NAMES = {"norm1.": "ln_1.", "self_attn.in_proj_": "attn.c_attn.", "self_attn.out_proj.":
         "attn.c_proj.", "norm2.": "ln_2.", "linear1.": "mlp.c_fc.", "linear2.": "mlp.c_proj."}


def our_name(name):
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def make_model(case, weights, dtype):
    model = (Gpt if case["case"] == "gpt" else Mlp)(case).to(dtype)
    params = dict(model.named_parameters())
    trained = {name for name in weights if not name.startswith("input.")}
    assert {our_name(name) for name in params} == trained, "parameters are not the same"
    with torch.no_grad():
        for name, param in params.items():
            ours = weights[our_name(name)]
            assert param.shape == ours.shape, name
            param.copy_(ours)
    return model


def loss_of(model, batch, dtype):
    x = batch["x"].to(dtype) if batch["x"].is_floating_point() else batch["x"].long()
    logits = model(x)
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                    batch["classes"].long().reshape(-1))


def gradients(case, weights, dtype):
    """Loss and gradients of the first batch."""
    model = make_model(case, weights, dtype)
    loss = loss_of(model, case["batches"][0], dtype)
    loss.backward()
    return float(loss), apart({our_name(n): p.grad for n, p in model.named_parameters()})


def apart(grads):
    """Takes the weights of queries, keys and values apart: those of the values have much larger
    gradients. Not so their biases: attention takes no notice of a bias of the keys, so its gradient
    is zero but for rounding, and has no size of its own to measure by."""
    parts = {}
    for name, grad in grads.items():
        pieces = grad.chunk(3) if name.endswith("c_attn.weight") else (grad,)
        for piece, label in zip(pieces, (".q", ".k", ".v") if len(pieces) == 3 else ("",)):
            parts[name + label] = piece
    return parts


def curve(case, dtype):
    """The losses of the training."""
    model = make_model(case, case["first"], dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=case["lr"], eps=case["eps"],
                                  betas=(case["beta1"], case["beta2"]),
                                  weight_decay=case["weight_decay"])
    losses = []
    for step in range(len(case["losses"])):
        optimiser.zero_grad()
        loss = loss_of(model, case["batches"][step % len(case["batches"])], dtype)
        loss.backward()
        if case["clip_norm"] > 0:
            nn.utils.clip_grad_norm_(model.parameters(), case["clip_norm"])
        optimiser.step()
        losses.append(float(loss))
    return losses


def report(what, worst, most, ours_exact, theirs_exact):
    """Prints one line; 1 when it failed."""
    failed = not worst <= most
    print("%s %s: differs by %.2g (of double precision: ours %.2g, PyTorch's %.2g)"
          % ("FAIL" if failed else "ok  ", what, worst, ours_exact, theirs_exact))
    return int(failed)


def compare_step(case, when):
    theirs_loss, theirs = gradients(case, case[when], torch.float32)
    exact_loss, exact = gradients(case, case[when], torch.float64)
    ours_loss, ours = case[when + "_loss"], apart(case[when + "_grads"])
    assert ours.keys() == theirs.keys(), "gradients are missing"

    def worst_of(a, b):
        return max((exchange.difference(a[name], b[name], GRAD_FLOOR), name) for name in b)

    worst, name = worst_of(ours, theirs)
    title = "%s, %s weights" % (case["case"], when)
    return report("%s, %d gradients, worst %s" % (title, len(theirs), name), worst, GRAD_MOST,
                  worst_of(ours, exact)[0], worst_of(theirs, exact)[0]) + report(
        title + ", loss", abs(ours_loss / theirs_loss - 1), LOSS_MOST,
        abs(ours_loss / exact_loss - 1), abs(theirs_loss / exact_loss - 1))


def compare_curve(case):
    ours, theirs, exact = case["losses"], curve(case, torch.float32), curve(case, torch.float64)

    def worst_of(a, b):
        return max(abs(x / y - 1) for x, y in zip(a, b))

    assert len(ours) == 100 and ours[-1] < 0.8 * ours[0], "it must learn something"
    return report("%s, %d steps from %.4f to %.4f" % (case["case"], len(ours), ours[0], ours[-1]),
                  worst_of(ours, theirs), CURVE_MOST, worst_of(ours, exact),
                  worst_of(theirs, exact))


def main():
    cases = exchange.run(sys.argv[1])
    failures = sum(compare_step(case, "first") + compare_step(case, "last") + compare_curve(case)
                   for case in cases)
    if len(cases) != 3:
        print("FAIL: cases are missing")
        failures += 1
    print("%d models against PyTorch %s, %d failed" % (len(cases), torch.__version__, failures))
    sys.exit(failures > 0)


main()
