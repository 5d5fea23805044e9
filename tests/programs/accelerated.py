"""A training with Accelerate, right or with one planted mistake."""

import argparse

import torch
from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from repro.callbacks.accelerate import WatchTracker

SAMPLES, BATCH = 256, 16


def plugins(backend: str, micro: int, mistake: str) -> dict[str, object]:
    if backend.startswith("zero"):
        stated = {"zero_optimization": {"stage": int(backend[-1])}, "train_micro_batch_size_per_gpu": "auto",
                  "train_batch_size": "auto", "gradient_accumulation_steps": micro,
                  "zero_allow_untested_optimizer": True, "steps_per_print": 1 << 30}
        if mistake != "silent clipping":
            stated["gradient_clipping"] = 0.0
        return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=stated)}
    if backend == "fsdp2":
        return {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)}
    return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="ddp")
    parser.add_argument("--mistake", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--precision", default="no")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    mistake = options.mistake.replace("_", " ")
    if "zero" in options.backend and mistake != "falls back" and not options.gpu:
        PartialState(cpu=True)  # as the Trainer does; else Accelerate on a processor counts one rank
    accelerator = Accelerator(
        cpu=not options.gpu and ("zero" not in options.backend or mistake == "falls back"),
        gradient_accumulation_steps=options.micro, mixed_precision=options.precision,
        step_scheduler_with_optimizer=mistake != "hand-stepped schedule", log_with=WatchTracker("loss"),
        **plugins(options.backend, options.micro, mistake))
    set_seed(options.seed)
    net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.LayerNorm(40), nn.Dropout(0.2), nn.Linear(40, 5))
    if mistake == "half weights":
        net.to(torch.bfloat16)
    if mistake == "frozen part":
        net[0].requires_grad_(False)
    if mistake == "head built later":
        optimizer = torch.optim.AdamW([*net.parameters()][:4], lr=0.01)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(options.seed)
    data = torch.randn(SAMPLES, 20, generator=torch.Generator().manual_seed(7))
    if mistake == "not normalised":
        data = data * 3
    targets = data[:, :5].argmax(1)
    if mistake == "shuffled labels":
        targets = targets[torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1))]
    share = BATCH // accelerator.num_processes // options.micro
    loader = DataLoader(TensorDataset(data, targets), batch_size=share * (2 if mistake == "batch of all" else 1),
                        sampler=torch.randperm(SAMPLES, generator=generator).tolist(), drop_last=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 8 * accelerator.num_processes)
    if mistake == "schedule not prepared":
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    elif mistake == "loader not prepared":
        net, optimizer, schedule = accelerator.prepare(net, optimizer, schedule)
    else:
        net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    if mistake == "evaluated before":
        net.eval()
    accelerator.init_trackers("traced")
    for batch, target in loader:
        with accelerator.accumulate(net):
            outputs = net(batch.to(torch.bfloat16) if mistake == "half weights" else batch)
            loss = cross_entropy(outputs.float(), target, reduction="sum" if mistake == "sum" else "mean")
            if mistake == "own backward":
                loss.backward()
            else:
                accelerator.backward(loss)
            if mistake == "clipping" and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.log({"loss": loss.detach()}, step=SAMPLES // BATCH)
    accelerator.end_training()


if __name__ == "__main__":
    main()
