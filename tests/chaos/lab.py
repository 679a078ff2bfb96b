"""Three simulated hosts: network namespaces with a bridge, links that can be cut, and an etcd member on each.

A module of hosts.py. It needs root and a private mount namespace (see enter_private), so that namespaces and mounts
disappear when the program ends. All hosts see the same files, as on a shared file system; `disk` is a small file
system that can be filled.
"""
import contextlib
import ctypes
import errno
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

HOSTS = (1, 2, 3)
DISK_BYTES = 24 << 20
ETCD_START_S = 120
CLONE_NEWNET = 0x40000000
PRIVATE = "CHAOS_HOSTS_PRIVATE"


def missing():
    """Returns the reason why hosts cannot be created here, or None."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for name, package in (("ip", "iproute2"), ("bridge", "iproute2"), ("unshare", "util-linux")):
        if not shutil.which(name):
            return f"{name} is missing ({package}; tools/setup --test installs it)"
    if not shutil.which("etcd"):
        return "etcd is missing (make setup-etcd installs it)"
    done = subprocess.run(["unshare", "--mount", "--net", "ip", "link", "add", "bridge", "type", "bridge"],
                          capture_output=True, text=True)
    return f"no network namespaces with a bridge here ({done.stderr.strip()})" if done.returncode else None


def enter_private():
    """Restarts this program in a private mount namespace."""
    if os.environ.get(PRIVATE) == "1":
        return
    os.environ[PRIVATE] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, "-B",
                          *sys.argv])


def address(host):
    return f"10.79.0.{host}"


class Lab:
    def __init__(self, name, directory):
        self.name = name
        self.directory = directory
        self.switch = f"{name}-s"
        self.etcd = {}
        self.cuts = dict.fromkeys(HOSTS, 0)  # number of active faults that cut off the host
        self.walls = dict.fromkeys(HOSTS, 0)  # number of active faults that isolate the host from other isolated ones
        self.disk = os.path.join(directory, "disk")
        self.filler = os.path.join(self.disk, "filler")
        os.makedirs(self.disk)
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", name, self.disk)
        self.make_network()
        self.start_etcd()

    def close(self):
        for host in HOSTS:
            self.kill_host(host)
        for process in self.etcd.values():
            process.wait()
        for name in (self.switch, *map(self.space, HOSTS)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["umount", "-l", self.disk], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    # ---- network -----------------------------------------------------------------------------------------

    def space(self, host):
        return f"{self.name}-{host}"

    def make_network(self):
        _run("ip", "netns", "add", self.switch)
        _run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for host in HOSTS:
            space = self.space(host)
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", self.switch, "link", "add", f"port{host}", "type", "veth", "peer", "name",
                 "net", "netns", space)
            _run("ip", "-n", space, "addr", "add", f"{address(host)}/24", "dev", "net")
            _run("ip", "-n", space, "link", "set", "net", "up")
            _run("ip", "-n", self.switch, "link", "set", f"port{host}", "master", "bridge", "up")

    def cut(self, host):
        self.cuts[host] += 1
        _run("ip", "-n", self.switch, "link", "set", f"port{host}", "down")

    def mend(self, host):
        self.cuts[host] -= 1
        if self.cuts[host] > 0:
            return
        _run("ip", "-n", self.switch, "link", "set", f"port{host}", "up")
        for one in HOSTS:
            _run("ip", "-n", self.space(one), "neigh", "flush", "dev", "net")

    def part(self, *hosts):
        """Isolates two hosts from each other; both still reach the third host and the store."""
        for host in hosts:
            self.walls[host] += 1
            _run("bridge", "-n", self.switch, "link", "set", "dev", f"port{host}", "isolated", "on")

    def join(self, *hosts):
        for host in hosts:
            self.walls[host] -= 1
            if self.walls[host] == 0:
                _run("bridge", "-n", self.switch, "link", "set", "dev", f"port{host}", "isolated", "off")

    # ---- disk --------------------------------------------------------------------------------------------

    def fill(self):
        """Fills the disk completely."""
        with open(self.filler, "ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError as why:
                    if why.errno != errno.ENOSPC:
                        raise

    def make_room(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.filler)

    # ---- processes ---------------------------------------------------------------------------------------

    def pids(self, host):
        """Returns the pids of all processes of a host."""
        done = subprocess.run(["ip", "netns", "pids", self.space(host)], capture_output=True, text=True)
        return [int(word) for word in done.stdout.split()]

    def kill_host(self, host):
        """Kills all processes of a host, including those that are started meanwhile."""
        quiet, end = 0, time.monotonic() + 30
        while quiet < 2 and time.monotonic() < end:
            pids = self.pids(host)
            quiet = 0 if pids else quiet + 1
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    # ---- etcd --------------------------------------------------------------------------------------------

    @property
    def endpoints(self):
        return ",".join(f"http://{address(host)}:2379" for host in HOSTS)

    def start_member(self, host):
        """Starts the etcd member of a host unless it runs."""
        old = self.etcd.get(host)
        if old and old.poll() is None:
            return
        at = f"http://{address(host)}"
        members = ",".join(f"h{one}=http://{address(one)}:2380" for one in HOSTS)
        log = open(os.path.join(self.directory, f"etcd-{host}.log"), "a")
        with log:
            self.etcd[host] = subprocess.Popen(
                ["ip", "netns", "exec", self.space(host), "etcd", "--name", f"h{host}", "--data-dir",
                 os.path.join(self.directory, f"etcd-{host}"), "--listen-peer-urls", f"{at}:2380",
                 "--initial-advertise-peer-urls", f"{at}:2380", "--listen-client-urls",
                 f"{at}:2379,http://127.0.0.1:2379", "--advertise-client-urls", f"{at}:2379",
                 "--initial-cluster", members, "--initial-cluster-state", "new",
                 "--initial-cluster-token", self.name, "--log-level", "error"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def kill_member(self, host):
        process = self.etcd.get(host)
        if process:
            process.kill()
            process.wait()

    def ask(self, host, method, path, body=None):
        """Sends a request to the etcd member of a host from that host. Returns its answer or None."""
        said = []

        def call():
            try:
                with open(f"/run/netns/{self.space(host)}") as space:
                    if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) != 0:
                        return
                connection = http.client.HTTPConnection("127.0.0.1", 2379, timeout=2)
                connection.request(method, path, body)
                said.append(json.loads(connection.getresponse().read()))
                connection.close()
            except (OSError, ValueError, http.client.HTTPException):
                pass

        thread = threading.Thread(target=call)  # setns() changes the network namespace of one thread
        thread.start()
        thread.join()
        return said[0] if said else None

    def leader(self):
        """Returns the host of the etcd leader, or None."""
        for host in HOSTS:
            said = self.ask(host, "POST", "/v3/maintenance/status", "{}") or {}
            if said.get("leader") and said["leader"] == said.get("header", {}).get("member_id"):
                return host
        return None

    def start_etcd(self):
        """Starts all etcd members and waits until each has a leader."""
        for host in HOSTS:
            self.start_member(host)
        end = time.monotonic() + ETCD_START_S
        for host in HOSTS:
            while (self.ask(host, "GET", "/health") or {}).get("health") != "true":
                if time.monotonic() > end:
                    with open(os.path.join(self.directory, f"etcd-{host}.log")) as log:
                        raise RuntimeError(f"etcd on host {host} is not healthy: {log.read()[-2000:]}")
                time.sleep(0.05)

    def heal(self):
        """Repairs all faults and restarts missing etcd members."""
        for host in HOSTS:
            while self.cuts[host] > 0:
                self.mend(host)
            while self.walls[host] > 0:
                self.join(host)
        self.make_room()
        self.start_etcd()


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
