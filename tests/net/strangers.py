#!/usr/bin/env python3
"""strangers.py: attacks on the network for strangers_test.sh: floods ports, records packets, searches them.

  strangers.py flood TANDEM WANTED REPORT PIDFILE ADDRESS=NAMESPACE...
      Until SIGTERM: connects to every listening TCP port that processes of the program TANDEM have in these
      network namespaces, and misbehaves in every way of KINDS. Writes its report once WANTED connections were
      begun, and again at the end. Opens a packet socket in the last namespace, and replays the first packets
      of ranks there. With 0 it connects to no port, and only counts ports and descriptors.
  strangers.py record FILE
      Until SIGTERM: writes all packets of this network namespace to FILE, which exists once it records.
  strangers.py search FILE CHECKPOINT DATA TEXT...
      Prints how many of the probes (runs of 16 bytes of the parameters and of the data; the texts, plain and in
      base64) occur in the recorded TCP streams.
  strangers.py listening TANDEM NAMESPACE
      Prints the listening TCP ports that processes of that program have in a namespace.
  strangers.py knock COUNT NAME...
      Connects COUNT times to abstract UNIX sockets, sends various messages, and prints the results.

Python 3, standard library only.
"""
import base64
import contextlib
import ctypes
import errno
import gzip
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import time

ETH_P_IP = 0x0800
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_STATISTICS = 263, 6
STORE_PORT = 2379  # etcd's traffic is protected by etcd's own TLS, if at all

stopped = False


def stop(_number, _frame):
    global stopped
    stopped = True


# ---- processes and their ports -----------------------------------------------------------------------------


def namespace_of(path):
    status = os.stat(path)
    return status.st_dev, status.st_ino


