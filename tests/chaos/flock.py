"""Finds, signals and kills the processes of one session, by a mark in their environment.

A session is started with CHAOS_MARK in its environment, which launcher, agents and workers inherit. Processes are
found by it, without the help of the program under test. A module of chaos.py, hosts.py and bench/elastic.
"""
import os
import signal
import time

MARK = b"CHAOS_MARK="


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has ended meanwhile
        return b""


class Process:
    def __init__(self, pid, words, environment):
        self.pid = pid
        self.words = words
        self.member = environment.get(b"TANDEM_MEMBER", b"").decode()
        self.host = environment.get(b"TANDEM_HOST", b"").decode()
        if len(words) > 1 and words[1] == b"agent":
            self.role = "agent"
        elif self.member:
            self.role = "worker"
        elif len(words) > 1 and words[1] == b"train":
            self.role = "launcher"
        else:
            self.role = "other"

    def __str__(self):
        return f"{self.role} {self.member or self.pid}"

    def send(self, number):
        """Sends a signal. Returns whether the process still existed."""
        try:
            os.kill(self.pid, number)
            return True
        except ProcessLookupError:
            return False


def is_dead(pid):
    """Whether the process does not exist or is a zombie."""
    text = _read(f"/proc/{pid}/stat")
    return not text or text.rpartition(b")")[2].split()[:1] == [b"Z"]


def find(mark):
    """Returns all live processes with this mark. A process that is being started may be missing."""
    found = []
    wanted = MARK + mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        fields = _read(f"/proc/{name}/environ").split(b"\0")
        if wanted not in fields or is_dead(name):
            continue
        words = _read(f"/proc/{name}/cmdline").split(b"\0")
        environment = dict(field.split(b"=", 1) for field in fields if b"=" in field)
        found.append(Process(int(name), words, environment))
    return found


def find_role(mark, role):
    return [p for p in find(mark) if p.role == role]


def wait_for(mark, role, count, limit_s):
    """Waits for `count` processes of a role. Returns fewer after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while True:
        found = find_role(mark, role)
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.01)


def wait_until_gone(mark, limit_s):
    """Waits until no process is left. Returns those that are left after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while True:
        left = find(mark)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


def end_all(mark):
    """Kills all processes and waits until the kernel has removed the last one. A killed process loses its
    environment long before it releases its locks, so it is not enough that find() returns nothing."""
    pids, quiet = set(), 0
    for _ in range(1500):
        left = find(mark)
        for process in sorted(left, key=lambda p: p.role == "worker"):
            pids.add(process.pid)
            process.send(signal.SIGKILL)
        # Agents start new workers until they die, and find() may miss a process that is being started.
        quiet = 0 if left or not all(map(is_dead, pids)) else quiet + 1
        if quiet == 2:
            return
        time.sleep(0.02)
