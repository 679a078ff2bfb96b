#!/usr/bin/env python3
"""Random process faults while `tandem train` runs on one host; the trained bits must not change.

Usage: chaos.py TANDEM [--runs N] [--seed S] [--at-once K] [--only KIND]

From its seed, each run draws a job (MLP, CNN with batch norm and dropout, GPT; replicas: local steps with
compressed averages, gossip, DGC, asynchronous workers), ZeRO 0 to 3 (0 or 1 with replicas), 2 to 6 ranks, and 1 to 5
faults. The kinds of faults:
    point       SIGKILL inside a phase of a step or of a recovery, by TANDEM_TEST_KILL: forward, backward, while the
                state of a replica is written, reduce, during or after the update of an optimiser piece, publish,
                checkpoint and its commit
    worker, workers, agent, launcher   SIGKILL at any time
    stop        a worker is stopped and continued seconds later
    power       all processes are killed, and the run is resumed with another number of ranks
Every run must end by itself and leave no process. The exit code must be 0 unless the launcher was killed; the hash
must be that of an undisturbed run on one rank; the ledger must verify every sample.

A run that fails prints its seed and the command that repeats it. The timing of faults other than `point` differs
between repetitions.
"""
import argparse
import collections
import concurrent.futures
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flock  # noqa: E402
import verdict  # noqa: E402
from verdict import Failure  # noqa: E402

PHASES = ("forward", "backward", "replica", "reduce", "torn", "update", "publish", "checkpoint", "commit", "recover")
STEPS, BATCH = 80, 24
GONE_S = 60  # time for all processes to exit after the launcher
DEATHS = ("worker", "workers", "agent", "launcher", "power")  # kinds that kill processes

JOBS = {
    "mlp": """data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}
model: {hidden: [128, 96], dropout: 0.1}
optim: {kind: lamb, lr: 0.01, ema: 0.9, clip_norm: 0.5}""",
    "cnn": """data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}
layers: [conv: {channels: 16, bias: no}, batch_norm, relu, max_pool: 2, flatten, linear: 64, relu, dropout: 0.2]
optim: {kind: sgd, lr: 0.05, momentum: 0.9, clip_norm: 1}""",
    "gpt": """data: {train: text.txt, format: text, test_fraction: 0.1}
model: {kind: gpt, layers: 2, width: 32, heads: 2, context: 16, dropout: 0.1}
optim: {kind: adamw, lr: 0.003}""",
    "local": """data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}
model: {hidden: [96, 64], dropout: 0.1}
optim: {kind: adamw, lr: 0.003, clip_norm: 0.5}
sync: {kind: local, replicas: 8, period: 5, outer: nesterov}
compress: {quantise: int8, min_elements: 100}""",
    "gossip": """data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}
layers: [conv: {channels: 16, bias: no}, batch_norm, relu, max_pool: 2, flatten, linear: 64, relu, dropout: 0.2]
optim: {kind: adamw, lr: 0.003, clip_norm: 0.5}
sync: {kind: gossip, replicas: 8, period: 5, graph: random, degree: 2}""",
    "dgc": """data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}
layers: [conv: {channels: 16, bias: no}, batch_norm, relu, max_pool: 2, flatten, linear: 64, relu, dropout: 0.2]
optim: {kind: sgd, lr: 0.05, momentum: 0}
sync: {replicas: 8}
compress: {sparsify: topk_sampled, ratio: 0.02, momentum: 0.9, clip_norm: 1, warmup: 20}""",
    "async": """data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}
model: {hidden: [96, 64], dropout: 0.1}
optim: {kind: sgd, lr: 0.05, momentum: 0.9, clip_norm: 0.5}
sync: {kind: server, mode: async, replicas: 8, compensation: 0.04}
compress: {sparsify: topk, ratio: 0.1, min_elements: 100}""",
}
ROUND_STEPS = 5  # a round of `local` and `gossip` has as many steps, and a round of `async` ends after each multiple of it
REPLICA_JOBS = ("local", "gossip", "dgc", "async")
COMMON = f"""seed: 3
train: {{batch: {BATCH}, steps: {STEPS}}}
eval: {{every_epochs: never, every_steps: 12}}
run: {{log_every_steps: 1}}
checkpoint: {{every_epochs: never, every_steps: 5, keep: 2, ledger: true}}
parallel: {{lanes: 8}}
elastic: {{restarts: 100}}
"""


