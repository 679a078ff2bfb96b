"""Training over slow links: the parts `curves` and `network` of bench/sync. Not a program.

`network` measures the time of a step on three hosts (network namespaces) at 1 Gbit/s and at 100 Mbit/s, with each way
to synchronise, and with PyTorch's DistributedDataParallel and its hooks. `curves` counts the steps after which the
test loss is at most TARGET. The time to this loss is the product. The steps need no slow link: here the trained bits
do not depend on ranks and hosts, and PyTorch's losses depend on neither the rate of a link nor the load of a machine.

The model is a perceptron of 5.8 million parameters on MNIST, so that on these links a step is mostly communication.
"""

import json
import os
import secrets
import shutil
import struct
import subprocess
import sys
import time

import common
import sync_learning
from common import DATA, Hosts, Together, peer

HOSTS, REPLICAS, BATCH, HIDDEN, LR = 3, 4, 96, "2048,2048", 0.05
TARGET = 0.3
EVERY, MOST_STEPS, TEST_ROWS = 10, 400, 1000
LIMIT_S = 1800  # for the steps of one method
CURVES = os.path.join(DATA, "sync-curves.json")
DGC_BAR = 5  # times as fast as the fastest dense method, at 100 Mbit/s

MOMENTUM = {"optim.momentum": 0.9}
DENSE = ("all_reduce, f32", "all_reduce, bf16")
CORRECTED = {"optim.momentum": 0, "compress.sparsify": "topk_sampled", "compress.momentum": 0.9}
# Name, settings, steps of a measurement at 1 Gbit/s and at 100 Mbit/s. The learning rate is LR, unless a method does not
# learn with that.
OURS = [
    (DENSE[0], MOMENTUM, 16, 6),
    (DENSE[1], {**MOMENTUM, "compress.quantise": "bf16"}, 16, 5),
    ("int8", {**MOMENTUM, "compress.quantise": "int8"}, 16, 6),
    ("sign", {**MOMENTUM, "compress.quantise": "sign", "optim.lr": 0.02}, 24, 16),
    ("top-k 1 %", {**CORRECTED, "compress.ratio": 0.01}, 24, 24),
    ("DGC 0.1 %", {**CORRECTED, "compress.ratio": 0.001}, 24, 24),
    ("PowerSGD, rank 4", {**MOMENTUM, "compress.rank": 4}, 24, 24),
    ("local SGD, H = 8", {**MOMENTUM, "sync.kind": "local", "sync.period": 8}, 48, 16),
    ("DiLoCo, H = 50", {**MOMENTUM, "sync.kind": "local", "sync.period": 50, "sync.outer": "nesterov"}, 150, 100),
]
THEIRS = [("none", "PyTorch, f32", 16, 8), ("fp16", "PyTorch, fp16", 16, 8), ("powersgd", "PyTorch, PowerSGD 4", 24, 24)]


def is_wanted(b, name):
    return not b.options.methods or any(part in name for part in b.options.methods.split(",")) or name in DENSE


def ours_of(b):
    return [m for m in OURS if is_wanted(b, m[0]) and
            ("compress.rank" not in m[1] or sync_learning.has_key(b, "compress.rank"))]


def theirs_of(b):
    return [m for m in THEIRS if is_wanted(b, m[1])]


