"""Measures an all-reduce of f32 by Gloo, through PyTorch, between processes of this host.

    gloo_allreduce.py --ranks N --sizes BYTES,BYTES,... [--seconds S]

Measures as `tandem bench allreduce` does: in place, samples of some calls with a barrier before each; the time
of a sample is that of the slowest rank, and the median counts. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

SAMPLE_S = 200e-6


def agree(numbers):
    """The numbers of rank 0, on all ranks."""
    tensor = torch.tensor(numbers, dtype=torch.int64)
    dist.broadcast(tensor, 0)
    return tensor.tolist()


def sample(tensor, batch):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(batch):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin) / batch


def measure(bytes_, seconds):
    tensor = torch.zeros(max(1, bytes_ // 4))
    for _ in range(3):
        once = sample(tensor, 1)
    batch = max(1, min(10000, int(SAMPLE_S / once)))
    count = max(5, min(1000, int(seconds / (batch * once))))
    batch, count = agree([batch, count])
    times = torch.tensor([sample(tensor, batch) for _ in range(count)], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return statistics.median(times.tolist())


def run(rank, options, meeting, answer):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=options.ranks)
    rows = [dict(bytes=size, seconds=measure(size, options.seconds)) for size in options.sizes]
    if rank == 0:
        with open(answer, "w") as out:
            json.dump(dict(ranks=options.ranks, torch=torch.__version__, rows=rows), out)
    dist.barrier()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], required=True)
    p.add_argument("--seconds", type=float, default=1.0)
    options = p.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as directory:
        answer = os.path.join(directory, "answer")
        processes.spawn(run, (options, os.path.join(directory, "meeting"), answer), nprocs=options.ranks)
        with open(answer) as text:
            print(text.read())


if __name__ == "__main__":
    main()
