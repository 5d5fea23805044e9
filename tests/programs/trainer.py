"""A small random GPT-2 trained by the Hugging Face Trainer, right or with one planted mistake."""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from repro.callbacks.huggingface import WatchCallback

SAMPLES, BATCH, LENGTH, WORDS = 128, 8, 12, 50
SHARDED = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"],
           "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}


def deepspeed(stage: int, mistake: str) -> dict[str, object]:
    stated: dict[str, object] = {
        "zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto", "zero_allow_untested_optimizer": True, "steps_per_print": 1 << 30,
        "bf16": {"enabled": "auto"}}
    if mistake != "silent clipping":
        stated["gradient_clipping"] = "auto"
    return stated


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="ddp")
    parser.add_argument("--mistake", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    mistake = options.mistake.replace("_", " ")
    set_seed(options.seed + (mistake == "other seed"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=12, report_to="none", disable_tqdm=True, use_cpu=not options.gpu,
            save_strategy="no", logging_strategy="no",
            seed=options.seed, data_seed=options.seed + (mistake == "other data seed"),
            per_device_train_batch_size=BATCH // options.processes // options.micro * (2 if mistake == "batch" else 1),
            gradient_accumulation_steps=options.micro, bf16=options.bf16,
            learning_rate=1e-2 * (options.processes if mistake == "rate times ranks" else 1),
            lr_scheduler_type={"other schedule": "cosine", "warm-up": "constant_with_warmup"}.get(mistake, "constant"),
            warmup_steps=2 if mistake == "warm-up" else 0, weight_decay=0.1 if mistake == "decay" else 0.0,
            adam_beta2=0.95 if mistake == "betas" else 0.999, adam_epsilon=1e-4 if mistake == "epsilon" else 1e-8,
            max_grad_norm=1e-2 if mistake == "clipping" else options.clip,
            label_smoothing_factor=0.1 if mistake == "smoothing" else 0.0,
            optim="sgd" if mistake == "another rule" else "adamw_torch",
            **({"deepspeed": deepspeed(int(options.backend[-1]), mistake)} if "zero" in options.backend else {}),
            **({"fsdp": True, "fsdp_config": SHARDED} if options.backend == "fsdp2" else {}))
        model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
                                           bos_token_id=0, eos_token_id=0, tie_word_embeddings=mistake != "untied"))
        if mistake == "half weights":
            model.to(torch.bfloat16)
        if mistake == "frozen part":
            model.transformer.wte.requires_grad_(False)
        if mistake == "other dropout":
            model.transformer.drop.p = 0.3
        tokens = torch.randint(WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(3))
        if mistake == "other tokens":
            tokens = (tokens + 1) % WORDS
        labels = tokens.roll(1, 0) if mistake == "shuffled labels" else tokens
        rows = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[WatchCallback()]).train()


if __name__ == "__main__":
    main()
