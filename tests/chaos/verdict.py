"""What must hold for a run's folder when a training has ended, whatever was done to it.

Not a program; chaos.py and hosts.py use it. Every function raises Failure with one sentence, or returns.
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
# What no death by SIGKILL explains: the program itself is at fault, or a library.
CRASH = re.compile(r"killed by signal (4|6|7|8|11)\b|Sanitizer:|runtime error:|Assertion .*failed")


class Failure(Exception):
    pass


def ask(tandem, *words, limit_s=120):
    """The output of a command of tandem, which must succeed."""
    done = subprocess.run([tandem, *words], capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise Failure(f"tandem {words[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def run_folder(runs):
    """A rank 0 that is killed while it makes the folder leaves one that never began, perhaps with its files,
    but without a step in them; the next folder is the run's."""
    began = [path for path in glob.glob(os.path.join(runs, "*", "metrics.jsonl"))
             if os.path.getsize(path) > 0]
    if len(began) != 1:
        raise Failure(f"it has left {len(began)} runs behind, not one")
    return os.path.dirname(began[0])


def check_hash(tandem, folder, steps, want):
    """The newest checkpoint is of the last step, and has the bits of an undisturbed run."""
    got = json.loads(ask(tandem, "hash", folder, "--json"))
    if got["step"] != steps or got["hash"] != want:
        raise Failure(f"the newest checkpoint, of step {got['step']}, has other bits: "
                      f"{got['hash']}, not {want}")


def check_ledger(tandem, folder, steps):
    ledger = json.loads(ask(tandem, "ledger", folder, "--json"))
    if not ledger["exact"] or ledger["first_step"] != 1 or ledger["last_step"] != steps:
        raise Failure(f"the ledger is wrong: {ledger}")


def read_lines(path):
    """The JSON objects in a file of lines; what is no object is left out."""
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


def check_metrics(folder, steps, may_miss=False):
    """Every step has one line of metrics (the job asks for one a step), and no evaluation has two."""
    kinds = collections.defaultdict(collections.Counter)
    for line in read_lines(os.path.join(folder, "metrics.jsonl")):
        kinds["test" if "test_loss" in line else "step"][line["step"]] += 1
    for kind, counts in kinds.items():
        twice = [step for step, count in counts.items() if count > 1]
        if twice:
            raise Failure(f"metrics.jsonl has {kind} lines more than once, of steps {twice[:9]}")
    missing = [step for step in range(1, steps + 1) if step not in kinds["step"]]
    if missing and not may_miss:
        raise Failure(f"metrics.jsonl has no line for {len(missing)} steps: {missing[:9]}")


def log_lines(folder):
    """All lines of a run's logs, in order of time; rank 0's own and those that came through agents alike."""
    found = {}
    for path in glob.glob(os.path.join(folder, "log*.jsonl")):
        for line in read_lines(path):
            found[json.dumps(line, sort_keys=True)] = line
    return sorted(found.values(), key=lambda line: line.get("time", 0))


def check_going_back(folder, drops):
    """Steps that were trained again are announced. `drops` are pairs of steps that somebody who watched the
    ledger has seen: the last line was of the first of them, and later of the second one. A step that was in
    progress, or whose lines were being written, may be done once more without a word."""
    lines = log_lines(folder)
    targets = [int(match.group(1)) for match in
               (GOES_BACK.search(line.get("message", "")) for line in lines) if match]
    for high, low in drops:
        if low < high - 1 and not any(target <= low for target in targets):
            raise Failure(f"the ledger went back from step {high} to {low}, and no line says so")
    last, done = 0, collections.Counter()  # what was done after which step, by kind
    for line in lines:
        message = line.get("message", "")
        on, after = FROM_MEMORY.search(message), AFTER_STEP.match(message)
        back = GOES_BACK.search(message) or RESUMES.search(message)
        if back:
            last = int(back.group(1))
            done.clear()
        elif on and int(on.group(1)) < last - 1:
            raise Failure(f"training resumed after step {on.group(1)}, when step {last} was done, and no "
                          f"line says so: {message}")
        elif on:
            last = max(last, int(on.group(1)))
        elif after:
            step, kind = int(after.group(1)), after.group(2)
            if step < done[kind]:
                raise Failure(f"step {step} came behind step {done[kind]}, and no line says that training goes "
                              f"back: {message}")
            done[kind] = step
            last = max(last, step)


def tail(folder, count=25):
    """The last lines of all logs below a folder, for a person who looks for the cause."""
    lines = []
    for path, _, names in os.walk(folder):
        for name in sorted(names):
            if name.startswith("log") and name.endswith(".jsonl"):
                with open(os.path.join(path, name), errors="replace") as file:
                    lines += [f"{name}: {line.rstrip()}" for line in file.readlines()[-count:]]
    return lines


def find_crashes(folder):
    """Lines of logs that tell of a crash."""
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            if not name.endswith((".jsonl", ".log", "err", "out")):
                continue
            with open(os.path.join(path, name), errors="replace") as file:
                found += [line.rstrip() for line in file if CRASH.search(line)]
    return found
