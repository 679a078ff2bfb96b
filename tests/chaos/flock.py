"""The processes of one training, found by a mark in their environment, and what may be done to them.

A training is started with CHAOS_MARK in its environment, which launcher, agents and workers hand on. So
they are found without asking the program under test. Not a program; chaos.py and bench/elastic use it.
"""
import os
import signal
import time

MARK = b"CHAOS_MARK="


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has ended meanwhile
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
        """Whether it was still there."""
        try:
            os.kill(self.pid, number)
            return True
        except ProcessLookupError:
            return False


def is_dead(pid):
    """Gone, or waiting for its parent to look."""
    text = _read(f"/proc/{pid}/stat")
    return not text or text.rpartition(b")")[2].split()[:1] == [b"Z"]


def find(mark):
    """All processes with this mark that are alive, but for those that are just being started."""
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
    """That many of a role, or fewer when the time is up."""
    end = time.monotonic() + limit_s
    while True:
        found = find_role(mark, role)
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.01)


def wait_until_gone(mark, limit_s):
    """Who is still there then."""
    end = time.monotonic() + limit_s
    while True:
        left = find(mark)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


def end_all(mark):
    """Kills all, and returns when the kernel has taken down the last of them: one that was killed has no
    environment any more long before it has let go of its locks."""
    pids, quiet = set(), 0
    for _ in range(1500):
        left = find(mark)
        for process in sorted(left, key=lambda p: p.role == "worker"):
            pids.add(process.pid)
            process.send(signal.SIGKILL)
        # Agents start new ones until they are gone themselves; one that is just being started is not found.
        quiet = 0 if left or not all(map(is_dead, pids)) else quiet + 1
        if quiet == 2:
            return
        time.sleep(0.02)
