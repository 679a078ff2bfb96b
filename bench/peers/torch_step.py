"""Measures one training step of a model with PyTorch, on the same machine in the same session.

    torch_step.py MODEL --batch B --threads N [--steps K] [--seconds S] [--compile]

MODEL is one of: mlp (784-128-10), cnn (two convolutions on 28 x 28), resnet18 (32 x 32 images), gpt (--layers,
--width, --heads, --context, --vocabulary). The optimiser is AdamW throughout. Prints one JSON object: the median
time of a step and the peak of resident memory.
"""

import argparse
import json
import math
import resource
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """A pre-norm transformer block with causal attention, as in GPT-2."""

    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        # Not a buffer: ranks would exchange it, and Gloo does not support bool.
        self.hidden = torch.triu(torch.ones(context, context, dtype=torch.bool), diagonal=1)

    def attention(self, x):
        rows, length, width = x.shape
        parts = self.attend(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            weights = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            weights = weights.masked_fill(self.hidden[:length, :length], float("-inf"))
            y = F.softmax(weights, dim=-1) @ v
        return self.project(y.transpose(1, 2).reshape(rows, length, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.shrink(F.gelu(self.grow(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tokens = nn.Embedding(a.vocabulary, a.width)
        self.places = nn.Embedding(a.context, a.width)
        self.blocks = nn.Sequential(*[Block(a.width, a.heads, a.context) for _ in range(a.layers)])
        self.norm = nn.LayerNorm(a.width)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1)))
        return self.norm(self.blocks(x)) @ self.tokens.weight.t()


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


def resnet18():
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for stage in range(4):
        outputs = 64 << stage
        layers += [Residual(inputs, outputs, 1 if stage == 0 else 2), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
    )


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def make(a):
    """The model, and a function that makes a batch of inputs and classes."""
    if a.model == "gpt":
        shape = (a.batch, a.context)
        return GPT(a), lambda: (torch.randint(a.vocabulary, shape), torch.randint(a.vocabulary, shape))
    build, shape = {"mlp": (mlp, (1, 28, 28)), "cnn": (cnn, (1, 28, 28)), "resnet18": (resnet18, (3, 32, 32))}[a.model]
    return build(), lambda: (torch.randn(a.batch, *shape), torch.randint(10, (a.batch,)))


def arguments(words):
    """The options that this and torch_ddp.py have in common."""
    p = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=["mlp", "cnn", "resnet18", "gpt"])
    for name, value in [("batch", 128), ("threads", 1), ("steps", 200), ("layers", 6), ("width", 384),
                        ("heads", 6), ("context", 256), ("vocabulary", 65)]:
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--seconds", type=float, default=20, help="stop after so long, but not before some steps")
    return p


def main():
    p = arguments(__doc__)
    p.add_argument("--compile", action="store_true", help="by torch.compile, which takes a while at first")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model, batch = make(a)
    if a.compile:
        model = torch.compile(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times, cpu_times, begin = [], [], time.perf_counter()
    while len(times) < a.steps and (len(times) < 4 or time.perf_counter() - begin < a.seconds):
        x, classes = batch()
        start, cpu_start = time.perf_counter(), time.process_time()
        logits = model(x)
        F.cross_entropy(logits.reshape(-1, logits.size(-1)), classes.reshape(-1)).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)
    print(json.dumps({
        "peer": "torch " + torch.__version__,
        "model": a.model,
        "threads": a.threads,
        "batch": a.batch,
        "step_ms": 1e3 * statistics.median(times[1:]),
        "cpu_ms": 1e3 * statistics.median(cpu_times[1:]),  # of all threads
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }))


if __name__ == "__main__":
    main()
