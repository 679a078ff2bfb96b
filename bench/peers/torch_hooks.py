"""One rank of PyTorch's DistributedDataParallel over Gloo, with one of its communication hooks, on MNIST's digits.

    torch_hooks.py --rank R --ranks N --master HOST:PORT --hook none|fp16|powersgd --steps S --data DIR
                   [--batch B] [--hidden A,B] [--lr LR] [--every E] [--target LOSS] [--device NAME]

The model is a perceptron, the optimiser SGD with momentum 0.9. Rank 0 prints one JSON object: the median time of a
step and, with --every, the test loss after every E steps, until it is at most --target; with --device, also how many
bytes a rank sends in a step through that network device, the mean of all ranks.
"""

import argparse
import json
import os
import statistics
import struct
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

SKIPPED = 4  # steps before those that count: the first two determine the buckets


def read_idx(path):
    with open(path, "rb") as file:
        head = file.read(4)
        shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).reshape(shape)


def digits(directory, part):
    images = read_idx(os.path.join(directory, f"{part}-images-idx3-ubyte")).float() / 255
    return images.reshape(len(images), -1), read_idx(os.path.join(directory, f"{part}-labels-idx1-ubyte")).long()


def sent_bytes(device):
    if not device:
        return 0
    with open(f"/sys/class/net/{device}/statistics/tx_bytes") as text:
        return int(text.read())


def perceptron(hidden):
    sizes = [784, *hidden]
    layers = [layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def hook_into(model, name):
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if name == "powersgd":  # the rank of the comparison; its other settings are PyTorch's defaults
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("rank", "ranks", "steps"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--master", required=True, help="HOST:PORT, where rank 0 listens")
    p.add_argument("--hook", choices=["none", "fp16", "powersgd"], required=True)
    p.add_argument("--data", required=True, help="the directory with MNIST's files")
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--hidden", default="2048,2048")
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--every", type=int, default=0)
    p.add_argument("--target", type=float, default=0)
    p.add_argument("--device")
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, classes = digits(a.data, "train")
    test_x, test_classes = digits(a.data, "t10k")
    dist.init_process_group("gloo", init_method="tcp://" + a.master, rank=a.rank, world_size=a.ranks)
    bare = perceptron(list(map(int, a.hidden.split(","))))
    if a.hook == "powersgd":  # its callbacks wait for each other in Gloo's two threads: it needs a single bucket
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    model = DistributedDataParallel(bare, bucket_cap_mb=1024 if a.hook == "powersgd" else None)
    hook_into(model, a.hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    part = slice(a.batch * a.rank // a.ranks, a.batch * (a.rank + 1) // a.ranks)
    times, losses, begin = [], [], 0
    for step in range(a.steps):
        first = step * a.batch % (len(x) - a.batch)
        mine = order[first:first + a.batch][part]
        dist.barrier()
        if step == SKIPPED:
            begin = sent_bytes(a.device)
        start = time.perf_counter()
        F.cross_entropy(model(x[mine]), classes[mine]).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
        if a.every and (step + 1) % a.every == 0:
            with torch.no_grad():
                loss = F.cross_entropy(bare(test_x), test_classes).item()
            word = torch.tensor([loss])
            dist.broadcast(word, 0)
            losses.append((step + 1, word.item()))
            if word.item() <= a.target:
                break
    sent = torch.tensor([(sent_bytes(a.device) - begin) / max(1, len(times) - SKIPPED)], dtype=torch.float64)
    dist.all_reduce(sent)
    if a.rank == 0:
        print(json.dumps({"peer": "torch " + torch.__version__, "hook": a.hook, "steps": len(times),
                          "step_ms": 1e3 * statistics.median(times[SKIPPED:] or times), "losses": losses, "sent": sent.item() / a.ranks,
                          "parameters": sum(q.numel() for q in bare.parameters())}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
