#!/usr/bin/env python3
"""Random faults in training runs on two or three hosts; the trained bits must not change.

Usage: hosts.py TANDEM [--runs N] [--seed S] [--schedule I] [--at-once K] [--limit SECONDS] [--only KIND]

The hosts are network namespaces, each with a real etcd member (lab.py); agents are started as by ssh. From the
seed and its number, a schedule draws a job (three perceptrons; replicas with local steps, top-k, DGC or asynchronous
updates), ZeRO 0 to 3 with or without a mirror (0 or 1 with replicas), one or two workers per host, whether checkpoints
are written, and 1 to 5 faults at random steps. The faults:
    a worker is killed or stopped, killed again when it is back, or killed at a point of a step or a recovery;
    all workers of a host, an agent or the launcher are killed;
    a whole host dies, and returns with empty memory or not at all;
    a link is cut and repaired, or two hosts cannot reach each other while both reach the store;
    an etcd member is killed, often the leader; the disk is full for a while.
Every training run must end by itself, without a crash and without a process left. The exit code must be 0 unless
the launcher was killed; the hash must be that of an undisturbed run in one process; the ledger must be exact;
every step must have one line of metrics, and every repeated step a line in the log. A job with local steps has one
line for the steps of a round.

Exceptions: a killed launcher has no exit code. One host keeps its agent, because training ends when no agent and
no worker is left. If the disk is full at the end, the run fails, as documented, and --resume must complete it.

A schedule that fails prints the command that repeats it. A repetition strikes at the same steps; the exact timing
differs. Without root, ip or etcd the program prints the reason and exits with code 77.
"""
import argparse
import collections
import concurrent.futures
import heapq
import itertools
import json
import math
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flock  # noqa: E402
import lab as labs  # noqa: E402
import verdict  # noqa: E402
from verdict import Failure  # noqa: E402

# How often each kind of fault is drawn.
KINDS = {"worker": 18, "stop": 8, "return": 16, "workers": 8, "point": 8, "agent": 7, "launcher": 2,
         "host": 10, "cut": 14, "part": 6, "etcd": 8, "disk": 7}
# How long a fault lasts, in seconds (log-uniform), until it is repaired, continued or started again.
LASTS_S = {"stop": (0.2, 12), "agent": (0.1, 5), "host": (0.3, 15), "cut": (0.1, 60), "part": (0.1, 60),
           "etcd": (0.1, 15), "disk": (0.1, 6)}
PHASES = ("forward", "backward", "replica", "reduce", "torn", "update", "publish", "checkpoint", "commit", "recover")
GONE_S = 90  # time for all processes to exit, after training has ended and all faults are repaired
WAIT_S = 50  # maximum cost of a fault: members wait up to 45 s for a host with the newest state
JOIN_TRIES = 6

ADAMW = "optim: {kind: adamw, lr: 0.003}"
JOBS = {
    "small": (f"model: {{hidden: [64, 64]}}\ntrain: {{batch: 24, steps: 800}}\n{ADAMW}", 800),
    "wide": (f"model: {{hidden: [256, 192], dropout: 0.1}}\ntrain: {{batch: 48, steps: 500}}\n{ADAMW}", 500),
    "long": (f"model: {{hidden: [32]}}\ntrain: {{batch: 16, steps: 1600}}\n{ADAMW}", 1600),
    "local": (f"""model: {{hidden: [64, 64]}}
train: {{batch: 24, steps: 1600}}
{ADAMW}
sync: {{kind: local, replicas: 8, period: 4, outer: nesterov}}
compress: {{quantise: int8, min_elements: 100}}""", 1600),
    "topk": (f"""model: {{hidden: [64, 64]}}
train: {{batch: 24, steps: 800}}
{ADAMW}
sync: {{replicas: 8}}
compress: {{sparsify: topk, ratio: 0.05, min_elements: 100}}""", 800),
    "dgc": ("""model: {hidden: [256, 192], dropout: 0.1}
train: {batch: 48, steps: 500}
optim: {kind: sgd, lr: 0.05, momentum: 0}
sync: {replicas: 8}
compress: {sparsify: topk_sampled, ratio: 0.02, momentum: 0.9, clip_norm: 1, warmup: 200}""", 500),
    "async": (f"""model: {{hidden: [64, 64]}}
train: {{batch: 24, steps: 800}}
{ADAMW}
sync: {{kind: server, mode: async, replicas: 8, compensation: 0.04}}""", 800),
}
REPLICA_JOBS = ("local", "topk", "dgc", "async")
ROUND_STEPS = {"local": 4}  # steps that a job executes together; lines of metrics and of the ledger are for a round
COMMON = """seed: 7
data: {train: data.csv, test_fraction: 0.1}
eval: {every_epochs: never, every_steps: 100}
parallel: {lanes: 8}
checkpoint: {every_epochs: never, ledger: true}
run: {log_every_steps: 1}
elastic: {restarts: 100}
store: etcd
"""


