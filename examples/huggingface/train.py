"""A small vision transformer learns the handwritten digits, with Hugging Face's Trainer: seconds on a processor."""

import argparse
import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from repro.callbacks.huggingface import WatchCallback


def examples() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Return 1,500 images to train on and 297 to evaluate, each 1 x 8 x 8."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    rows = [{"pixel_values": image, "labels": torch.tensor(label)}
            for image, label in zip(images, digits.target, strict=True)]
    return rows[:1500], rows[1500:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    set_seed(options.seed)
    model = ViTForImageClassification(ViTConfig(
        image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    train, test = examples()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model, train_dataset=train, eval_dataset=test,
            args=TrainingArguments(
                output_dir=folder, seed=options.seed, learning_rate=options.lr, num_train_epochs=options.epochs,
                per_device_train_batch_size=options.batch, per_device_eval_batch_size=297, eval_strategy="epoch",
                save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True),
            compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))},
            callbacks=[WatchCallback()],  # the only line that repro needs
        )
        trainer.train()


if __name__ == "__main__":
    main()
