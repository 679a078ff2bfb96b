"""Shared by the benchmarks: rows with targets, commands that print JSON, data, and hosts on a network.

Every target is a ratio of figures that were measured alternately, in one session, so other load on the machine
slows down both sides. Not a program; bench/compute, bench/comm and bench/parallel are.
"""

import argparse
import json
import os
import random
import secrets
import signal
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DATA = os.path.join(ROOT, "build", "bench")
PEERS = os.path.join(HERE, "peers")
DEBIAN_PYTHON = "/usr/bin/python3"  # Debian's PyTorch belongs to Debian's Python
LIMIT_S = 600  # for any one command


def torch_python():
    """The Python of the newest PyTorch, which `tools/setup --bench` installs; without it Debian's."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    venv = os.environ.get("TANDEM_TORCH_VENV") or os.path.join(cache, "tandem", "venv-torch")
    is_ready = os.path.exists(os.path.join(venv, "ready"))
    return os.path.join(venv, "bin", "python") if is_ready else DEBIAN_PYTHON


PYTHON = torch_python()


def peer(name, *words):
    """The command that runs a script of bench/peers."""
    return [PYTHON, "-B", os.path.join(PEERS, name), *map(str, words)]


def need(condition, what):
    if not condition:
        sys.exit(f"bench: {what} is missing; `tools/setup --bench` installs it")


def torch_version():
    """The version of the peer that is measured; None if it is not installed."""
    command = [PYTHON, "-c", "import torch.distributed; print(torch.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout.strip() if done.returncode == 0 else None


def cpu_name():
    """The name of the CPU, its family and model, and its widest vectors."""
    with open("/proc/cpuinfo") as lines:
        fields = {}
        for line in lines:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    vectors = next((name for flag, name in (("amx_tile", "AVX-512 and AMX"), ("avx512f", "AVX-512"),
                                            ("avx2", "AVX2")) if flag in flags), "no AVX2")
    numbers = f"family {fields.get('cpu family', '?')}, model {fields.get('model', '?')}"
    return f"{fields.get('model name', 'unknown CPU')} ({numbers}), {os.cpu_count()} cores, {vectors}"


def tell_peers(needs_torch=True):
    """Prints what is measured on which machine, and returns it for the JSON; exits if PyTorch is needed and
    missing."""
    version = torch_version()
    need(version or not needs_torch, "PyTorch")
    machine = {"cpu": cpu_name(), "peer": f"PyTorch {version}" if version else "none", "python": PYTHON}
    if os.environ.get("TANDEM_ISA"):
        machine["isa"] = os.environ["TANDEM_ISA"]
    print("bench: " + ", ".join(f"{name} {value}" for name, value in machine.items()))
    if PYTHON == DEBIAN_PYTHON and version:
        print("bench: NOTICE: this is Debian's PyTorch, which is OLD; the bars are for the newest of PyPI, "
              "which `tools/setup --bench` installs where PyPI is reachable", flush=True)
    return machine


def write_idx(name, shape, data):
    with open(os.path.join(DATA, name), "wb") as out:
        out.write(struct.pack(">BBBB", 0, 0, 8, len(shape)))
        out.write(b"".join(struct.pack(">I", size) for size in shape) + data)


def write_data():
    """Random data: the time of a step does not depend on the data."""
    os.makedirs(DATA, exist_ok=True)
    rng = random.Random(1)
    with open(os.path.join(DATA, "text.txt"), "w") as out:
        out.write("".join(rng.choices([chr(48 + i) for i in range(65)], k=200_000)))
    for size, colours, count in [(28, (), 2048), (32, (3,), 512)]:
        shape = (count, size, size) + colours
        numbers = count * size * size * (colours[0] if colours else 1)
        write_idx(f"images-{size}.idx", shape, rng.randbytes(numbers))
        write_idx(f"labels-{size}.idx", (count,), bytes(rng.randrange(10) for _ in range(count)))


class Bench:
    """Collects rows: a figure each, with or without a target."""

    def __init__(self, options, machine):
        self.options = options
        self.machine = machine  # what tell_peers() said
        self.rows = []

    def row(self, name, figure, relation="", bar=None, unit=""):
        ok = bar is None or (figure >= bar if relation == ">=" else figure <= bar)
        self.rows.append(dict(name=name, figure=figure, unit=unit, relation=relation, bar=bar, ok=ok))
        verdict = "" if bar is None else f"bar {relation} {bar:<6g} {'ok' if ok else 'MISSED'}"
        print(f"{name:<64} {figure:>10.3f} {unit:<5} {verdict}", flush=True)

    def run(self, command, more=()):
        """Runs the command with additional variables in its environment, and parses the JSON that it prints."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S,
                              env={**os.environ, **dict(more)})
        if done.returncode != 0:
            sys.exit(f"bench: {' '.join(command)}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def finish(self):
        with open(self.options.out, "w") as out:
            json.dump({**self.machine, "rows": self.rows}, out, indent=1)
        print(f"bench: wrote {os.path.relpath(self.options.out)}")
        sys.exit(0 if all(r["ok"] for r in self.rows) else 1)


def options_of(words, parts, out, add=lambda parser: None):
    """Parses the command line: which parts (default: all), and how; `add` adds options of the benchmark."""
    p = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="one short round: to see that all of it works")
    p.add_argument("--only", metavar="PART,...", help="these parts alone, of: " + ", ".join(parts))
    p.add_argument("--out", default=os.path.join(ROOT, "build", out))
    p.add_argument("--tandem", default=os.path.join(ROOT, "build", "release", "tandem"))
    add(p)
    options = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: stopped"))  # what it started ends with it
    options.tandem = os.path.abspath(options.tandem)
    options.parts = options.only.split(",") if options.only else list(parts)
    for name in options.parts:
        if name not in parts:
            p.error(f"unknown part '{name}' (parts: {', '.join(parts)})")
    return options