def digits():
    """A directory with MNIST's training set, and the first TEST_ROWS of its test set."""
    source, directory = sync_learning.mnist(), os.path.join(DATA, "mnist")
    os.makedirs(directory, exist_ok=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        if not os.path.exists(os.path.join(directory, name)):
            shutil.copy(os.path.join(source, name), directory)
    for name, size in (("t10k-images-idx3-ubyte", 28 * 28), ("t10k-labels-idx1-ubyte", 1)):
        with open(os.path.join(source, name), "rb") as whole, open(os.path.join(directory, name), "wb") as out:
            head = whole.read(16 if size > 1 else 8)
            out.write(head[:4] + struct.pack(">I", TEST_ROWS) + head[8:] + whole.read(TEST_ROWS * size))
    return directory


def command_of(b, sets, steps, directory, evaluates):
    data = digits()
    settings = {
        "name": "network", "seed": 1, "run.dir": directory, "train.steps": steps, "train.batch": BATCH,
        "model.hidden": f"[{HIDDEN}]", "model.dropout": 0, "optim.kind": "sgd", "optim.lr": LR,
        "parallel.lanes": REPLICAS, "compute.threads": 1, "checkpoint.every_epochs": "never",
        "eval.every_epochs": "never", "eval.every_steps": EVERY if evaluates else "never",
        "data.train": os.path.join(data, "train-images-idx3-ubyte"),
        "data.train_labels": os.path.join(data, "train-labels-idx1-ubyte"),
        "data.test": os.path.join(data, "t10k-images-idx3-ubyte"),
        "data.test_labels": os.path.join(data, "t10k-labels-idx1-ubyte"), **sets}
    if any(key.startswith(("sync.", "compress.")) for key in sets):
        settings["sync.replicas"] = REPLICAS
    job = os.path.join(common.ROOT, "examples", "02_mnist", "job.yaml")
    return [b.options.tandem, "train", job, "-q", "--json",
            *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def new_directory():
    return os.path.join(DATA, "runs-sync", secrets.token_hex(4))


# ---- steps to the loss ---------------------------------------------------------------------------------------


def steps_to_target(losses):
    """The first step with a test loss of at most TARGET, None if there is none."""
    return next((step for step, loss in losses if loss <= TARGET), None)


def our_losses(b, sets):
    """The test losses up to the first one of at most TARGET: the run is killed then."""
    directory = new_directory()
    command = [*command_of(b, sets, 100 if b.options.quick else MOST_STEPS, directory, True), "-n", "1"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env={**os.environ, "TANDEM_ELASTIC": "0"})
    losses, end = [], time.monotonic() + LIMIT_S
    try:
        while run.poll() is None and steps_to_target(losses) is None:
            if time.monotonic() > end:
                sys.exit(f"bench: {' '.join(command)}: it did not end in time")
            time.sleep(0.1)
            losses = read_losses(directory)
        if run.poll() not in (None, 0):
            sys.exit(f"bench: {' '.join(command)}\n{run.stderr.read()}")
        return read_losses(directory)
    finally:
        run.kill()
        run.wait()
        shutil.rmtree(directory, ignore_errors=True)


def read_losses(directory):
    try:
        with open(os.path.join(directory, "network-1", "metrics.jsonl")) as lines:
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
    except OSError:
        return []
    return [(row["step"], row["test_loss"]) for row in rows if "test_loss" in row]


def torch_words(rank, master, hook, steps, *more):
    return peer("torch_hooks.py", "--rank", rank, "--ranks", HOSTS, "--master", master, "--hook", hook, "--steps",
                steps, "--data", digits(), "--batch", BATCH, "--hidden", HIDDEN, "--lr", LR, *more)


def environment(interface):
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": interface}


def some_port():
    return 20000 + secrets.randbelow(20000)


def their_losses(b, hook):
    master = f"127.0.0.1:{some_port()}"
    most = 100 if b.options.quick else MOST_STEPS
    commands = [torch_words(r, master, hook, most, "--every", EVERY, "--target", TARGET) for r in range(HOSTS)]
    return Together(commands, [environment("lo")] * HOSTS).answers()[0]["losses"]


def known_curves(b):
    """What an earlier sitting has counted, by method and settings."""
    try:
        with open(CURVES) as text:
            known = json.load(text)
        return known["steps"] if known["target"] == TARGET else {}
    except (OSError, ValueError, LookupError):
        return {}


def curves(b):
    """Returns the steps by the name of a method. They are written to CURVES, and counted once for the same settings."""
    known, steps = known_curves(b), {}
    ours = [(name, f"{name} {json.dumps(sets, sort_keys=True)}", lambda sets=sets: our_losses(b, sets))
            for name, sets, *_ in ours_of(b)]
    theirs = [(name, f"{name} {common.torch_version()}", lambda hook=hook: their_losses(b, hook))
              for hook, name, *_ in theirs_of(b)]
    for name, key, losses in ours + theirs:
        if key not in known:
            known[key] = steps_to_target(losses())
        if not b.options.quick:
            with open(CURVES, "w") as out:
                json.dump({"target": TARGET, "steps": known}, out, indent=1)
        steps[name] = known[key]
        b.row(f"{name}: steps to a test loss of {TARGET}", steps[name] or float("nan"))
    return steps


# ---- the time of a step ----------------------------------------------------------------------------------------


def sent_bytes(hosts):
    """What all hosts have sent so far."""
    total = 0
    for name in hosts.names:
        done = subprocess.run(hosts.inside(name, "cat", "/sys/class/net/wire/statistics/tx_bytes"), check=True,
                              capture_output=True, text=True, timeout=30)
        total += int(done.stdout)
    return total


def our_run(b, hosts, sets, steps, secret):
    """The seconds of all steps, and what a host sends from the start of the run to its end."""
    place = hosts.place(secret)
    directory = new_directory()
    before = sent_bytes(hosts)
    command = command_of(b, sets, steps, directory, False)
    try:
        said = hosts.start(lambda i: command, place)[0]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return said["seconds"], (sent_bytes(hosts) - before) / hosts.count


def our_step(b, hosts, sets, steps, secret):
    """The mean seconds of a step, and the mean bytes that a host sends in it: without those of the first round, and of the
    start and end of a run."""
    first = sets.get("sync.period", 1)
    rounds = max(1, (steps - first) // first)
    short = our_run(b, hosts, sets, first, secret)
    long = our_run(b, hosts, sets, first * (1 + rounds), secret)
    return [(more - less) / (first * rounds) for more, less in zip(long, short)]


def their_step(hosts, hook, steps):
    master = f"{hosts.address(0)}:{some_port()}"
    commands = [torch_words(r, master, hook, steps, "--device", "wire") for r in range(hosts.count)]
    said = hosts.start(lambda i: commands[i], lambda i: environment("wire"))[0]
    return said["step_ms"] / 1e3, said["sent"]


def network(b):
    steps_to = curves(b)
    secret = secrets.token_hex(16)
    results = {}
    rates = [int(rate) for rate in (b.options.rates or "1000,100").split(",")]
    for mbit in rates:
        with Hosts(HOSTS, mbit) as hosts:
            for name, sets, fast, slow in ours_of(b):
                steps = 2 if b.options.quick else fast if mbit >= 1000 else slow
                results[mbit, name] = our_step(b, hosts, sets, steps, secret)
                print_step(b, mbit, name, results[mbit, name])
            for hook, name, fast, slow in theirs_of(b):
                results[mbit, name] = their_step(hosts, hook, 6 if b.options.quick else fast if mbit >= 1000 else slow)
                print_step(b, mbit, name, results[mbit, name])
        report(b, mbit, results, steps_to)
    if b.options.markdown:
        print_table(rates, results, steps_to)


def print_step(b, mbit, name, result):
    step_s, sent = result
    b.row(f"3 hosts, {mbit} Mbit/s, {name}: step", step_s * 1e3, unit="ms")
    b.row(f"3 hosts, {mbit} Mbit/s, {name}: sent by a host in a step", sent / 1e6, unit="MB")


def report(b, mbit, results, steps_to):
    dense = min(results[mbit, name][0] for name in DENSE)
    for (rate, name), (step_s, _) in results.items():
        if rate != mbit:
            continue
        at = f"3 hosts, {mbit} Mbit/s, {name}"
        if steps_to[name]:
            b.row(f"{at}: time to a test loss of {TARGET}", steps_to[name] * step_s, unit="s")
        has_bar = name.startswith("DGC") and mbit == 100 and not b.options.quick
        b.row(f"{at}: times as fast as the fastest dense step", dense / step_s, *((">=", DGC_BAR) if has_bar else ()))


def print_table(rates, results, steps_to):
    names = [name for rate, name in results if rate == rates[0]]
    print(f"\n| method | sent by a host | steps to {TARGET} | " +
          " | ".join(f"step at {r:,} Mbit/s | time to {TARGET}" for r in rates) + " |")
    print("|---|---|---|" + "---|---|" * len(rates))
    for name in names:
        cells = []
        for rate in rates:
            step_s = results[rate, name][0]
            cells += [f"{step_s * 1e3:,.0f} ms", f"{steps_to[name] * step_s:,.1f} s" if steps_to[name] else "-"]
        sent = results[rates[0], name][1]
        print(f"| {name} | {sent / 1e6:.2f} MB | {steps_to[name] or f'more than {MOST_STEPS}'} | {' | '.join(cells)} |")
    print()
