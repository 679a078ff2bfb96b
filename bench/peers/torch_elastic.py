"""One rank of PyTorch's DistributedDataParallel that saves checkpoints and resumes from the newest one.

    torchrun ... torch_elastic.py MODEL --batch B --directory DIR --every K --steps S [--threads T]

MODEL and its options are those of torch_step.py; the world comes from torchrun's environment. Rank 0 saves model
and optimiser every K steps, to a temporary name that is renamed. After each step it appends a line to DIR/steps:
the step, from 1, and the time on the system's monotonic clock; every rank writes its process id to DIR/rank-R.
From these files, bench/elastic computes how many seconds and steps a kill costs.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_ddp import step
from torch_step import arguments, make


def leave_number(directory, rank):
    path = os.path.join(directory, f"rank-{rank}")
    with open(path + ".new", "w") as out:
        out.write(str(os.getpid()))
    os.replace(path + ".new", path)


def save(path, model, optimiser, done):
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": done}, path + ".new")
    os.replace(path + ".new", path)


def main():
    p = arguments(__doc__)
    p.add_argument("--directory", dest="directory", required=True)
    p.add_argument("--every", type=int, required=True)
    a = p.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    a.batch = a.batch * (rank + 1) // ranks - a.batch * rank // ranks
    dist.init_process_group("gloo")
    bare, batch = make(a)
    optimiser = torch.optim.AdamW(bare.parameters(), lr=1e-3)
    saved = os.path.join(a.directory, "checkpoint.pt")
    done = 0
    if os.path.exists(saved):
        state = torch.load(saved)
        bare.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        done = state["step"]
    model = DistributedDataParallel(bare)
    leave_number(a.directory, rank)
    with open(os.path.join(a.directory, "steps"), "a", buffering=1) as log:
        while done < a.steps:
            step(model, optimiser, *batch())
            done += 1
            if rank == 0:
                log.write(f"{done} {time.monotonic()}\n")
                if done % a.every == 0:
                    save(saved, bare, optimiser, done)


if __name__ == "__main__":
    main()