def write_jobs(directory, endpoints):
    rng = random.Random(4)
    with open(os.path.join(directory, "data.csv"), "w") as out:
        for i in range(300):
            values = [f"{(1.5 if k == i % 3 else 0) + rng.random():.3f}" for k in range(5)]
            out.write(",".join(values) + f",{i % 3}\n")
    for name, (text, _) in JOBS.items():
        with open(os.path.join(directory, f"{name}.yaml"), "w") as out:
            out.write(f'name: {name}\n{text}\n{COMMON}etcd: {{endpoints: "{endpoints}"}}\n')


# ---- schedules -------------------------------------------------------------------------------------------

SECRET = "of-these-schedules"  # `tandem join` needs it: it is not in the store


class Fault:
    """One planned fault, and whether it hit something."""

    def __init__(self, rng, kind, steps, hosts):
        low, high = LASTS_S.get(kind, (1, 1))
        self.kind = kind
        self.step = rng.randrange(1, max(2, int(0.9 * steps)))
        self.wait_s = rng.uniform(0.3, 6)  # since the previous fault, if the step is not reached
        self.last_s = math.exp(rng.uniform(math.log(low), math.log(high)))
        self.host = rng.choice(hosts)
        self.other = rng.choice([host for host in hosts if host != self.host])
        self.choice = rng.random()  # selects a process or an etcd member
        self.returns = True  # the host gets an agent again
        self.again = rng.random() < 0.4  # a second fault follows its return
        self.again_s = math.exp(rng.uniform(math.log(0.001), math.log(1.5)))  # since its return
        self.again_what = rng.choices(("returner", "other", "cut"), (60, 25, 15))[0]
        self.phase = rng.choice(PHASES)
        self.part = rng.choice([None, None, 0, 1, 2])
        self.done = False

    def kill_point(self, path):
        """The value of TANDEM_TEST_KILL for a fault of kind `point`."""
        part = f":part={self.part}" if self.part is not None and self.phase == "recover" else ""
        step = f":step={self.step}" if self.phase != "recover" else ""
        return f"{self.phase}{step}{part}:file={path}"

    def __str__(self):
        missed = "" if self.done else " (missed)"
        lasts = f" for {self.last_s:.1f} s" if self.kind in LASTS_S else ""
        where = f" of host {self.host}"
        if self.kind in ("agent", "host") and not self.returns:
            lasts = " permanently"
        if self.kind == "etcd":
            where = ", the leader" if self.choice < 0.5 else f" of host {1 + int(6 * self.choice) % 3}"
        if self.kind in ("disk", "launcher"):
            where = ""
        if self.kind == "part":
            where = f" hosts {self.host} and {self.other}"
        if self.kind == "return" or (self.kind == "host" and self.again and self.returns):
            lasts += f", {self.again_what} again {self.again_s:.3f} s after its return"
        if self.kind == "point":
            return f"{self.phase} at a worker{where}, step {self.step}{missed}"
        return f"{self.kind}{where}{lasts} at step {self.step}{missed}"


