"""No pickle, no eval, no shell, no unbounded archive in the product's sources, checked call by call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("repro", "reporters", "benchmarks", "suites", "templates")
SOURCES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "xmlrpc"}
"""Loading the output of these runs code of its author."""
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "tarfile.open",
    "shutil.unpack_archive",
    "torch.hub.load",
    "numpy.load",
    "np.load",
    "pandas.read_pickle",
    "pd.read_pickle",
    "torch.load",
    "tempfile.mktemp",
    "os.execl",
    "os.execv",
    "os.spawnl",
    "pty.spawn",
    "shutil.make_archive",
    "xml.etree.ElementTree.parse",
}
METHODS = {"extractall", "extract"}
"""Of zipfile and tarfile: they follow what the archive says; `repro.bundle.source` unpacks by itself."""
ALLOWED: dict[tuple[str, str], str] = {
    ("repro/engines/plain/tensor_files.py", "pickle"): "base class of an unpickler for an index's classes only",
    ("repro/workloads/cifar10_form.py", "tarfile.open"): "reads named members of known size; extracts nothing",
    ("repro/workloads/cifar10_form.py", "pickle"): "base class of an unpickler that refuses every class",
}
"""(file, call) -> why it may stay. torch.load with weights_only=True needs no entry."""


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of everything on the lists in one source text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, item.name) for item in node.names if item.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in MODULES:
                yield node.lineno, str(node.module)
            yield from ((node.lineno, name) for item in node.names if (name := f"{node.module}.{item.name}") in CALLS)
        elif isinstance(node, ast.Call):
            yield from _call(node)


def _call(node: ast.Call) -> Iterator[tuple[int, str]]:
    name, given = _dotted(node.func), {item.arg: item.value for item in node.keywords}
    if name == "torch.load" and _is(given.get("weights_only"), True):
        return
    if name in ("np.load", "numpy.load") and _is(given.get("allow_pickle"), False):
        return
    if name in CALLS or (isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
        yield node.lineno, name
    shell = given.get("shell")
    if shell is not None and not _is(shell, False):
        yield node.lineno, f"{name}(shell=...)"
    if "allow_pickle" in given and not _is(given["allow_pickle"], False):
        yield node.lineno, f"{name}(allow_pickle=...)"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_the_product_has_none_of_them() -> None:
    assert len(SOURCES) > 150
    found = [
        (path.relative_to(ROOT).as_posix(), what, line)
        for path in SOURCES
        for line, what in dangers(path.read_text(encoding="utf-8"))
    ]
    assert [item for item in found if item[:2] not in ALLOWED] == []
    assert set(ALLOWED) <= {item[:2] for item in found}, "an exception that is no longer needed"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import dill.detect",
        "eval('1')",
        "exec(x)",
        "from os import system",
        "subprocess.run('ls', shell=True)",
        "subprocess.Popen(x, shell=y)",
        "yaml.load(t, Loader=L)",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "torch.load(p, weights_only=w)",
        "a.extractall('.')",
        "np.load(p, allow_pickle=True)",
        "import numpy; numpy.load('x')",
        "os.system('true')",
        "shutil.unpack_archive('x')",
    ],
)
def test_each_kind_is_found(text: str) -> None:
    assert list(dangers(text))


@pytest.mark.parametrize(
    "text",
    [
        "torch.load(p, weights_only=True)",
        "subprocess.run(['ls'], shell=False)",
        "yaml.compose(t)",
        "re.compile('x')",
        "model.eval()",
        "import json",
    ],
)
def test_and_nothing_else(text: str) -> None:
    assert not list(dangers(text))


def test_templates_escape_their_values() -> None:
    """A suite's title or a label out of a stranger's bundle is text, never markup."""
    calls = [
        (path.name, node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and _dotted(node.func) in ("Environment", "jinja2.Environment")
        and any(item.arg == "loader" for item in node.keywords)
    ]
    assert calls
    for name, node in calls:
        assert any(item.arg == "autoescape" and _is(item.value, True) for item in node.keywords), (
            f"{name}:{node.lineno}"
        )