def write_jobs(directory):
    rng = random.Random(7)
    with open(os.path.join(directory, "images.csv"), "w") as out:
        for i in range(96):
            pixels = [str(rng.randrange(256) if (k + i) % 3 else 255) for k in range(64)]
            out.write(",".join(pixels) + f",{i % 3}\n")
    with open(os.path.join(directory, "text.txt"), "w") as out:
        out.write(" ".join(rng.choice(["the", "cat", "sat", "on", "mats"]) for _ in range(600)))
    for name, text in JOBS.items():
        with open(os.path.join(directory, f"{name}.yaml"), "w") as out:
            out.write(f"name: {name}\n{text}\n{COMMON}")


class Fault:
    """One planned fault, and whether it hit something."""

    def __init__(self, rng, kind):
        self.kind = kind
        self.after_s = rng.uniform(0, 0.3)  # since the workers started, or since the previous fault
        self.stop_s = rng.uniform(2, 5)
        self.phase = rng.choice(PHASES)
        self.rank = rng.randrange(2)
        self.choice = rng.random()  # selects the process
        self.step = 0
        self.part = rng.choice([None, None, 0, 1, 2])
        self.done = False

    def kill_point(self, directory, index):
        """The value of TANDEM_TEST_KILL for a fault of kind `point`."""
        part = f":part={self.part}" if self.part is not None and self.phase == "recover" else ""
        step = f":step={self.step}" if self.phase != "recover" else ""
        return f"{self.phase}{step}:rank={self.rank}{part}:file={directory}/hit-{index}"

    def __str__(self):
        missed = "" if self.done else " (missed)"
        if self.kind == "point":
            where = "" if self.phase == "recover" else f" of step {self.step}"
            return f"{self.phase}{where} at rank {self.rank}{missed}"
        return self.kind + missed


