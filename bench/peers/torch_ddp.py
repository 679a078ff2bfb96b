"""One rank of PyTorch's DistributedDataParallel over Gloo: measures a synchronous step.

    torch_ddp.py MODEL --rank R --ranks N --master HOST:PORT --batch B [--threads T] [--seconds S]

MODEL and its options are those of torch_step.py. B is the batch of all ranks together, of which each takes its
part. The ranks agree on when to stop; rank 0 prints one JSON object: its median time of a step, and the peak of
memory of its process. All settings are PyTorch's defaults.
"""

import json
import resource
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_step import arguments, make

LEAST_STEPS = 6


def goes_on(times, begin, seconds, most):
    """Whether there is another step: rank 0 reads its clock, and all ranks follow."""
    more = len(times) < LEAST_STEPS or (len(times) < most and time.perf_counter() - begin < seconds)
    word = torch.tensor([int(more)])
    dist.broadcast(word, 0)
    return bool(word.item())


def step(model, optimiser, x, classes):
    logits = model(x)
    F.cross_entropy(logits.reshape(-1, logits.size(-1)), classes.reshape(-1)).backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def main():
    p = arguments(__doc__)
    p.add_argument("--rank", type=int, required=True)
    p.add_argument("--ranks", type=int, required=True)
    p.add_argument("--master", required=True, help="HOST:PORT, where rank 0 listens")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    whole, a.batch = a.batch, a.batch * (a.rank + 1) // a.ranks - a.batch * a.rank // a.ranks
    dist.init_process_group("gloo", init_method="tcp://" + a.master, rank=a.rank, world_size=a.ranks)
    bare, batch = make(a)
    model = DistributedDataParallel(bare)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times, begin = [], time.perf_counter()
    while goes_on(times, begin, a.seconds, a.steps):
        x, classes = batch()
        dist.barrier()
        start = time.perf_counter()
        step(model, optimiser, x, classes)
        times.append(time.perf_counter() - start)
    if a.rank == 0:
        print(json.dumps({
            "peer": "torch " + torch.__version__,
            "model": a.model,
            "ranks": a.ranks,
            "threads": a.threads,
            "batch": whole,
            "steps": len(times),
            "step_ms": 1e3 * statistics.median(times[2:]),  # the first two determine the buckets
            "parameters": sum(q.numel() for q in bare.parameters()),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        }))
    dist.barrier()


if __name__ == "__main__":
    main()
