"""The callbacks in the real frameworks, on a processor; the examples as a user runs them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from repro.program.observation import OutputProblem
from tests.watched import QUIET, environment, program

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = {"huggingface": "transformers", "lightning": "lightning", "accelerate": "accelerate"}
METRICS = {"huggingface": "eval_loss", "lightning": "val_loss", "accelerate": "val_loss"}

pytestmark = pytest.mark.slow


def need(framework: str) -> None:
    if importlib.util.find_spec(PACKAGES[framework]) is None:
        pytest.skip(f"{PACKAGES[framework]} is not installed: pip install 'repro-harness[{framework}]'")


def observed_example(folder: Path, framework: str, *arguments: str, processes: int = 1) -> None:
    """Run an example of 2 passes and check what it reports; all of it, and nothing twice."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    found = program(*(launcher if processes > 1 else []), str(EXAMPLES / framework / "train.py"), "--epochs", "2",
                    *arguments, folder=folder, metric=METRICS[framework])
    ranks = 2 if "--processes" in arguments else processes
    assert (found[0].seen, found[-1].seen) == ("start", "stop")
    evaluations = [item for item in found if item.seen == "evaluation"]
    assert [item.step for item in evaluations] == [30 // ranks, 60 // ranks]
    first, last = (item.value or 0.0 for item in evaluations)
    assert 0 < last < first < 3
    steps = [item.step for item in found if item.seen == "step"]
    assert steps[0] == 1 and steps[-1] == 60 // ranks


@pytest.mark.parametrize("framework", PACKAGES)
def test_an_example_reports_start_steps_evaluations_and_stop(framework: str, tmp_path: Path) -> None:
    need(framework)
    observed_example(tmp_path, framework)


@pytest.mark.parametrize("framework", PACKAGES)
def test_of_two_ranks_under_torchrun_one_reports(framework: str, tmp_path: Path) -> None:
    need(framework)
    observed_example(tmp_path, framework, *(["--processes", "2"] if framework == "lightning" else []), processes=2)


def test_of_two_ranks_that_lightning_starts_itself_one_reports(tmp_path: Path) -> None:
    need("lightning")
    observed_example(tmp_path, "lightning", "--processes", "2")


LIGHTNING = """
import lightning.pytorch as pl
import torch
from repro.callbacks.lightning import WatchCallback

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.validations = 0
    def training_step(self, batch, index):
        loss = self.layer(batch).pow(2).mean()
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("every", self.layer(batch).sum())
        if self.validations % 2 == 0:
            self.log("second", 1.0)
    def on_validation_epoch_end(self):
        self.validations += not self.trainer.sanity_checking
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
trainer = pl.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
                     callbacks=[WatchCallback()])
net = Net()
trainer.validate(net, data)
trainer.fit(net, data, data)
trainer.validate(net, data)
"""


@pytest.mark.parametrize(("metric", "steps"), [("every", [3, 6, 9, 12]), ("second", [6, 12]), ("none", [])])
def test_lightning_s_metrics_are_reported_when_they_are_logged(
    metric: str, steps: list[int], tmp_path: Path
) -> None:
    need("lightning")
    found = program("-c", LIGHTNING, folder=tmp_path, metric=metric)
    assert [item.step for item in found if item.seen == "evaluation"] == steps
    assert [item.seen for item in found if item.seen in ("start", "stop")] == ["start", "stop"]


def test_lightning_s_validations_between_two_updates_are_left_out(tmp_path: Path) -> None:
    need("lightning")
    often = LIGHTNING.replace("accumulate_grad_batches=2", "accumulate_grad_batches=2, val_check_interval=1")
    found = program("-c", often, folder=tmp_path, metric="every")
    assert [item.step for item in found if item.seen == "evaluation"] == [*range(13)]


def test_a_lightning_step_that_stands_still_is_not_hidden(tmp_path: Path) -> None:
    """Of a module that steps its optimizer itself, Lightning counts no step."""
    need("lightning")
    still = LIGHTNING.replace(", accumulate_grad_batches=2", ", val_check_interval=3").replace(
        "        self.validations = 0\n", "        self.validations = 0\n        self.automatic_optimization = False\n")
    with pytest.raises(OutputProblem, match="two evaluations of step 0"):
        program("-c", still, folder=tmp_path, metric="every")


HUGGINGFACE = """
import sys
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from repro.callbacks.huggingface import WatchCallback

class Net(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()
    def forward(self, x, labels):
        return {"loss": (self.layer(x)[:, 0] - labels).pow(2).mean(), "scores": self.layer(x)}

class Failing(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        if "fail" in sys.argv and state.global_step == 3:
            raise ValueError("planted")

rows = [{"x": torch.ones(4), "labels": torch.tensor(1.0)}] * 12
trainer = Trainer(model=Net(PretrainedConfig()), train_dataset=rows, eval_dataset={"near": rows, "far": rows},
                  args=TrainingArguments(output_dir="out", max_steps=6, eval_strategy="steps", eval_steps=2,
                                         eval_on_start=True, per_device_train_batch_size=1,
                                         gradient_accumulation_steps=2, save_strategy="no", report_to="none",
                                         use_cpu=True),
                  callbacks=[WatchCallback(), Failing()])
trainer.train()
trainer.evaluate()
"""


def test_the_trainer_s_evaluations_are_reported_each_under_its_name(tmp_path: Path) -> None:
    need("huggingface")
    found = program("-c", HUGGINGFACE, folder=tmp_path, metric="eval_far_loss")
    assert [item.step for item in found if item.seen == "evaluation"] == [0, 2, 4, 6]
    assert found[-1].seen == "stop", "the evaluation after the training is none of it"


def test_a_training_that_fails_has_not_stopped(tmp_path: Path) -> None:
    need("huggingface")
    found = program("-c", HUGGINGFACE, "fail", folder=tmp_path, metric="eval_near_loss", code=1)
    assert [item.seen for item in found if item.seen != "step"] == ["start", "evaluation", "evaluation"]
    assert "planted" in Path(tmp_path, "output.txt").read_text()


ACCELERATE = """
from accelerate import Accelerator
from repro.callbacks.accelerate import WatchTracker
accelerator = Accelerator(cpu=True, log_with=WatchTracker("quality"))
accelerator.init_trackers("some", config={"lr": 0.1})
accelerator.log({"loss": 3.0}, step=5)
accelerator.log({"quality": 0.25})
accelerator.log({"loss": 1.0, "quality": float("nan")}, step=8)
assert accelerator.get_tracker("repro").name == "repro"
accelerator.end_training()
"""


def test_what_an_accelerator_logs_is_step_or_evaluation(tmp_path: Path) -> None:
    need("accelerate")
    found = program("-c", ACCELERATE, folder=tmp_path, metric="quality")
    assert [(item.seen, item.step, str(item.value)) for item in found] == [
        ("start", None, "None"), ("step", 5, "None"), ("evaluation", 5, "0.25"), ("step", 8, "None"),
        ("evaluation", 8, "nan"), ("stop", None, "None")]


@pytest.mark.parametrize("framework", PACKAGES)
def test_without_repro_an_example_runs_the_same(framework: str, tmp_path: Path) -> None:
    need(framework)
    done = subprocess.run([sys.executable, str(EXAMPLES / framework / "train.py"), "--epochs", "1"], cwd=tmp_path,
                          env=environment(QUIET), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