class Plan:
    """Everything that is drawn from the seed."""

    def __init__(self, seed, only=None):
        rng = random.Random(seed)
        self.seed = seed
        self.model = rng.choice(sorted(JOBS))
        self.zero = rng.randrange(2 if self.model in REPLICA_JOBS else 4)
        if self.model == "gossip":
            self.zero = 0
        self.ranks = rng.randint(2, 6)
        self.ranks_after = rng.randint(1, 6)  # after a power failure
        self.overlap = rng.choice(["true", "false"])
        kinds = [rng.choices(("point", "worker", "workers", "agent", "launcher", "stop"),
                             (40, 36, 6, 8, 5, 5))[0] for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.08:
            kinds.append("power")
        if only:
            kinds = [only]
        steps = sorted(rng.sample(range(2, STEPS + 1), len(kinds)))
        self.faults = [Fault(rng, kind) for kind in kinds]
        for fault, step in zip(self.faults, steps):
            if fault.phase == "replica" and self.model not in REPLICA_JOBS:
                fault.phase = "backward"
            fault.step = self.step_of_phase(fault.phase, step)
        self.spare(only)

    def step_of_phase(self, phase, step):
        """The number by which a process knows a step near `step` when it reaches the phase: that of a checkpoint, of
        the round, or of the first step of a round."""
        if phase in ("checkpoint", "commit"):
            return max(5, step // 5 * 5)
        if self.model in ("local", "gossip"):
            return (step - 1) // ROUND_STEPS + 1  # the number of the round
        return (step - 1) // ROUND_STEPS * ROUND_STEPS + 1 if self.model == "async" else step

    def spare(self, only):
        """Replaces faults that would hit nothing or leave no process that can continue."""
        kinds = [fault.kind for fault in self.faults]
        for i, fault in enumerate(self.faults):
            again = fault.kind in ("agent", "launcher") and fault.kind in kinds[:i]
            # Without an agent, dead workers are not restarted.
            orphans = "agent" in kinds and (fault.kind == "workers" or
                                            (fault.kind == "agent" and len(kinds) > self.ranks - 1))
            if not only and (again or orphans):
                fault.kind = kinds[i] = "worker" if self.ranks > len(kinds) else "point"
        if "agent" in kinds and not only:
            del self.faults[max(1, self.ranks - 1):]

    def __str__(self):
        what = ", ".join(map(str, self.faults))
        return f"{self.model}, ZeRO {self.zero}, {self.ranks} ranks: {what}"


class Run:
    def __init__(self, plan, tandem, jobs_directory, want, limit_s):
        self.plan = plan
        self.tandem = tandem
        self.want = want
        self.limit_s = limit_s
        self.mark = f"{os.getpid()}-{plan.seed}-{random.SystemRandom().randrange(1 << 30)}"
        self.directory = tempfile.mkdtemp(prefix=f"chaos-{plan.seed}-")
        self.job = os.path.join(jobs_directory, f"{plan.model}.yaml")
        self.runs = os.path.join(self.directory, "runs")
        self.deadline = time.monotonic() + limit_s
        self.said = ""

    def environment(self, again):
        points = [fault.kill_point(self.directory, i) for i, fault in enumerate(self.plan.faults)
                  if fault.kind == "point" and not again]
        env = dict(os.environ, CHAOS_MARK=self.mark, OMP_NUM_THREADS="1", TANDEM_ELASTIC="1",
                   TANDEM_RUNTIME=os.path.join(self.directory, "runtime"))
        if points:
            env["TANDEM_TEST_KILL"] = ",".join(points)
        return env

    def start(self, words, again=False):
        sets = {"parallel.zero": self.plan.zero, "parallel.overlap": self.plan.overlap}
        command = [self.tandem, "train", *words, "-q", "--json"]
        for key, value in sets.items():
            command += ["--set", f"{key}={value}"]
        with open(os.path.join(self.directory, "out"), "w") as out, \
                open(os.path.join(self.directory, "err"), "a") as err:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    env=self.environment(again), start_new_session=True)

    def read(self, name):
        try:
            with open(os.path.join(self.directory, name)) as file:
                return file.read()
        except OSError:
            return ""

    # ---- faults ----------------------------------------------------------------------------------------

    def strike(self, fault, launcher):
        """Executes one fault from outside. Returns whether it hit something."""
        if fault.kind == "power":
            flock.end_all(self.mark)
            return True
        if fault.kind == "launcher":
            launcher.kill()
            return True
        role = "agent" if fault.kind == "agent" else "worker"
        found = sorted(flock.find_role(self.mark, role), key=lambda p: p.pid)
        if not found:
            return False
        if fault.kind == "workers":
            return any([p.send(signal.SIGKILL) for p in found])
        victim = found[int(fault.choice * len(found))]
        if fault.kind == "stop":
            hit = victim.send(signal.SIGSTOP)
            wake = threading.Timer(fault.stop_s, victim.send, [signal.SIGCONT])
            wake.daemon = True
            wake.start()
            return hit
        return victim.send(signal.SIGKILL)

    def trouble(self, launcher):
        """Executes all faults from outside, in order, as long as the run is active."""
        flock.wait_for(self.mark, "worker", 2, 10)
        for fault in self.plan.faults:
            if fault.kind == "point":
                continue
            end = time.monotonic() + fault.after_s
            while time.monotonic() < end:
                if launcher.poll() is not None and not flock.find_role(self.mark, "worker"):
                    return  # the run ended first
                time.sleep(0.005)
            if fault.kind != "launcher" or launcher.poll() is None:
                fault.done = self.strike(fault, launcher)

    # ---- a run -------------------------------------------------------------------------------------

    def finish(self, launcher):
        """Waits until all processes ended. Returns the launcher's exit code, None if it was killed."""
        by_us = any(b.done and b.kind in ("launcher", "power") for b in self.plan.faults)
        try:
            code = launcher.wait(max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failure(f"timed out after {self.limit_s} s") from None
        # Training continues without a launcher; if the launcher has ended by itself, all others exit soon.
        left = flock.wait_until_gone(self.mark, max(1, self.deadline - time.monotonic())
                                     if by_us else GONE_S)
        if left:
            raise Failure("processes are left: " + ", ".join(map(str, left)))
        return None if by_us and code < 0 else code

    def check(self, code):
        if code not in (None, 0):
            raise Failure(f"exit code {code}")
        directory = verdict.run_directory(self.runs)
        words = self.read("out").splitlines()
        if code == 0 and words:  # rank 0 may have died at the end, before it printed the result
            got = json.loads(words[-1])["hash"]
            if got != self.want:
                raise Failure(f"wrong hash {got}, expected {self.want}")
        verdict.check_hash(self.tandem, directory, STEPS, self.want)
        verdict.check_ledger(self.tandem, directory, STEPS)

    def resume(self):
        """Resumes from the newest valid checkpoint after a power failure, with another number of ranks."""
        names = os.listdir(self.runs) if os.path.isdir(self.runs) else []
        saved = [n for n in names if glob.glob(os.path.join(self.runs, n, "checkpoints", "step-*"))]
        count = str(self.plan.ranks_after)
        if saved:
            words = ["--resume", os.path.join(self.runs, saved[0]), "-n", count]
        else:  # no checkpoint was written yet
            shutil.rmtree(self.runs, ignore_errors=True)
            words = [self.job, "-n", count, "--set", f"run.dir={self.runs}"]
        again = self.start(words, again=True)
        code = again.wait(self.limit_s)
        if flock.wait_until_gone(self.mark, GONE_S):
            raise Failure("processes are left after the resumed run")
        return code

    def execute(self):
        launcher = self.start([self.job, "-n", str(self.plan.ranks), "--set",
                               f"run.dir={self.runs}"])
        try:
            self.trouble(launcher)
            code = self.finish(launcher)
            for i, fault in enumerate(self.plan.faults):
                if fault.kind == "point":
                    fault.done = os.path.exists(os.path.join(self.directory, f"hit-{i}"))
            if any(b.done and b.kind == "power" for b in self.plan.faults):
                code = self.resume()
            self.check(code)
        finally:
            flock.end_all(self.mark)
            launcher.wait()

    def words(self):
        """The last lines of the output and logs, for diagnosis."""
        lines = self.read("err").splitlines()[-15:] + verdict.tail(self.runs)
        return "\n".join("    " + line for line in lines)


def reference(tandem, directory, name):
    command = [tandem, "train", os.path.join(directory, f"{name}.yaml"), "-n", "1", "-q", "--json",
               "--set", f"run.dir={os.path.join(directory, 'undisturbed')}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"chaos: {name} fails without faults: {done.stderr}")
    said = json.loads(done.stdout.splitlines()[-1])
    check = subprocess.run([tandem, "ledger", said["run"]], capture_output=True, text=True,
                           timeout=300)
    if check.returncode != 0:
        sys.exit(f"chaos: {name}: the undisturbed run's ledger is wrong: "
                 f"{check.stdout}{check.stderr}")
    return said["hash"]


def one(plan, args, jobs_directory, wants):
    run = Run(plan, args.tandem, jobs_directory, wants[plan.model], args.limit)
    begin = time.monotonic()
    try:
        run.execute()
    except (Failure, OSError, ValueError, LookupError, subprocess.TimeoutExpired) as failure:
        again = f"{sys.argv[0]} {args.tandem} --runs 1 --seed {plan.seed}"
        if args.only:
            again += f" --only {args.only}"
        return plan, f"{failure}\n{run.words()}\n    repeat: {again}\n    files: {run.directory}"
    shutil.rmtree(run.directory, ignore_errors=True)
    return plan, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("tandem")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; each further run adds 1")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds for a run")
    parser.add_argument("--only", help="draw one fault, of this kind: " +
                        ", ".join(("point", "stop") + DEATHS))
    args = parser.parse_args()
    args.tandem = os.path.abspath(args.tandem)
    failures, hits, missed = 0, collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="chaos-jobs-") as directory:
        write_jobs(directory)
        wants = {name: reference(args.tandem, directory, name) for name in JOBS}
        plans = [Plan(args.seed + i, args.only) for i in range(args.runs)]
        with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            for plan, result in pool.map(lambda p: one(p, args, directory, wants), plans):
                good = isinstance(result, float)
                failures += not good
                print(f"ok   seed {plan.seed}: {plan}: {result:.1f} s" if good else
                      f"FAIL seed {plan.seed}: {plan}: {result}", flush=True)
                for fault in plan.faults:
                    hits[fault.phase if fault.kind == "point" else fault.kind] += fault.done
                    missed += not fault.done
    told = ", ".join(f"{name} {count}" for name, count in sorted(hits.items()))
    print(f"{args.runs} runs, {failures} failed; faults that hit: {told}; {missed} missed")
    if args.runs >= 20 and sum(hits.values()) < args.runs // 2:
        sys.exit("chaos: most faults missed; the test is invalid")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