class Plan:
    def __init__(self, seed, index, only=None):
        rng = random.Random(f"{seed}/{index}")
        self.seed = seed
        self.index = index
        self.job = rng.choice(sorted(JOBS))
        self.steps = JOBS[self.job][1]
        self.hosts = list(labs.HOSTS[:rng.choice((2, 3, 3))])
        self.workers = {host: rng.choice((1, 2)) for host in self.hosts}
        self.round_steps = ROUND_STEPS.get(self.job, 1)
        zeros = (0,) if self.job == "async" else (0, 1) if self.job in REPLICA_JOBS else (0, 0, 1, 1, 2, 3)
        self.zero = rng.choice(zeros)
        self.mirror = self.zero > 0 and rng.random() < 0.5
        self.every = rng.choice(("never", "20", "60", "60"))
        self.early = rng.random() < 0.1  # the first fault does not wait for a step
        kinds = rng.choices(list(KINDS), KINDS.values(), k=rng.randint(1, 5))
        self.faults = [Fault(rng, only or kind, self.steps, self.hosts) for kind in kinds]
        self.faults.sort(key=lambda fault: fault.step)
        self.spare(rng)

    def spare(self, rng):
        """Changes faults so that the run can continue. One host keeps its agent. At most one host never returns, so
        that etcd keeps a majority. The launcher and a point are struck at most once."""
        keeps = rng.choice(self.hosts)
        others = [host for host in self.hosts if host != keeps]
        seen, for_good = set(), 0
        for fault in self.faults:
            if fault.kind in ("agent", "host"):
                if fault.host == keeps:
                    fault.host = rng.choice(others)
                fault.returns = rng.random() < 0.7 or for_good > 0
                for_good += not fault.returns
            if fault.kind in ("point", "launcher") and fault.kind in seen:
                fault.kind = "worker"
            seen.add(fault.kind)
            if fault.kind == "point" and fault.phase in ("checkpoint", "commit"):  # move it to a step with a checkpoint
                every = int(self.every) if self.every != "never" else self.steps
                fault.step = max(every, fault.step // every * every)
            elif fault.kind == "point":  # processes know the number of the round
                fault.step = (fault.step - 1) // self.round_steps + 1
                if fault.phase == "replica" and self.job not in REPLICA_JOBS:
                    fault.phase = "backward"
        # A run cannot start on a full disk; this is correct behaviour, so the disk fills later.
        self.early = self.early and self.faults[0].kind != "disk"

    def allowance_s(self):
        """The time that the faults may cost."""
        lasting = sum(fault.last_s for fault in self.faults if fault.kind in LASTS_S)
        return lasting + WAIT_S * len(self.faults)

    def __str__(self):
        workers = "+".join(str(self.workers[host]) for host in self.hosts)
        mirror = " with mirror" if self.mirror else ""
        early = "early: " if self.early else ""
        return (f"{self.job}, ZeRO {self.zero}{mirror}, {workers} workers, checkpoints {self.every}: "
                f"{early}{'; '.join(map(str, self.faults))}")


# ---- one run ---------------------------------------------------------------------------------------------


class Run:
    def __init__(self, plan, lab, args, jobs_directory, want):
        self.plan = plan
        self.lab = lab
        self.args = args
        self.jobs_directory = jobs_directory
        self.want = want
        self.name = f"c{plan.seed}x{plan.index}"
        self.mark = f"{os.getpid()}-{self.name}-{random.SystemRandom().randrange(1 << 30)}"
        self.directory = os.path.join(lab.directory, f"run-{plan.index}")
        self.runs = os.path.join(lab.disk, "runs")
        self.timers, self.order = [], itertools.count()
        self.over = threading.Event()
        self.returns = []  # (host, processes before, fault): restarted workers that are expected
        self.joins = []  # [process, host, tries]
        self.step = 0
        self.drops = []
        self.ledger_path = None
        self.launcher = None
        self.launcher_struck = False
        self.disk_was_full = self.disk_is_full = self.full_at_end = False
        self.last_mend = 0.0
        os.makedirs(self.directory)

    # ---- starting ----------------------------------------------------------------------------------------

    def environment(self):
        here = os.path.dirname(os.path.abspath(__file__))
        spaces = " ".join(f"{labs.address(host)}={self.lab.space(host)}" for host in labs.HOSTS)
        env = dict(os.environ, CHAOS_MARK=self.mark, NET_HOSTS=spaces,
                   TANDEM_SSH=os.path.join(here, "..", "net", "as-ssh"),
                   TANDEM_RUNTIME=os.path.join(self.directory, "runtime"), TANDEM_SECRET=SECRET,
                   NET_RUNTIME=os.path.join(self.directory, "runtimes"))
        for fault in self.plan.faults:
            if fault.kind == "point":
                env["NET_STRUCK"] = labs.address(fault.host)
                env["NET_WISH"] = fault.kill_point(os.path.join(self.directory, "hit"))
        return env

    def spawn(self, name, words):
        """Starts a process whose output goes to files with this name as prefix."""
        with open(os.path.join(self.directory, f"{name}out"), "a") as out, \
                open(os.path.join(self.directory, f"{name}err"), "a") as err:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    cwd=self.jobs_directory, env=self.environment(), start_new_session=True)

    def start(self):
        plan = self.plan
        hosts = ",".join(f"{labs.address(host)}:{plan.workers[host]}" for host in plan.hosts)
        sets = {"name": self.name, "run.dir": self.runs, "parallel.zero": plan.zero,
                "elastic.mirror": str(plan.mirror).lower(), "checkpoint.every_steps": plan.every}
        if self.args.transport:
            sets["comm.transport"] = self.args.transport
        words = ["ip", "netns", "exec", self.lab.space(1), self.args.tandem, "train", f"{plan.job}.yaml",
                 "-q", "--json", "--hosts", hosts, "--remote-tandem", self.args.tandem]
        for key, value in sets.items():
            words += ["--set", f"{key}={value}"]
        shutil.rmtree(self.runs, ignore_errors=True)
        for host in labs.HOSTS:
            os.makedirs(os.path.join(self.directory, "runtimes", self.lab.space(host)), mode=0o700)
        self.launcher = self.spawn("", words)

    # ---- observation -----------------------------------------------------------------------------------

    def read_step(self):
        """Reads the last step from the ledger. A smaller step than before means that steps are repeated."""
        if not self.ledger_path:
            name = os.path.join(self.runs, f"{self.name}-1", "ledger.jsonl")
            self.ledger_path = name if os.path.exists(name) else None
        try:
            with open(self.ledger_path or "", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 400))
                lines = file.read().rpartition(b"\n")[0].splitlines()
            step = json.loads(lines[-1])["step"]
        except (OSError, ValueError, LookupError):
            return
        if step < self.step:
            self.drops.append((self.step, step))
        self.step = step

    def follow_ledger(self):
        """Polls the ledger in a separate thread, because repeated steps may take a few milliseconds only."""
        while not self.over.wait(0.005):
            self.read_step()

    def workers(self, host=None):
        names = [labs.address(host)] if host else list(map(labs.address, self.plan.hosts))
        found = [p for p in flock.find_role(self.mark, "worker") if p.host in names]
        return sorted(found, key=lambda process: process.pid)

    def is_active(self):
        return self.launcher.poll() is None or (self.launcher_struck and bool(flock.find(self.mark)))

    # ---- faults ------------------------------------------------------------------------------------------

    def later(self, after_s, call, *words):
        """Calls `call` after a delay. Processes may still exist until the last of these calls has run."""
        at = time.monotonic() + after_s
        self.last_mend = max(self.last_mend, at)
        heapq.heappush(self.timers, (at, next(self.order), call, words))

    def strike(self, fault):
        """Executes a fault. Returns whether it hit something."""
        lab = self.lab
        if fault.kind == "cut":
            lab.cut(fault.host)
            self.later(fault.last_s, lab.mend, fault.host)
        elif fault.kind == "part":
            lab.part(fault.host, fault.other)
            self.later(fault.last_s, lab.join, fault.host, fault.other)
        elif fault.kind == "disk":
            if self.step == 0:
                return False
            self.disk_was_full = self.disk_is_full = True
            lab.fill()
            self.later(fault.last_s, self.make_room)
        elif fault.kind == "etcd":
            host = 1 + int(6 * fault.choice) % 3
            if fault.choice < 0.5:
                host = lab.leader() or host
            lab.kill_member(host)
            self.later(fault.last_s, lab.start_member, host)
        elif fault.kind == "launcher":
            self.launcher_struck = True
            self.launcher.kill()
        elif fault.kind == "host":
            self.kill_host(fault)
        else:
            return self.strike_process(fault)
        return True

    def make_room(self):
        self.lab.make_room()
        self.disk_is_full = False

    def kill_host(self, fault):
        if fault.host == 1:
            self.launcher_struck = True
        self.lab.kill_host(fault.host)
        if not fault.returns:
            return
        self.later(fault.last_s, self.lab.start_member, fault.host)
        self.later(fault.last_s + 0.01, self.join, fault.host)
        if fault.again:
            self.returns.append((fault.host, set(), fault))

    def strike_process(self, fault):
        if fault.kind == "agent":
            address = labs.address(fault.host).encode()
            found = [p for p in flock.find_role(self.mark, "agent") if address in p.words]
            if found and fault.returns:
                self.later(fault.last_s, self.join, fault.host)
            return any([process.send(signal.SIGKILL) for process in found])
        found = self.workers(fault.host)
        if not found:
            return False
        if fault.kind == "workers":
            return any([process.send(signal.SIGKILL) for process in found])
        victim = found[int(fault.choice * len(found))]
        if fault.kind == "stop":
            self.later(fault.last_s, victim.send, signal.SIGCONT)
            return victim.send(signal.SIGSTOP)
        if fault.kind == "return":
            self.returns.append((fault.host, {process.pid for process in found}, fault))
        return victim.send(signal.SIGKILL)

    def join(self, host):
        """Starts workers with `tandem join` on a host that is back or has lost its agent."""
        if self.is_active():
            self.joins.append([self.start_join(host, 0), host, 1])

    def start_join(self, host, tries):
        words = [self.args.tandem, "join", self.name, "-n", str(self.plan.workers[host]), "--host",
                 labs.address(host), "--store", f"etcd:{self.lab.endpoints}"]
        command = f"TANDEM_SECRET={SECRET} exec " + " ".join(f"'{word}'" for word in words)
        return self.spawn(f"join-{host}-{tries}-", [self.environment()["TANDEM_SSH"], labs.address(host), command])

    def look_at_joins(self):
        """Repeats a failed `tandem join`: the store may not answer yet, or the host may be dead again."""
        for entry in self.joins:
            process, host, tries = entry
            if process and process.poll() is not None:
                entry[0] = None
                if process.returncode > 0 and tries < JOIN_TRIES and self.launcher.poll() is None:
                    entry[2] += 1
                    self.later(0.5, self.join_again, entry)

    def join_again(self, entry):
        if self.is_active():
            entry[0] = self.start_join(entry[1], entry[2])

    def look_at_returns(self):
        """Strikes again when a worker is back."""
        for entry in list(self.returns):
            host, before, fault = entry
            back = [process for process in self.workers(host) if process.pid not in before]
            if not back:
                continue
            self.returns.remove(entry)
            others = [p for p in self.workers() if p.pid != back[0].pid]
            if fault.again_what == "cut":
                self.later(fault.again_s, self.lab.cut, host)
                self.later(fault.again_s + fault.choice, self.lab.mend, host)
            else:
                use = others if fault.again_what == "other" and others else back
                victim = use[int(fault.choice * len(use))]
                self.later(fault.again_s, victim.send, signal.SIGKILL)

    # ---- a run -----------------------------------------------------------------------------------------

    def run_timers(self):
        while self.timers and self.timers[0][0] <= time.monotonic():
            _, _, call, words = heapq.heappop(self.timers)
            call(*words)

    def watch(self):
        """Executes all faults and waits until no process is left."""
        begin = time.monotonic()
        deadline = begin + self.args.limit + self.plan.allowance_s()
        faults = collections.deque(f for f in self.plan.faults if f.kind != "point")
        last_s, look_at, ended_at = begin, 0.0, None
        while True:
            self.run_timers()
            now = time.monotonic()
            running = self.launcher.poll() is None
            if faults and (running or self.launcher_struck):
                is_due = self.step >= faults[0].step
                if last_s > begin or self.plan.early:
                    is_due = is_due or now - last_s > faults[0].wait_s
                if is_due:
                    fault = faults.popleft()
                    fault.done = self.strike(fault)
                    last_s = time.monotonic()
            if self.returns:
                self.look_at_returns()
            self.look_at_joins()
            if not running and now >= look_at:
                left = flock.find(self.mark)
                look_at = now + 0.1
                if not left:
                    self.full_at_end = self.full_at_end or self.disk_is_full
                    return
                if self.disk_is_full and not any(p.role == "worker" for p in left):
                    self.full_at_end = True
                ended_at = ended_at or now
                if not self.launcher_struck and now > max(self.last_mend, ended_at) + GONE_S:
                    raise Failure("processes are left: " + ", ".join(map(str, left)))
            if now > deadline:
                raise Failure(f"timed out after {now - begin:.0f} s, at step {self.step}")
            time.sleep(0.01)

    def read(self, name):
        try:
            with open(os.path.join(self.directory, name), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def failed_as_documented(self, code):
        """Whether the last checkpoint did not fit on the disk. A killed launcher cannot report it."""
        if self.launcher_struck and code < 0:
            return self.full_at_end
        last = re.compile(rf"step-{self.plan.steps:012d}\.safetensors.*No space left")
        return self.disk_was_full and code == 1 and bool(last.search(self.read("err")))

    def resume(self):
        """Completes a run whose last checkpoint did not fit. Returns False if it has no checkpoint."""
        self.lab.make_room()
        directory = verdict.run_directory(self.runs)
        if not any(name.startswith("step-") for name in os.listdir(os.path.join(directory, "checkpoints"))):
            return False
        verdict.ask(self.args.tandem, "train", "--resume", directory, "-n", "1", "-q", limit_s=self.args.limit)
        return True

    def check(self):
        code = self.launcher.returncode
        if self.failed_as_documented(code):
            if not self.resume():
                return
        elif code != 0 and not (self.launcher_struck and code < 0):
            raise Failure(f"exit code {code}")
        words = self.read("out").splitlines()
        if code == 0 and words:  # rank 0 may have died at the end, before it printed the result
            got = json.loads(words[-1])["hash"]
            if got != self.want:
                raise Failure(f"wrong hash {got}, expected {self.want}")
        directory = verdict.run_directory(self.runs)
        verdict.check_hash(self.args.tandem, directory, self.plan.steps, self.want)
        verdict.check_ledger(self.args.tandem, directory, self.plan.steps)
        verdict.check_metrics(directory, self.plan.steps, self.plan.round_steps, may_miss=self.disk_was_full)
        verdict.check_going_back(directory, self.drops, self.plan.round_steps)
        crashes = self.crashes()
        if crashes:
            raise Failure(f"a process crashed: {crashes[0]}")

    def crashes(self):
        return verdict.find_crashes(self.directory) + verdict.find_crashes(self.runs)

    def execute(self):
        try:
            self.start()
            threading.Thread(target=self.follow_ledger, daemon=True).start()
            self.watch()
            self.over.set()
            for fault in self.plan.faults:
                if fault.kind == "point":
                    fault.done = os.path.exists(os.path.join(self.directory, "hit"))
            self.check()
        finally:
            self.over.set()
            for process in flock.find(self.mark):
                process.send(signal.SIGCONT)
            flock.end_all(self.mark)
            if self.launcher:
                self.launcher.wait()
            for process, _, _ in self.joins:
                if process:
                    process.wait()

    def words(self):
        """The last lines of the output and logs, for diagnosis."""
        lines = self.read("err").splitlines()[-15:] + verdict.tail(self.runs, 15) + self.crashes()[:5]
        return "\n".join("    " + line[:400] for line in lines)

    def keep(self):
        """Copies the files of the run to a directory that survives the hosts."""
        kept = tempfile.mkdtemp(prefix=f"chaos-hosts-{self.name}-")
        for source, name in ((self.runs, "runs"), (self.directory, "files")):
            shutil.copytree(source, os.path.join(kept, name), symlinks=True, dirs_exist_ok=True,
                            ignore=lambda directory, names: [n for n in names if n.endswith(".lines")])
        return kept


# ---- main ------------------------------------------------------------------------------------------------


def reference(args, directory, name):
    done = subprocess.run([args.tandem, "train", f"{name}.yaml", "-n", "1", "-q", "--json", "--set",
                           "run.dir=undisturbed"], capture_output=True, text=True, timeout=300, cwd=directory)
    if done.returncode != 0:
        sys.exit(f"hosts: {name} fails without faults: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["hash"]


def one(plan, args, pool, jobs_directory, wants):
    """Runs one schedule. Returns (plan, error or None, seconds, repeated steps)."""
    lab = pool.get()
    begin = time.monotonic()
    run = Run(plan, lab, args, jobs_directory, wants[plan.job])
    wrong = None
    try:
        try:
            run.execute()
        except (Failure, OSError, ValueError, LookupError, RuntimeError,
                subprocess.TimeoutExpired) as failure:
            again = f"{sys.argv[0]} {args.tandem} --seed {plan.seed} --schedule {plan.index}"
            again += f" --only {args.only}" if args.only else ""
            again += f" --transport {args.transport}" if args.transport else ""
            wrong = f"{failure}\n{run.words()}\n    repeat: {again}\n    files: {run.keep()}"
        shutil.rmtree(run.directory, ignore_errors=True)
        lab.heal()
    finally:
        pool.put(lab)
    again = sum(high - low for high, low in run.drops if low < high - plan.round_steps)
    return plan, wrong, time.monotonic() - begin, again


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("tandem")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedule", type=int, help="run this schedule only")
    parser.add_argument("--first", type=int, default=0, help="the number of the first schedule")
    parser.add_argument("--at-once", type=int, default=2, help="schedules in parallel, on separate hosts")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a schedule without faults")
    parser.add_argument("--only", choices=sorted(KINDS), help="use faults of this kind only")
    parser.add_argument("--transport", help="comm.transport of the jobs")
    args = parser.parse_args()
    args.tandem = os.path.abspath(args.tandem)
    return args


def run_all(args, directory):
    plans = [Plan(args.seed, args.first + i, args.only) for i in range(args.runs)]
    if args.schedule is not None:
        plans = [Plan(args.seed, args.schedule, args.only)]
    count = min(args.at_once, len(plans))
    hits, missed, failures, went_back = collections.Counter(), 0, 0, 0
    pool, made = queue.Queue(), []
    try:
        for i in range(count):
            os.makedirs(os.path.join(directory, f"lab-{i}"))
            made.append(labs.Lab(f"tdmc{os.getpid()}-{i}", os.path.join(directory, f"lab-{i}")))
            pool.put(made[-1])
        write_jobs(directory, made[0].endpoints)
        wants = {name: reference(args, directory, name) for name in JOBS}
        with concurrent.futures.ThreadPoolExecutor(count) as threads:
            tasks = [threads.submit(one, plan, args, pool, directory, wants) for plan in plans]
            for task in concurrent.futures.as_completed(tasks):
                plan, wrong, took_s, again = task.result()
                failures += wrong is not None
                went_back += again > 0
                note = f", {again} steps repeated" if again else ""
                print(f"ok   {plan.index}: {plan}: {took_s:.1f} s{note}" if not wrong else
                      f"FAIL {plan.index}: {plan}: {wrong}{note}", flush=True)
                for fault in plan.faults:
                    hits[fault.kind] += fault.done
                    missed += not fault.done
    finally:
        for lab in made:
            lab.close()
    told = ", ".join(f"{name} {count}" for name, count in sorted(hits.items()))
    print(f"seed {args.seed}: {len(plans)} schedules, {failures} failed; faults that hit: {told}; {missed} missed; "
          f"{went_back} repeated steps, as logged")
    if len(plans) >= 20 and sum(hits.values()) < len(plans):
        sys.exit("hosts: most faults missed; the test is invalid")
    return failures


def main():
    args = parse()
    why = labs.missing()
    if why:
        print(f"SKIPPED: {why}; faults on several hosts are not tested")
        sys.exit(77)
    labs.enter_private()
    with tempfile.TemporaryDirectory(prefix="chaos-hosts-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0700", "chaos", directory], check=True)
        try:
            failures = run_all(args, directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
