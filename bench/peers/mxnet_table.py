"""The rate of row updates of MXNet's distributed key-value store: for bench/sync, which runs it with the Python of a
virtual environment with mxnet 1.9.1 and numpy < 1.24. A scheduler, a server and a worker are processes of this host.

    mxnet_table.py ROWS SECONDS       prints one line of JSON

The worker pulls the rows of a batch of 4,096 keys and pushes their gradients; the server updates the rows with Adagrad.
Keys are drawn as in bench/table.c, from a Zipf distribution with exponent 1.05.
"""

import json
import os
import subprocess
import sys
import time

WIDTH, BATCH, BATCHES, SKEW = 16, 4096, 200, 1.05


def worker(rows, seconds):
    import mxnet as mx
    import numpy as np
    store = mx.kv.create("dist_sync")
    store.set_optimizer(mx.optimizer.create("adagrad", learning_rate=0.01))
    store.init("table", (mx.nd.ones((rows, WIDTH)) * 0.01).tostype("row_sparse"))
    random = np.random.RandomState(1)
    ids, gradients = [], []
    for _ in range(BATCHES):
        area = random.rand(BATCH) * ((rows + 0.5) ** (1 - SKEW) - 1)
        ranks = np.clip(np.floor((1 + area) ** (1 / (1 - SKEW))), 1, rows).astype(np.int64)
        keys = np.unique(ranks * np.int64(2654435761) % rows)
        ids.append(mx.nd.array(keys, dtype="int64"))
        values = random.rand(len(keys), WIDTH).astype("float32")
        gradients.append(mx.nd.sparse.row_sparse_array((values, keys), shape=(rows, WIDTH)))
    out = mx.nd.sparse.zeros("row_sparse", (rows, WIDTH))

    def update(batch):
        store.row_sparse_pull("table", out=out, row_ids=ids[batch % BATCHES])
        out.wait_to_read()
        store.push("table", gradients[batch % BATCHES])

    for batch in range(5):
        update(batch)
    begin, count = time.time(), 0
    while time.time() - begin < seconds:
        update(count)
        count += 1
    store.row_sparse_pull("table", out=out, row_ids=ids[0])
    out.wait_to_read()
    print(json.dumps({"updates_per_s": count * BATCH / (time.time() - begin)}), flush=True)


def main():
    if os.environ.get("DMLC_ROLE") == "worker":
        return worker(int(sys.argv[1]), float(sys.argv[2]))
    world = dict(os.environ, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(20000 + os.getpid() % 10000),
                 DMLC_NUM_SERVER="1", DMLC_NUM_WORKER="1", DMLC_INTERFACE="lo", DMLC_NODE_HOST="127.0.0.1")
    others = [subprocess.Popen([sys.executable, "-c", "import mxnet"], env=dict(world, DMLC_ROLE=role),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
              for role in ("scheduler", "server")]
    try:
        done = subprocess.run([sys.executable, *sys.argv], env=dict(world, DMLC_ROLE="worker"), timeout=120)
    finally:
        for other in others:
            other.kill()
            other.wait()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
