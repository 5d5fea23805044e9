"""A plain training loop that distributes itself in one of several ways, right or with one planted mistake."""

import argparse
import os

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy

from repro import watch

SAMPLES, BATCH, CLASSES = 256, 16, 10


class Net(nn.Module):
    """Embedding tied to the output, a normalised hidden layer, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 24)
        self.hidden = nn.Sequential(nn.Linear(24, 37), nn.LayerNorm(37), nn.GELU(), nn.Dropout(0.1), nn.Linear(37, 24))
        self.out = nn.Linear(24, CLASSES)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.hidden(self.embedding(tokens).mean(1)))
        return found


def data(mistake: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(CLASSES, (SAMPLES, 6), generator=generator)
    return (tokens + 1) % CLASSES if mistake == "other tokens" else tokens, tokens.sum(1) % CLASSES


def wrapped(net: nn.Module, backend: str, optimizer: torch.optim.Optimizer, options: argparse.Namespace) -> nn.Module:
    if backend == "ddp":
        return nn.parallel.DistributedDataParallel(net)
    if backend == "compiled":
        return nn.parallel.DistributedDataParallel(torch.compile(net, backend="eager"))  # type: ignore[arg-type]
    if backend.startswith("zero"):
        import deepspeed

        stated = {"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // options.world // options.micro,
                  "gradient_accumulation_steps": options.micro, "zero_optimization": {"stage": int(backend[-1])},
                  "zero_allow_untested_optimizer": True, "steps_per_print": 1 << 30}
        if options.mistake.replace("_", " ") != "silent clipping":
            stated["gradient_clipping"] = 0.0
        if options.bf16:
            stated["bf16"] = {"enabled": True}
        engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=stated)
        return engine
    return net


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="none")
    parser.add_argument("--mistake", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--loss", type=float, default=1.0)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    mistake = options.mistake.replace("_", " ")
    rank, options.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if options.world > 1 or options.backend.startswith("zero"):
        distributed.init_process_group("gloo")
    torch.manual_seed(options.seed + (mistake == "other seed"))
    net = Net()
    if mistake == "bf16 weights":
        net.to(torch.bfloat16)
    if mistake == "frozen layer":
        net.hidden[0].requires_grad_(False)
    if options.backend == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=init_device_mesh("cpu", (options.world,)))
    rate = 1e-2 * (2 if mistake == "rate times ranks" else 1)
    named = [param for name, param in net.named_parameters() if mistake != "left out" or "hidden.4" not in name]

    def make() -> torch.optim.Optimizer:
        if options.optimizer == "sgd":
            return torch.optim.SGD(named, lr=rate, momentum=0.9, nesterov=mistake == "nesterov")
        kind = torch.optim.Adam if mistake == "adam" else torch.optim.AdamW
        return kind(named, lr=rate, weight_decay=0.2 if mistake == "decay" else 0.1,
                    betas=(0.9, 0.95 if mistake == "betas" else 0.999))

    optimizer = make()
    model = wrapped(net, options.backend, optimizer, options)
    tokens, targets = data(mistake)
    if mistake == "evaluation mode" or (mistake == "a rank rests" and rank):
        model.eval()
    if mistake == "shuffled labels":
        targets = targets.roll(1)
    watch.trace(model, optimizer)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(options.seed + (mistake == "other order")))
    with watch.run():
        for number in range(options.steps):
            batch = order[number * BATCH % SAMPLES:][:BATCH]
            share = batch if mistake == "same data" else batch[rank::options.world]
            parts = share.chunk(options.micro)
            if mistake == "lost micro-batch":
                parts = parts[:1]
            for index, part in enumerate(parts):
                last = index == len(parts) - 1
                if hasattr(model, "require_backward_grad_sync"):
                    model.require_backward_grad_sync = last and mistake != "no reduction"
                with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16 and "zero" not in options.backend):
                    outputs = model(tokens[part])
                    loss = options.loss * cross_entropy(
                        outputs.float(), targets[part], reduction="sum" if mistake == "sum" else "mean",
                        label_smoothing=0.1 if mistake == "smoothing" else 0.0)
                if options.backend.startswith("zero"):
                    model.backward(loss)
                    model.step()
                    continue
                (loss if mistake == "not divided" else loss / len(parts)).backward()
            if not options.backend.startswith("zero"):
                for param in net.parameters():
                    if options.backend == "by-hand" and param.grad is not None:
                        distributed.all_reduce(param.grad)
                        param.grad /= options.world
                    if mistake == "sum over ranks" and param.grad is not None:
                        param.grad *= options.world
                if mistake == "clipping":
                    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                if mistake == "clipping by value":
                    nn.utils.clip_grad_value_(net.parameters(), 0.02)
                if mistake == "late scale" and number >= 2:
                    for group in optimizer.param_groups:
                        group["lr"] = rate * 0.9
                optimizer.step()
                optimizer.zero_grad()
                if mistake == "lost moments":
                    optimizer.state.clear()
            watch.step(number + 1)
            if mistake == "replica drifts" and rank and number == 1:
                with torch.no_grad():
                    net.out.bias.add_(0.01)
        watch.evaluated(float(loss.detach()), "loss")


if __name__ == "__main__":
    main()