class Together:
    """Commands that run in parallel, each in a separate process group; all are killed at the end."""

    def __init__(self, commands, environments):
        self.children = []
        try:
            for command, environment in zip(commands, environments):
                self.children.append(subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    start_new_session=True, env={**os.environ, **environment}))
        except OSError:
            self.end()
            raise

    def end(self):
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    def watch(self, look, pause_s):
        """Calls `look` repeatedly until the first of them has ended."""
        deadline = time.monotonic() + LIMIT_S
        try:
            while all(child.poll() is None for child in self.children):
                if time.monotonic() > deadline:
                    sys.exit("bench: it did not end in time")
                look()
                time.sleep(pause_s)
        except BaseException:
            self.end()
            raise

    def answers(self):
        """The last lines that they print, as JSON, if they are JSON."""
        said = []
        try:
            for child in self.children:
                said.append(child.communicate(timeout=LIMIT_S))
        finally:
            self.end()
        for child, (out, err) in zip(self.children, said):
            if child.returncode != 0:
                sys.exit(f"bench: {' '.join(child.args)}\n{out}{err}")
        return [json.loads(out.strip().splitlines()[-1]) for out, _ in said if out.strip()]


class Hosts:
    """Network namespaces on a bridge, with links of 1 Gbit/s, or another rate, in both directions; they need root."""

    RATE = 1e9 / 8

    def __init__(self, count, mbit=1000):
        self.count = count
        self.mbit = mbit
        self.tag = "tdmb" + secrets.token_hex(2)
        self.names = [f"{self.tag}h{i}" for i in range(count)]

    def sh(self, *words, check=True):
        subprocess.run(words, check=check, capture_output=True, text=True, timeout=30)

    def inside(self, name, *words):
        return ["ip", "netns", "exec", name, *words]

    def shape(self, name, device):
        self.sh(*self.inside(name, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{self.mbit}mbit",
                             "burst", "128kb", "latency", "10ms"))

    def make(self):
        self.sh("ip", "netns", "add", self.tag)
        self.sh(*self.inside(self.tag, "ip", "link", "add", "bridge", "type", "bridge"))
        self.sh(*self.inside(self.tag, "ip", "link", "set", "bridge", "up"))
        for i, name in enumerate(self.names):
            self.sh("ip", "netns", "add", name)
            self.sh(*self.inside(self.tag, "ip", "link", "add", f"port{i}", "type", "veth", "peer", "name",
                                 "wire", "netns", name))
            self.sh(*self.inside(self.tag, "ip", "link", "set", f"port{i}", "master", "bridge", "up"))
            self.sh(*self.inside(name, "ip", "address", "add", f"{self.address(i)}/24", "dev", "wire"))
            for device in ("lo", "wire"):
                self.sh(*self.inside(name, "ip", "link", "set", device, "up"))
            self.shape(name, "wire")
            self.shape(self.tag, f"port{i}")

    def address(self, i):
        return f"10.77.0.{i + 1}"

    def __enter__(self):
        if os.geteuid() != 0:
            sys.exit("bench: network namespaces need root; run as root, or leave this part out with --only")
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.tag]:
            self.sh("ip", "netns", "delete", name, check=False)

    def together(self, command_of, environment_of=lambda i: {}):
        """Runs one command on each host, concurrently."""
        return Together([self.inside(name, *command_of(i)) for i, name in enumerate(self.names)],
                        [environment_of(i) for i in range(self.count)])

    def start(self, command_of, environment_of=lambda i: {}):
        return self.together(command_of, environment_of).answers()

    def place(self, secret):
        """The commands that start one rank of Tandem on each host, by number of the host."""
        port = 20000 + secrets.randbelow(20000)
        return lambda i: {"TANDEM_RANK": str(i), "TANDEM_SIZE": str(self.count), "TANDEM_SECRET": secret,
                          "TANDEM_RENDEZVOUS": f"{self.address(0)}:{port}", "UCX_TLS": "tcp,self",
                          "UCX_NET_DEVICES": "wire"}

    def tcp_rate(self, seconds):
        """The rate of plain TCP if each host sends to the next, concurrently: bytes per second of the slowest."""
        command_of = lambda i: peer("tcp_ring.py", i, self.count, seconds)
        return min(answer["rate"] for answer in self.start(command_of))
