"""Learning with each strategy of synchronisation: the part `learning` of bench/sync. Not a program.

Every method trains the same model, on the same samples in the same order, for the same number of steps, with four
replicas, and is compared with the synchronous run that has the same optimiser. The results do not depend on the number
of ranks, so each run has one rank.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys

import common
from common import DATA, ROOT

EXAMPLES = os.path.join(ROOT, "examples", "data")
ACCURACY_BAR = 0.3  # points
LOSS_BAR = 1.0  # per cent
REPLICAS = 4

# The synchronous runs, by the optimiser that the methods below share with them.
ADAMW, SGD = "AdamW", "SGD, momentum 0.9"
TOPK = {"compress.sparsify": "topk_sampled"}
LOCAL = {"sync.kind": "local", "sync.period": 8}
LATE = "gradients of older models"  # they need less momentum, and may need a smaller learning rate
ASYNC = {"sync.kind": "server", "sync.mode": "async", LATE: True}
STALE = {**ASYNC, "sync.mode": "stale", "sync.staleness": 4, "sync.speeds": "[4, 4, 4, 1]"}

# Name, the synchronous run that it is compared with, settings. {warmup} and {half} are numbers of steps.
DGC = {**TOPK, "compress.ratio": 0.001, "compress.momentum": 0.9, "compress.clip_norm": 1,
       "compress.warmup": "{warmup}", "optim.clip_norm": 0}
METHODS = [
    ("all_reduce", ADAMW, {}),
    ("local SGD, H = 8", ADAMW, LOCAL),
    ("local SGD, H = 8, second half", ADAMW, {**LOCAL, "sync.start_step": "{half}"}),
    ("DiLoCo, H = 50", ADAMW, {"sync.kind": "local", "sync.period": 50, "sync.outer": "nesterov"}),
    ("gossip, exponential graph", ADAMW, {"sync.kind": "gossip", "sync.period": 1}),
    ("gossip, ring, period 8", ADAMW, {"sync.kind": "gossip", "sync.period": 8, "sync.graph": "ring"}),
    ("async", ADAMW, {**ASYNC, "optim.beta1": 0}),
    ("stale, bound 4, a slow worker", ADAMW, {**STALE, "optim.beta1": 0}),
    ("top-k 1 %", ADAMW, {**TOPK, "compress.ratio": 0.01}),
    ("DGC 1 %", ADAMW, {**DGC, "compress.ratio": 0.01, "optim.beta1": 0}),
    ("DGC 0.1 %", ADAMW, {**DGC, "optim.beta1": 0}),
    ("sign with feedback", ADAMW, {"compress.quantise": "sign"}),
    ("int8", ADAMW, {"compress.quantise": "int8"}),
    ("PowerSGD, rank 4", ADAMW, {"compress.rank": 4}),
    ("all_reduce, SGD", SGD, {}),
    ("async, SGD", SGD, {**ASYNC, "optim.momentum": 0}),
    ("top-k 1 %, SGD", SGD, {**TOPK, "compress.ratio": 0.01}),
    ("DGC 0.1 %, SGD", SGD, {**DGC, "optim.momentum": 0}),
    ("sign with feedback, SGD", SGD, {"compress.quantise": "sign"}),
    ("PowerSGD, rank 4, SGD", SGD, {"compress.rank": 4}),
]


class Task:
    """A model and its data: how it is trained, and the figure that counts."""

    def __init__(self, name, job, steps, warmup, metric, late_lr, sets):
        self.name = name
        self.job = job
        self.steps = steps
        self.warmup = warmup
        self.metric = metric  # test_accuracy or test_loss
        self.late_lr = late_lr  # learning rate of asynchronous updates / that of the synchronous run, the best of a few
        self.sets = sets  # by the name of the optimiser; a model that SGD does not train has none for it

    def settings(self, method, quick):
        name, optimiser, sets = method
        steps = 20 if quick else self.steps
        every = {"seed": 1, "name": "learning", "train.steps": steps,
                 "parallel.lanes": REPLICAS, "eval.every_epochs": "never", "eval.every_steps": "never",
                 "checkpoint.every_epochs": "never", "checkpoint.every_steps": "never", "compute.threads": 1}
        every.update(self.sets[optimiser])
        every.update({key: str(value).format(warmup=self.warmup, half=self.steps // 2)
                      for key, value in sets.items() if key != LATE})
        for key in ("optim.lr", "schedule.floor"):
            if LATE in sets and key in every:
                every[key] *= self.late_lr
        if any(key.startswith(("sync.", "compress.")) for key in sets):
            every["sync.replicas"] = REPLICAS
        return every


def mnist():
    """The directory with MNIST's files, which are downloaded once."""
    directory = os.path.join(EXAMPLES, "mnist")
    if not os.path.exists(os.path.join(directory, "train-images-idx3-ubyte")):
        subprocess.run([os.path.join(ROOT, "tools", "get-mnist"), directory], check=True)
    return directory