def processes(program, namespaces):
    """The processes of the program, as (process id, namespace)."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.path.samefile(f"/proc/{name}/exe", program):  # its name differs under chroot
                at = namespace_of(f"/proc/{name}/ns/net")
                if at in namespaces:
                    found.append((name, at))
        except OSError:
            continue
    return found


def sockets_of(pid):
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def listening_ports(pid):
    """(port, whether it can be reached from other hosts) of this process."""
    own = sockets_of(pid)
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                next(lines)
                for line in lines:
                    words = line.split()
                    if words[3] == "0A" and words[9] in own:
                        address, port = words[1].split(":")
                        loopback = address in ("0100007F", "00000000000000000000000001000000")
                        found.add((int(port, 16), not loopback))
        except (OSError, StopIteration):
            continue
    return found


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


# ---- packets -------------------------------------------------------------------------------------------------


def packet_socket(buffer_bytes):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer_bytes)
    packets.setblocking(False)
    return packets


def packet_socket_in(namespace):
    """A packet socket of another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newnet = 0x40000000
    with open("/proc/self/ns/net", "rb") as here, open(namespace, "rb") as there:
        if libc.setns(there.fileno(), clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
        try:
            return packet_socket(1 << 20)
        finally:
            libc.setns(here.fileno(), clone_newnet)


def tcp_of(frame):
    """(source, source port, destination, port, sequence number, flags, payload), or None."""
    if len(frame) < 34 or struct.unpack_from("!H", frame, 12)[0] != ETH_P_IP or frame[23] != 6:
        return None
    ip_bytes = (frame[14] & 15) * 4
    end = 14 + struct.unpack_from("!H", frame, 16)[0]
    if end == 14:  # a large one, whose length the network card would have set
        end = len(frame)
    at = 14 + ip_bytes
    if len(frame) < at + 20:
        return None
    source, to, sequence = struct.unpack_from("!HHI", frame, at)
    payload = frame[at + (frame[at + 12] >> 4) * 4 : end]
    return frame[26:30], source, frame[30:34], to, sequence, frame[at + 13], payload


def record(path):
    packets = packet_socket(256 << 20)
    waits = selectors.DefaultSelector()
    waits.register(packets, selectors.EVENT_READ)
    part = path + ".part"
    with open(part, "wb") as out:
        out.flush()
        os.rename(part, path)
        while True:
            ready = waits.select(0.1)
            if stopped and not ready:
                break
            try:
                for _ in range(1000):
                    frame = packets.recv(1 << 17)
                    out.write(struct.pack("<I", len(frame)) + frame)
            except BlockingIOError:
                pass
    _, lost = struct.unpack("II", packets.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    if lost > 0:
        sys.exit(f"the kernel lost {lost} packets of the recording")


def streams_in(path):
    """The bytes of each direction of each TCP connection, in order: {(from, port, to, port): bytes}."""
    with open(path, "rb") as recorded:
        packets = recorded.read()
    at, flows = 0, {}
    while at < len(packets):
        (count,) = struct.unpack_from("<I", packets, at)
        tcp = tcp_of(packets[at + 4 : at + 4 + count])
        at += 4 + count
        if not tcp:
            continue
        source, port, to, to_port, sequence, flags, payload = tcp
        key = source, port, to, to_port
        if flags & 2:  # SYN: another connection, perhaps with the same ports
            flows.setdefault(key, []).append(((sequence + 1) & 0xFFFFFFFF, {}))
        elif payload:
            if key not in flows:
                flows[key] = [(sequence, {})]
            first, pieces = flows[key][-1]
            pieces[(sequence - first) & 0xFFFFFFFF] = payload
    return {
        key: b"".join(joined(pieces) for _, pieces in connections)
        for key, connections in flows.items()
    }


def joined(pieces):
    out = bytearray()
    for offset in sorted(pieces):
        if offset < (1 << 31):  # otherwise before the first one
            piece = pieces[offset]
            out[offset : offset + len(piece)] = piece
    return bytes(out)


# ---- searching -------------------------------------------------------------------------------------------------


def windows_of(data, count, draw):
    """Runs of 16 bytes that do not occur by chance: no zeros, no repetition."""
    found = []
    for _ in range(count * 1000):
        if len(found) == count or len(data) < 16:
            break
        at = draw.randrange(len(data) - 15)
        window = data[at : at + 16]
        if len(set(window)) >= 8:
            found.append(window)
    return found


def parameters_in(path):
    with open(path, "rb") as file:
        (count,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(count))
        data = file.read()
    out = b""
    for name, tensor in sorted(head.items()):
        if name != "__metadata__" and not name.startswith(("optim", "state")):
            first, end = tensor["data_offsets"]
            out += data[first:end]
    return out


def values_in(path):
    """The table as it would be in memory: floats, without the last column."""
    out = b""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="ascii") as lines:
        for line in lines:
            numbers = [float(word) for word in line.split(",")[:-1]]
            out += struct.pack(f"<{len(numbers)}f", *numbers)
    return out


def search(path, checkpoint, data, texts):
    draw = random.Random(13)
    with open(data, "rb") as file:
        table = file.read()
    probes = {
        "parameters": windows_of(parameters_in(checkpoint), 200, draw),
        "data": windows_of(values_in(data), 100, draw) + windows_of(table, 100, draw),
    }
    if min(len(some) for some in probes.values()) < 200:
        sys.exit("not enough to look for")
    streams = streams_in(path)
    store = b"".join(s for key, s in streams.items() if STORE_PORT in (key[1], key[3]))
    ranks = b"".join(s for key, s in streams.items() if STORE_PORT not in (key[1], key[3]))
    print(f"bytes {len(ranks)}")
    print(f"store-bytes {len(store)}")
    for what, some in probes.items():
        print(what, sum(1 for window in some if window in ranks))
    for number, text in enumerate(texts):
        plain = text.encode()
        coded = [base64.b64encode(b"\0" * shift + plain)[4 : -4] for shift in range(3)]
        print(f"text-{number}", int(plain in ranks))
        print(f"stored-text-{number}", int(plain in store or any(c in store for c in coded)))


# ---- the flood ---------------------------------------------------------------------------------------------------


def control_frame(kind, body, length=None):
    return b"TdmC" + struct.pack("<II", kind, len(body) if length is None else length) + body


def wrong_proof(draw, protection=1):
    """A PROVE that is correct except for its HMAC."""
    body = struct.pack("<I", 3) + draw.randbytes(32) + struct.pack("<I", protection) + draw.randbytes(32)
    return control_frame(2, body)


def wrong_link_proof(draw):
    return struct.pack("<6I", 1, 1, 0, 0, 1, 1) + draw.randbytes(64)


KINDS = {
    "garbage": lambda flood: flood.draw.randbytes(flood.draw.randrange(1, 3000)),
    "http": lambda flood: b"GET / HTTP/1.1\r\nHost: tandem\r\nAccept: */*\r\n\r\n",
    "silent": lambda flood: b"",
    "slow": lambda flood: control_frame(2, bytes(100)),
    "long": lambda flood: control_frame(flood.draw.randrange(1, 16), bytes(200), 0xFFFFFFF0),
    "link": lambda flood: b"TdmLink1" + flood.draw.randbytes(flood.draw.randrange(0, 200)),
    "link-proof": lambda flood: wrong_link_proof(flood.draw),
    "proof": lambda flood: wrong_proof(flood.draw, flood.draw.randrange(0, 3)),
    "half": lambda flood: wrong_proof(flood.draw)[: flood.draw.randrange(1, 80)],
    "replay": lambda flood: flood.draw.choice(flood.recorded or [b"TdmC"]),
}
LASTING = ("silent", "slow", "half")
OPEN_MOST, LASTING_MOST = 700, 300
PER_SECOND = 1500


class Connection:
    """A connection that was begun: what it sends, and how long it stays."""

    def __init__(self, sock, kind, says, now):
        self.sock, self.kind, self.says = sock, kind, says
        self.made, self.until, self.next = False, now + (6.0 if kind in LASTING else 0.3), now


class Flood:
    """Floods all ports of the program, until it is told to stop."""

    def __init__(self, program, hosts):
        self.program, self.hosts = program, hosts  # hosts: {namespace: address}
        self.draw = random.Random(17)
        self.waits = selectors.DefaultSelector()
        self.open, self.lasting = {}, 0
        self.ports, self.next_look, self.next_slow = [], 0.0, 0.0
        self.begun, self.made, self.kinds = {}, 0, {}
        self.ever, self.local, self.most_descriptors, self.turn = set(), set(), 0, 0
        self.answers, self.ended = 0, 0
        self.sniffer, self.recorded, self.heard, self.seen_pids = None, [], {}, set()

    def look(self):
        """The current ports; updates the counts of processes and descriptors."""
        ports = []
        for pid, namespace in processes(self.program, self.hosts):
            self.seen_pids.add(pid)
            self.most_descriptors = max(self.most_descriptors, descriptors(pid))
            for port, outside in listening_ports(pid):
                if outside:
                    ports.append((self.hosts[namespace], port))
                else:
                    self.local.add((self.hosts[namespace], port))
        self.ports = sorted(set(ports))
        self.ever.update(self.ports)

    def begin(self, now):
        address = self.ports[self.turn % len(self.ports)]
        kind = list(KINDS)[(self.turn // len(self.ports)) % len(KINDS)]
        self.turn += 1
        if kind in LASTING and self.lasting >= LASTING_MOST:
            kind = "garbage"
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        code = sock.connect_ex(address)
        self.begun[address] = self.begun.get(address, 0) + 1
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            return
        connection = Connection(sock, kind, KINDS[kind](self), now)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.lasting += kind in LASTING
        self.open[sock] = connection
        self.waits.register(sock, selectors.EVENT_WRITE, connection)

    def end(self, connection):
        if self.open.pop(connection.sock, None):
            self.lasting -= connection.kind in LASTING
            self.waits.unregister(connection.sock)
            connection.sock.close()

    def step(self, connection, events):
        try:
            if events & selectors.EVENT_WRITE and not connection.made:
                connection.made = True
                self.made += connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                if connection.kind != "slow" and connection.says:
                    connection.sock.send(connection.says)
                self.waits.modify(connection.sock, selectors.EVENT_READ, connection)
            elif events & selectors.EVENT_READ:
                if connection.sock.recv(4096):
                    self.answers += 1
                else:
                    self.ended += 1
                    self.end(connection)
        except BlockingIOError:
            pass
        except OSError:
            self.ended += 1
            self.end(connection)

    def crawl(self, now):
        """Sends another byte on the slow connections, and closes those whose time is over."""
        for connection in list(self.open.values()):
            if now > connection.until:
                self.end(connection)
            elif connection.kind == "slow" and connection.made and connection.says:
                try:
                    connection.sock.send(connection.says[:1])
                    connection.says = connection.says[1:]
                except OSError:
                    self.end(connection)

    def listen_in(self):
        """Records the first messages of ranks on their connections, to replay them."""
        for _ in range(200):
            try:
                tcp = tcp_of(self.sniffer.recv(1 << 17))
            except BlockingIOError:
                return
            if not tcp or STORE_PORT in (tcp[1], tcp[3]) or len(self.recorded) >= 64:
                continue
            source, port, to, to_port, _, flags, payload = tcp
            if flags & 2 and not flags & 16:
                self.heard[source, port, to, to_port] = b""
            elif payload and (source, port, to, to_port) in self.heard:
                key = source, port, to, to_port
                self.heard[key] += payload
                self.recorded.append(self.heard[key][:2000])
                if len(self.heard[key]) > 1000:
                    del self.heard[key]

    def run(self, wanted, report, namespace):
        self.sniffer = packet_socket_in(namespace)
        self.waits.register(self.sniffer, selectors.EVENT_READ, None)
        allowance, last, told = 0.0, time.monotonic(), False
        rate = PER_SECOND if wanted > 0 else 0
        while not stopped:
            now = time.monotonic()
            allowance, last = min(allowance + (now - last) * rate, 100.0), now
            if now >= self.next_look:
                self.look()
                self.next_look = now + 0.1
            if now >= self.next_slow:
                self.crawl(now)
                self.next_slow = now + 0.1
            while allowance >= 1 and self.ports and len(self.open) < OPEN_MOST:
                self.begin(now)
                allowance -= 1
            for key, events in self.waits.select(0.01):
                if key.data:
                    self.step(key.data, events)
                else:
                    self.listen_in()
            if not told and self.is_enough(wanted):
                self.tell(report)
                told = True
        self.tell(report)

    def is_enough(self, wanted):
        return sum(self.begun.values()) >= wanted

    def tell(self, report):
        with open(report + ".part", "w", encoding="ascii") as out:
            out.write(f"begun {sum(self.begun.values())}\n")
            out.write(f"made {self.made}\n")
            out.write(f"answers {self.answers}\n")
            out.write(f"ended {self.ended}\n")
            out.write(f"ports {len(self.ever)}\n")
            out.write(f"local-ports {len(self.local)}\n")
            out.write(f"replays {len(self.recorded)}\n")
            out.write(f"descriptors {self.most_descriptors}\n")
            out.write("kinds " + " ".join(f"{k}:{n}" for k, n in sorted(self.kinds.items())) + "\n")
            for (address, port), count in sorted(self.begun.items()):
                out.write(f"at {address}:{port} {count}\n")
        os.rename(report + ".part", report)


# ---- UNIX sockets --------------------------------------------------------------------------------------------------


def knock(count, names):
    """Floods abstract UNIX sockets. A hub must send them only HELLO (1) and REFUSED (6); everything else is for
    ranks."""
    draw = random.Random(19)
    says = [b"", b"GET / HTTP/1.0\r\n\r\n", draw.randbytes(500), wrong_proof(draw, 0), control_frame(3, b"", 1 << 31)]
    waiting, made, refused, let_in = [], 0, 0, 0
    for turn in range(count + 200):
        sock = None
        for _ in range(6000 if turn < count else 0):  # until the queue of the socket has space
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            code = sock.connect_ex(b"\0" + names[turn % len(names)].encode())
            if code != errno.EAGAIN:
                break
            sock.close()
            time.sleep(0.01)
        if turn < count and code == 0:
            made += 1
            waiting.append(sock)
            with contextlib.suppress(OSError):
                sock.send(says[turn % len(says)])
        while waiting and (len(waiting) > 200 or turn >= count):
            heard = frames_of(waiting.pop(0))
            refused += 6 in heard
            let_in += any(kind not in (1, 6) for kind in heard)
    print(f"made {made}")
    print(f"refused {refused}")
    print(f"let-in {let_in}")


def frames_of(sock):
    """The types of the frames that a hub sends until it closes the connection."""
    heard, found = b"", []
    sock.settimeout(30)
    try:
        while len(heard) < 1 << 16:
            some = sock.recv(4096)
            if not some:
                break
            heard += some
    except OSError:
        pass
    sock.close()
    while len(heard) >= 12 and heard[:4] == b"TdmC":
        kind, count = struct.unpack_from("<II", heard, 4)
        found.append(kind)
        heard = heard[12 + count :]
    return found


def main(words):
    signal.signal(signal.SIGTERM, stop)
    if words[:1] == ["flood"] and len(words) >= 6:
        pairs = [word.split("=", 1) for word in words[5:]]
        flood = Flood(words[1], {namespace_of(path): address for address, path in pairs})
        with open(words[4], "w", encoding="ascii") as out:
            out.write(str(os.getpid()))
        flood.run(int(words[2]), words[3], pairs[-1][1])
    elif words[:1] == ["record"] and len(words) == 2:
        record(words[1])
    elif words[:1] == ["search"] and len(words) >= 4:
        search(words[1], words[2], words[3], words[4:])
    elif words[:1] == ["listening"] and len(words) == 3:
        for pid, _ in processes(words[1], {namespace_of(words[2])}):
            for port, _ in sorted(listening_ports(pid)):
                print(pid, port)
    elif words[:1] == ["knock"] and len(words) >= 3:
        knock(int(words[1]), words[2:])
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
