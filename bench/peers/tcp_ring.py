"""Measures the rate of TCP if each host sends to the next, concurrently.

    tcp_ring.py INDEX COUNT SECONDS

Runs on host INDEX of COUNT, whose addresses are 10.77.0.1, 10.77.0.2 and so on. Prints one JSON object: the
bytes per second that arrived at this host, once TCP has reached its full speed.
"""

import json
import socket
import sys
import threading
import time

PORT = 19999
START_S = 1.0  # until TCP has reached its full speed
LIMIT_S = 30


def connect(address):
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=LIMIT_S)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def send(index, count):
    data, end = bytes(1 << 20), time.monotonic() + LIMIT_S
    with connect(f"10.77.0.{(index + 1) % count + 1}") as out:
        try:
            while time.monotonic() < end:
                out.sendall(data)
        except OSError:
            pass  # the other side has finished


def receive(link, seconds):
    buffer, total, begin = memoryview(bytearray(1 << 20)), 0, None
    first = time.monotonic()
    while True:
        got = link.recv_into(buffer)
        now = time.monotonic()
        if begin is None and now - first >= START_S:
            begin, total = now, 0
            continue
        total += got
        if begin is not None and now - begin >= seconds:
            return total / (now - begin)
        if got == 0:
            raise SystemExit("tcp_ring: the sender stopped too early")


def main():
    index, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with socket.create_server((f"10.77.0.{index + 1}", PORT)) as server:
        server.settimeout(LIMIT_S)
        threading.Thread(target=send, args=(index, count), daemon=True).start()
        link, _ = server.accept()
        link.settimeout(LIMIT_S)
        rate = receive(link, seconds)
        time.sleep(1)  # the others may not have finished: keep sending
    print(json.dumps(dict(rate=rate)))


if __name__ == "__main__":
    main()
