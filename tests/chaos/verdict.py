"""Checks of a run directory after the end of training, for any injected faults.

A module of chaos.py and hosts.py. Each check returns, or raises Failure with one sentence.
"""
import collections
import glob
import json
import os
import re
import subprocess

GOES_BACK = re.compile(r"training goes back to step (\d+)")
RESUMES = re.compile(r"ranks?, from step (\d+) to \d+$")
AFTER_STEP = re.compile(r"step (\d+): (test loss|wrote)")
FROM_MEMORY = re.compile(r"resumed after step (\d+) with \d+ ranks?, from memory")
# Messages that SIGKILL cannot cause: a crash of the program or of a library.
CRASH = re.compile(r"killed by signal (4|6|7|8|11)\b|Sanitizer:|runtime error:|Assertion .*failed")


class Failure(Exception):
    pass


def ask(tandem, *words, limit_s=120):
    """Returns the output of a tandem command, which must succeed."""
    done = subprocess.run([tandem, *words], capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise Failure(f"tandem {words[0]} exited with code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def run_directory(runs):
    """Returns the run directory below `runs`. If rank 0 is killed while it creates the run directory, a directory
    without any step stays behind and the run uses the next number; such directories are ignored."""
    began = [path for path in glob.glob(os.path.join(runs, "*", "metrics.jsonl"))
             if os.path.getsize(path) > 0]
    if len(began) != 1:
        raise Failure(f"found {len(began)} run directories, expected one")
    return os.path.dirname(began[0])


def check_hash(tandem, directory, steps, want):
    """The newest checkpoint is that of the last step and has the hash of an undisturbed run."""
    got = json.loads(ask(tandem, "hash", directory, "--json"))
    if got["step"] != steps or got["hash"] != want:
        raise Failure(f"the newest checkpoint, of step {got['step']}, has the wrong hash "
                      f"{got['hash']}, expected {want}")


def check_ledger(tandem, directory, steps):
    ledger = json.loads(ask(tandem, "ledger", directory, "--json"))
    if not ledger["exact"] or ledger["first_step"] != 1 or ledger["last_step"] != steps:
        raise Failure(f"the ledger is wrong: {ledger}")


def read_lines(path):
    """Returns the JSON objects of a JSON-lines file; other lines are skipped."""
    found = []
    try:
        with open(path) as file:
            for line in file:
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass
    except OSError:
        pass
    return [line for line in found if isinstance(line, dict)]


def check_metrics(directory, steps, round_steps=1, may_miss=False):
    """Every step has one line of metrics (the job requests one per step), and no evaluation has two. If steps are
    executed in rounds of `round_steps`, the last step of a round has the line."""
    kinds = collections.defaultdict(collections.Counter)
    for line in read_lines(os.path.join(directory, "metrics.jsonl")):
        kinds["test" if "test_loss" in line else "step"][line["step"]] += 1
    for kind, counts in kinds.items():
        twice = [step for step, count in counts.items() if count > 1]
        if twice:
            raise Failure(f"metrics.jsonl has duplicate {kind} lines for steps {twice[:9]}")
    missing = [step for step in range(round_steps, steps + 1, round_steps) if step not in kinds["step"]]
    if missing and not may_miss:
        raise Failure(f"metrics.jsonl has no line for {len(missing)} steps: {missing[:9]}")


def log_lines(directory):
    """Returns all log lines of a run, of rank 0 and of the agents, sorted by time."""
    found = {}
    for path in glob.glob(os.path.join(directory, "log*.jsonl")):
        for line in read_lines(path):
            found[json.dumps(line, sort_keys=True)] = line
    return sorted(found.values(), key=lambda line: line.get("time", 0))


def check_going_back(directory, drops, round_steps=1):
    """Every repetition of steps is logged. Each pair (high, low) of `drops` was observed in the ledger: its last line
    was that of step `high`, and later that of step `low`. One step (one round of `round_steps`) may be repeated without
    a log line: the one that was in progress or whose lines were being written."""
    lines = log_lines(directory)
    targets = [int(match.group(1)) for match in
               (GOES_BACK.search(line.get("message", "")) for line in lines) if match]
    for high, low in drops:
        if low < high - round_steps and not any(target <= low for target in targets):
            raise Failure(f"the ledger went back from step {high} to {low} without a log line")
    last, done = 0, collections.Counter()  # the last step of each kind of log line
    for line in lines:
        message = line.get("message", "")
        on, after = FROM_MEMORY.search(message), AFTER_STEP.match(message)
        back = GOES_BACK.search(message) or RESUMES.search(message)
        if back:
            last = int(back.group(1))
            done.clear()
        elif on and int(on.group(1)) < last - round_steps:
            raise Failure(f"training resumed after step {on.group(1)} although step {last} was done, without "
                          f"a log line about it: {message}")
        elif on:
            last = max(last, int(on.group(1)))
        elif after:
            step, kind = int(after.group(1)), after.group(2)
            if step < done[kind]:
                raise Failure(f"step {step} was logged after step {done[kind]}, without a log line about the "
                              f"repetition: {message}")
            done[kind] = step
            last = max(last, step)


def tail(directory, count=25):
    """Returns the last lines of all logs below a directory, for diagnosis."""
    lines = []
    for path, _, names in os.walk(directory):
        for name in sorted(names):
            if name.startswith("log") and name.endswith(".jsonl"):
                with open(os.path.join(path, name), errors="replace") as file:
                    lines += [f"{name}: {line.rstrip()}" for line in file.readlines()[-count:]]
    return lines


def find_crashes(directory):
    """Returns the log lines that report a crash."""
    found = []
    for path, _, names in os.walk(directory):
        for name in names:
            if not name.endswith((".jsonl", ".log", "err", "out")):
                continue
            with open(os.path.join(path, name), errors="replace") as file:
                found += [line.rstrip() for line in file if CRASH.search(line)]
    return found