def cnn_task():
    mnist()
    adamw = {"optim.kind": "adamw", "optim.lr": 0.001}
    sgd = {"optim.kind": "sgd", "optim.lr": 0.05, "optim.momentum": 0.9}
    return Task("MNIST CNN", os.path.join(ROOT, "examples", "02_mnist", "cnn.yaml"), 1407, 469, "test_accuracy",
                1, {ADAMW: adamw, SGD: sgd})


def gpt_task(name, layers, width, heads, context, batch, steps):
    text = os.path.join(EXAMPLES, "shakespeare.txt")
    if not os.path.exists(text):
        sys.exit(f"bench: {os.path.relpath(text)} is missing; examples/04_shakespeare/README.md says what it is")
    model = {"model.layers": layers, "model.width": width, "model.heads": heads, "model.context": context,
             "train.batch": batch, "schedule.warmup": steps // 20, "eval.batch": 1024}
    adamw = {**model, "optim.kind": "adamw", "optim.lr": 0.006, "schedule.floor": 0.0006}
    return Task(name, os.path.join(ROOT, "examples", "04_shakespeare", "job.yaml"), steps, steps // 4, "test_loss",
                1 / 12, {ADAMW: adamw})


def tasks_of(options):
    small = lambda: gpt_task("GPT, 0.1 M", 2, 64, 4, 64, 32, 1500)
    large = lambda: gpt_task("GPT, 10.8 M", 6, 384, 6, 256, 8, 250)
    makers = {"cnn": cnn_task, "gpt": small, "gpt-10m": large}
    return [makers[name]() for name in (options.tasks or "cnn,gpt").split(",")]


def train(b, settings, job):
    """Returns the summary of the run, or None if it diverged."""
    directory = os.path.join(DATA, "runs-sync", secrets.token_hex(4))
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [b.options.tandem, "train", job, "-q", "--json", "-n", "1", "--set", f"run.dir={directory}", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if done.returncode != 0:
        if "diverged" in done.stderr or "not finite" in done.stderr:
            return None
        sys.exit(f"bench: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def has_key(b, key):
    done = subprocess.run([b.options.tandem, "job", "keys", key], capture_output=True, text=True, timeout=60)
    return done.returncode == 0 and done.stdout.startswith(key)


def figure_of(task, result):
    """The accuracy in per cent, or the loss."""
    if result is None:
        return None
    return 100 * result[task.metric] if task.metric == "test_accuracy" else result[task.metric]


def gap_of(task, figure, base):
    """By how much it is worse than the synchronous run: in points, or in per cent of the loss."""
    return base - figure if task.metric == "test_accuracy" else 100 * (figure / base - 1)


def cell(task, figure, gap, bar):
    if figure is None:
        return "diverged"
    value = f"{figure:.2f} %" if task.metric == "test_accuracy" else f"{figure:.4f}"
    if gap is None:
        return value
    unit = "" if task.metric == "test_accuracy" else " %"
    worse = f"{gap:+.2f}{unit}"
    return f"{value} ({worse})" if gap <= bar else f"**{value} ({worse})**"


def learning(b):
    methods = [m for m in METHODS if m[2].get("compress.rank") is None or has_key(b, "compress.rank")]
    if b.options.methods:
        wanted = b.options.methods.split(",")
        methods = [m for m in methods if not m[2] or any(word in m[0] for word in wanted)]
    tasks = tasks_of(b.options)
    table = {}
    for task in tasks:
        bar = ACCURACY_BAR if task.metric == "test_accuracy" else LOSS_BAR
        what = "points below" if task.metric == "test_accuracy" else "% above"
        bases = {}
        for method in [m for m in methods if m[1] in task.sets]:
            name, optimiser, sets = method
            figure = figure_of(task, train(b, task.settings(method, b.options.quick), task.job))
            gap = None
            if not sets:
                bases[optimiser] = figure
            elif figure is not None:
                gap = gap_of(task, figure, bases[optimiser])
            table[task.name, name] = cell(task, figure, gap, bar)
            unit = "%" if task.metric == "test_accuracy" else ""
            b.row(f"{task.name}, {name}: {task.metric.replace('_', ' ')}",
                  float("nan") if figure is None else figure, unit=unit)
            if sets:
                b.row(f"{task.name}, {name}: {what} the synchronous run", 1e9 if gap is None else gap,
                      *(() if b.options.quick else ("<=", bar)))
    if b.options.markdown:
        print_table(tasks, methods, table)


def print_table(tasks, methods, table):
    print("\n| method | optimiser | " + " | ".join(f"{t.name}, {t.steps:,} steps" for t in tasks) + " |")
    print("|---|---|" + "---|" * len(tasks))
    for name, optimiser, _ in methods:
        cells = [table.get((t.name, name), "-") for t in tasks]
        if set(cells) == {"-"}:
            continue
        print(f"| {name.removesuffix(', SGD')} | {optimiser} | {' | '.join(cells)} |")
    print()
