"""Language models: windows of tokens, GPT-2's shape and initial weights, the embedded prose, drawn tokens."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import TrainingParts, Workload
from repro.workloads import gpt_synthetic, text
from repro.workloads.gpt_synthetic import GptSynthetic, Recipe
from repro.workloads.text import Text
from repro.workloads.tokens.language_model import SIZES
from repro.workloads.tokens.model import Gpt, Windows, loss, summed_loss
from repro.workloads.tokens.shape import Shape
from tests.plans import setting

TINY = GptSynthetic(size="small", layers=1, width=32, heads=2, context=16, vocabulary=64, train_tokens=4096,
                    eval_tokens=512)
SMALL_TEXT = Text(context=16, layers=1, width=16, heads=2)


def opened(workload: Workload, seed: int = 0) -> TrainingParts:
    parts = workload.build(Streams(7, seed), "cpu")
    assert parts.open_data() == workload.identity().sha256
    return parts


# ---- windows


@pytest.mark.parametrize("cuts", [(), (40,), (7, 8, 30, 31)], ids=str)
def test_windows_cover_the_stream_once_however_it_is_divided(cuts: tuple[int, ...]) -> None:
    stream = np.arange(100, dtype=np.uint16)
    windows = Windows(np.split(stream, cuts), 9)
    inputs, targets = windows.batch(np.arange(windows.count))
    assert windows.count == 11
    assert inputs.flatten().tolist() == list(range(99))
    assert targets.flatten().tolist() == list(range(1, 100))
    assert inputs.dtype == targets.dtype == torch.int64


@pytest.mark.parametrize(("tokens", "length", "count"), [(9, 9, 0), (10, 9, 1), (18, 9, 1), (19, 9, 2), (0, 9, 0)])
def test_the_last_window_needs_the_token_after_it(tokens: int, length: int, count: int) -> None:
    assert Windows([np.zeros(tokens, np.uint16)], length).count == count


def test_only_the_first_tokens_count_if_a_number_is_given() -> None:
    windows = Windows([np.arange(100, dtype=np.uint16)], 10, tokens=31)
    assert windows.count == 3
    assert windows.batch(np.array([2]))[1][0, -1] == 30


@pytest.mark.parametrize("index", [-1, 11])
def test_a_window_that_does_not_exist_is_an_error(index: int) -> None:
    with pytest.raises(IndexError):
        Windows([np.arange(100, dtype=np.uint16)], 9).batch(np.array([0, index]))


@pytest.mark.parametrize("workload", [TINY, SMALL_TEXT], ids=lambda item: type(item).__name__)
def test_a_copy_in_an_input_worker_reads_the_same(workload: Workload) -> None:
    parts = opened(workload)
    assert parts.reader is not None
    sent = pickle.dumps(parts.reader)
    assert len(sent) < 2000  # the data are opened there, not sent
    copy, indices = pickle.loads(sent), np.array([3, 0, 5])
    first, second = parts.reader.train(1, indices), copy.train(1, indices)
    assert all(torch.equal(*pair) for pair in zip(first.batch, second.batch, strict=True))
    assert second.fed[0].tolist() == [3, 0, 5]
    assert second.fed[1] is None
    assert torch.equal(parts.reader.evaluation(indices)[0], copy.evaluation(indices)[0])


@pytest.mark.parametrize("workload", [TINY, SMALL_TEXT], ids=lambda item: type(item).__name__)
def test_parts_are_fed_and_counted(workload: Workload) -> None:
    parts = opened(workload)
    inputs, targets = parts.train_batch(0, np.array([1, 2]))
    assert inputs.shape == targets.shape == (2, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert parts.fed is not None
    assert [fed[0].tolist() for fed in parts.fed()] == [[1, 2]]
    last = parts.eval_batch(np.array([workload.eval_samples - 1]))
    assert last[0].shape == (1, 16)
    with pytest.raises(IndexError):
        parts.eval_batch(np.array([workload.eval_samples]))
    with pytest.raises(IndexError):
        parts.train_batch(0, np.array([workload.train_samples]))
    made = parts.synthetic_batch(3)
    assert made[0].shape == made[1].shape == (3, 16)
    assert torch.equal(made[0], parts.synthetic_batch(3)[0])


# ---- the model


@pytest.mark.parametrize(("size", "parameters"), [("124M", 124_439_808), ("350M", 354_823_168)])
def test_gpt_2_has_as_many_parameters_as_published(size: Any, parameters: int) -> None:
    shape = GptSynthetic(size=size).shape
    with torch.device("meta"):
        model = Gpt(shape)
    assert sum(item.numel() for item in model.parameters()) == parameters
    assert (len(model.blocks), shape.context) == (SIZES[size][0], 1024)


def test_options_change_the_shape() -> None:
    workload = GptSynthetic(size="124M", layers=3, width=96, heads=6, pad_vocabulary=128, tied=False, dropout=0.1)
    shape = workload.shape
    assert (shape.layers, shape.width, shape.heads, shape.vocabulary) == (3, 96, 6, 50304)
    with torch.device("meta"):
        model = Gpt(shape)
    assert sum(item.numel() for item in model.parameters()) == 10_092_384
    assert model.output is not None


def test_initial_weights_are_gpt_2s() -> None:
    torch.manual_seed(0)
    model = Gpt(Shape(512, 64, 4, 4, 64))
    state = dict(model.named_parameters())
    assert float(state["tokens"].detach().std()) == pytest.approx(0.02, rel=0.05)
    for name in ("attention.project", "narrow"):
        ends = torch.cat([block.get_submodule(name).weight.flatten() for block in model.blocks])  # type: ignore[union-attr]
        assert float(ends.detach().std()) == pytest.approx(0.02 / math.sqrt(8), rel=0.05)
    assert all(not item.detach().any() for name, item in state.items() if name.endswith(".bias"))
    # An untrained model knows nothing: its loss is near that of equal chances.
    inputs, targets = torch.randint(512, (2, 2, 64))
    assert float(loss(model(inputs), targets).detach()) == pytest.approx(math.log(512), abs=0.1)


def test_a_token_sees_none_after_it() -> None:
    torch.manual_seed(0)
    model = Gpt(Shape(32, 8, 2, 2, 16)).eval()
    first = torch.randint(32, (1, 8))
    second = first.clone()
    second[0, 5] = (second[0, 5] + 1) % 32
    changed = (model(first) - model(second)).detach().abs().amax(dim=2)[0]
    assert changed[:5].max() == 0
    assert changed[5:].min() > 0


def test_dropout_is_drawn_by_modules_whose_rate_the_gate_can_set() -> None:
    torch.manual_seed(0)
    model = Gpt(Shape(32, 8, 2, 2, 16, dropout=0.5)).train()
    batch = torch.randint(32, (1, 8))
    assert not torch.equal(model(batch), model(batch))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert torch.equal(model(batch), model(batch))


def test_the_metric_is_the_mean_over_tokens_also_from_uneven_batches() -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(5, 7, 11), torch.randint(11, (5, 7))
    whole = functional.cross_entropy(outputs.reshape(35, 11), targets.reshape(35))
    parts = summed_loss(outputs[:2], targets[:2]) + summed_loss(outputs[2:], targets[2:])
    assert float(parts) / 5 == pytest.approx(float(whole), rel=1e-6)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Text(width=50), "width 50 is not divisible by heads 4"),
    (lambda: GptSynthetic(heads=5), "width 768 is not divisible by heads 5"),
    (lambda: GptSynthetic(train_tokens=1024), "a window of 1,024 tokens is longer than the data: 1,024 for training"),
])
def test_options_that_do_not_fit_are_one_line(make: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert words in str(caught.value)


def test_an_evaluation_of_a_large_vocabulary_takes_few_windows_at_once() -> None:
    assert GptSynthetic().eval_batch_size == 5
    assert TINY.eval_batch_size == 512


# ---- prose


def test_the_prose_is_the_shipped_book_in_order() -> None:
    book, parts = text.verified(), text.split()
    assert book.tobytes().startswith(b"Chapter 1\n\nSir Walter Elliot, of Kellynch Hall, in Somersetshire")
    assert np.concatenate([*parts.train, *parts.evaluation]).tobytes() == text.PATH.read_bytes()
    assert len(book) == text.BYTES
    assert len(parts.evaluation[0]) == text.EVAL_BYTES
    assert book.tobytes().isascii()
    assert b"Gutenberg" not in book.tobytes()
    assert text.SHA256 in (text.PATH.parent / "SOURCE.txt").read_text()


def test_prose_that_was_changed_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "other.txt").write_text("It is a truth universally acknowledged")
    monkeypatch.setattr(text, "PATH", tmp_path / "other.txt")
    text._read.cache_clear()
    try:
        with pytest.raises(TrialError, match="the file was changed after it was installed"):
            Text().identity()
        (tmp_path / "other.txt").unlink()
        text._read.cache_clear()
        with pytest.raises(TrialError, match="No such file"):
            Text().build(Streams(0, 0), "cpu").open_data()
    finally:
        text._read.cache_clear()


# ---- drawn tokens


def test_drawn_tokens_are_frequent_as_words_and_follow_one_another() -> None:
    recipe = Recipe(vocabulary=32, train_tokens=200_000, eval_tokens=1000, seed=1)
    tokens = gpt_synthetic.draw(recipe).train[0].astype(int)
    pairs = np.zeros((32, 32))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    assert float((pairs.max(1) / pairs.sum(1)).min()) > 0.7
    chances = pairs / pairs.sum(1, keepdims=True)
    logs = np.log(chances, out=np.zeros_like(chances), where=chances > 0)
    measured = -float((pairs.sum(1) / pairs.sum() * (chances * logs).sum(1)).sum())
    assert gpt_synthetic.floor(recipe) == pytest.approx(measured, abs=0.02)


def test_drawn_tokens_depend_on_their_recipe_alone() -> None:
    recipe = Recipe(32, 1000, 100, 0)
    first = gpt_synthetic.draw(recipe).sha256
    gpt_synthetic.draw.cache_clear()
    assert gpt_synthetic.draw(recipe).sha256 == first
    assert gpt_synthetic.draw(Recipe(32, 1000, 100, 1)).sha256 != first


def test_the_plan_says_which_loss_no_model_can_pass() -> None:
    least = gpt_synthetic.floor(Recipe(64, 4096, 513, 0))
    assert f"{least:.3f} nats" in (TINY.note(setting(workload="gpt-synthetic", processes=1)) or "")


def test_a_small_model_learns_the_successors() -> None:
    parts = opened(TINY)
    optimizer = torch.optim.AdamW(parts.model.parameters(), lr=2e-2)
    torch.set_num_threads(1)  # two threads that wait for one another take longer on a busy machine
    for step in range(60):
        inputs, targets = parts.train_batch(0, np.arange(16) + 16 * (step % 15))
        value = parts.loss(parts.model(inputs), targets)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    inputs, targets = parts.eval_batch(np.arange(TINY.eval_samples))
    with torch.no_grad():
        reached = float(parts.scores["val_loss"](parts.model(inputs), targets)) / TINY.eval_samples
    assert gpt_synthetic.floor(Recipe(64, 4096, 513, 0)) < reached < 2.6 < math.log(64)


@pytest.mark.slow
def test_a_compiled_model_that_has_seen_the_warm_up_is_not_compiled_again() -> None:
    # torch compiles for more than a shape: a tensor that is a view of another is a case of its own.
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph

    parts = Text(layers=1, width=8, heads=1).build(Streams(1, 0), "cpu")
    parts.open_data()
    torch._dynamo.reset()
    model = torch.compile(parts.model, backend=backend)
    model(parts.synthetic_batch(4)[0])
    with torch.no_grad():
        for size in (7, 3):
            model(parts.synthetic_batch(size)[0])
    warm = len(graphs)
    model(parts.train_batch(0, np.arange(4))[0])
    with torch.no_grad():
        for size in (7, 7, 3):
            model(parts.eval_batch(np.arange(size))[0])
    torch._dynamo.reset()
    assert (warm > 0, len(graphs)) == (True, warm)
