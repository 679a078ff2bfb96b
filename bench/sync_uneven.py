"""Training with one slow rank: the part `async` of bench/sync. Not a program.

Two ranks of this host, of which the second takes four times as long for every computation (TANDEM_TEST_SLOW, which
sleeps). Synchronous steps then take as long as the slow rank, unless lanes move to the fast one; asynchronous
updates do not have to wait for it. The throughput is that of the last steps, after lanes and replicas have moved.
"""

import json
import os
import secrets
import shutil
import subprocess

import common
from common import DATA, HERE

RANKS, FACTOR = 2, 4
OTHERS = (RANKS - 1) / RANKS  # the share of the ranks that are not slowed down
IDEAL = (RANKS - 1 + 1 / FACTOR) / RANKS  # all ranks are always busy
BAR = 0.9  # of the throughput of the others
MOVING_STEPS, STEPS = 60, 80
MODEL = {"model.layers": 2, "model.width": 128, "model.heads": 4, "model.context": 64, "train.batch": 16,
         "compute.threads": 1, "run.log_every_steps": 1, "checkpoint.every_epochs": "never", "seed": 1}
ALL_REDUCE = {"parallel.lanes": 16}
ASYNC = {"parallel.lanes": 2, "sync.kind": "server", "sync.mode": "async", "sync.replicas": 16}


def has_live_order(b):
    """Whether workers can apply updates in the order in which they finish (sync.order: live)."""
    done = subprocess.run([b.options.tandem, "job", "keys", "sync.order"], capture_output=True, text=True, timeout=60)
    return "live" in done.stdout.split("default")[0]


def throughput(b, sets, is_slowed):
    """Samples per second of the steps after the first MOVING_STEPS."""
    directory = os.path.join(DATA, "runs-sync", secrets.token_hex(4))
    moving, steps = (20, 20) if b.options.quick else (MOVING_STEPS, STEPS)
    settings = {**MODEL, **sets, "run.dir": directory, "train.steps": moving + steps}
    command = [b.options.tandem, "train", os.path.join(HERE, "jobs", "gpt-10m.yaml"), "-q", "--json", "-n", str(RANKS),
               *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]
    try:
        said = b.run(command, {"TANDEM_TEST_SLOW": f"{RANKS - 1}:{FACTOR}"} if is_slowed else {})
        with open(os.path.join(said["run"], "metrics.jsonl")) as lines:
            rows = [row for row in map(json.loads, lines) if "samples_per_s" in row and row["step"] > moving]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return len(rows) / sum(1 / row["samples_per_s"] for row in rows)


def uneven(b):
    common.write_data()
    cases = [("all_reduce, lanes fixed", ALL_REDUCE, "off", None), ("all_reduce, lanes moved", ALL_REDUCE, "feedback", None),
             ("async, replicas fixed", ASYNC, "off", None), ("async, replicas moved", ASYNC, "feedback", BAR)]
    if has_live_order(b):
        cases.append(("async, live order", {**ASYNC, "sync.order": "live"}, "off", BAR))
    table = []
    for name, sets, balance, bar in cases:
        sets = {**sets, "parallel.balance": balance}
        rounds = [(throughput(b, sets, False), throughput(b, sets, True)) for _ in range(1 if b.options.quick else 2)]
        free, slowed = (max(column) for column in zip(*rounds))
        title = f"one of {RANKS} ranks slowed {FACTOR}x, {name}"
        b.row(f"{title}: samples/s before", free)
        b.row(f"{title}: throughput / before", slowed / free)
        b.row(f"{title}: / ideal", slowed / free / IDEAL)
        bars = () if bar is None or b.options.quick else (">=", bar)
        b.row(f"{title}: / that of the others", slowed / free / OTHERS, *bars)
        table.append((name, free, slowed))
    if b.options.markdown:
        print(f"\n| {RANKS} ranks, one of them slowed {FACTOR}x | samples/s before | after | share | of the others |")
        print("|---|---|---|---|---|")
        for name, free, slowed in table:
            print(f"| {name} | {free:,.0f} | {slowed:,.0f} | {slowed / free:.2f} | {slowed / free / OTHERS:.2f} |")
        print()
