"""Count the size of a checkout: `python tools/size.py [TREE]`, by default this one.

Rules, the same for every checkout:
- Production is every .py file of repro/, reporters/, benchmarks/ and templates/. Its core leaves out what stands beside
  it under a contract: the papers, published results, the board, scores over workloads (each with its reporters and
  command-line files), the reporters of the tuning, and the benchmarks.
- A line is a line of a file, blank ones and comments included. A statement is a node of the syntax tree that is a
  statement; docstrings are statements too, and are also counted apart.
- The share of docstrings is the lines of docstrings of modules, classes and functions, and of strings under an
  attribute, over all lines of production.
- The length of a function or method, nested ones too, is the lines from its `def` to its end, with its docstring and
  without.
- An import is one anywhere in a file, inside functions and for type checkers too; `from package import name` counts as
  one of the module `name` if there is one. `repro.reporters` is the folder reporters/.
- A file belongs to a subject if its path matches the subject's pattern in `SUBJECTS`; what couples a subject is each
  file outside it that imports one of its modules.
- A room is a folder of Python files; its `__init__.py` is not counted. A sliver is a module of less than 60 lines that
  one module imports.
- Tests are every .py file of tests/.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from statistics import median, quantiles

PRODUCTION = ("repro", "reporters", "benchmarks", "templates")
BESIDE = re.compile(
    r"(repro|reporters)/(papers|published|board|scores)/|reporters/tuning/|benchmarks/"
    # Where these stood before they had a folder.
    r"|repro/compare/ranking/(scores|score_runs|contenders)\.py|repro/tables/(scores|tuning)\.py"
    r"|reporters/page/sections/(scores|tuning)\.py"
    r"|repro/audit/published_facts\.py|repro/cli/(commands|text|workflows)/(board|imports|published)\.py"
    r"|repro/(measurements|volumes|preconditioners)/|repro/bench/(harness|verdicts)/"
    r"|repro/(engines/server|workloads/duplicates|compare/(forecast|scale))/|repro/engines/async_server\.py"
    r"|repro/worker/(async_loop|dealt_\w+|server_rank)\.py|reporters/page/scale_model\.py"
    r"|repro/cli/(commands|text|workflows)/(advi[cs]e|predict|volume)\.py")
"""Files of production that are not of the core."""
SUBJECTS: Mapping[str, str] = {
    "contest": r"(suite|stats|compare|compare/verdict|compare/design|cli/text|verdicts)/contests?\.py"
               r"|reporters/(page|page/\w+|paper|tables)/claim\w*\.py",
    "tuning": r"tuning|/tune\.py|suite/contenders\.py",
    "measurement kind": r"papers/measurement/|/(derive_|derive/)?measurement\.py|/measure_main\.py|gate[_/]measure\.py",
    "sequential": r"/(sequential|anytime|stage|sequential_runs)\.py|/(verify_)?looks\.py",
    "published": r"^(repro|reporters)/published/",
}
"""Subject -> what the paths of its files match."""
SLIVER = 60
ROOM = 15


@dataclass(frozen=True)
class Module:
    """One file."""

    path: PurePosixPath
    """Relative to the checkout."""
    text: str

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def name(self) -> str:
        """As other modules import it."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def docstrings(self) -> list[ast.Expr]:
        """Strings that are statements."""
        return [node for node in self.nodes if isinstance(node, ast.Expr) and _is_text(node)]

    @property
    def statements(self) -> int:
        return sum(isinstance(node, ast.stmt) for node in self.nodes)

    def function_lengths(self) -> Iterator[tuple[int, int]]:
        """Yield the lines of each function, and those without its docstring."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield _height(node), _height(node) - (_height(node.body[0]) if _is_text(node.body[0]) else 0)

    def imports(self, names: Mapping[str, Module]) -> Iterator[str]:
        """Yield the modules among `names` that this one imports; one may come twice."""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                asked = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                start = package[:len(package) - node.level + 1] if node.level else []
                source = ".".join([*start, *(node.module or "").split(".")]).rstrip(".")
                asked = [(source, alias.name) for alias in node.names]
            else:
                continue
            for source, name in asked:
                source = source.removeprefix("repro.") if source.startswith("repro.reporters") else source
                found = next((text for text in (f"{source}.{name}", source) if text in names), self.name)
                if found != self.name:
                    yield found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def modules(tree: Path, *folders: str) -> list[Module]:
    """Read the Python files of these folders."""
    paths = sorted(path for folder in folders for path in (tree / folder).rglob("*.py"))
    return [Module(PurePosixPath(path.relative_to(tree).as_posix()), path.read_text("utf-8")) for path in paths]


def is_core(item: Module) -> bool:
    return not BESIDE.match(str(item.path))


def sizes(name: str, found: list[Module]) -> str:
    """Format lines and statements of some modules."""
    statements, docs = (sum(count) for count in zip(*((item.statements, len(item.docstrings)) for item in found),
                                                    strict=True))
    return (f"{name:12}{sum(item.lines for item in found):>8,} lines  {statements:>7,} statements "
            f"({statements - docs:,} without docstrings)  {len(found):>5} files")


def report(tree: Path) -> Iterator[str]:
    """Yield the lines of the table."""
    production, tests = modules(tree, *PRODUCTION), modules(tree, "tests")
    yield sizes("production", production)
    yield sizes("core", [item for item in production if is_core(item)])
    yield sizes("tests", tests)
    documented = sum(_height(node) for item in production for node in item.docstrings)
    yield f"docstrings: {documented / sum(item.lines for item in production):.2%} of the lines of production"
    for what, lengths in zip(("functions", "  without docstring"), zip(*(
            length for item in production for length in item.function_lengths()), strict=True), strict=True):
        yield (f"{what}: {len(lengths):,}, median {median(lengths):g} lines, p90 {quantiles(lengths, n=10)[-1]:g}, "
               f"longest {max(lengths)}")
    names = {item.name: item for item in production}
    importers: dict[str, set[str]] = defaultdict(set)
    for item in production:
        for name in item.imports(names):
            importers[name].add(item.name)
    yield "coupling (files outside a subject that import it, those of the core; files of it, lines of it):"
    for subject, words in SUBJECTS.items():
        inside = {item.name for item in production if re.search(words, str(item.path))}
        outside = set[str]().union(*(importers[name] for name in inside)) - inside
        core = sum(is_core(names[name]) for name in outside)
        yield (f"  {subject:18}{len(outside):>4}{core:>5}{len(inside):>6}"
               f"{sum(names[name].lines for name in inside):>7,}")
    rooms = Counter(str(item.path.parent) for item in production if item.path.name != "__init__.py")
    yield f"rooms: {len(rooms)}, of more than {ROOM} files: " + _listed(
        (name, count) for name, count in rooms.most_common() if count > ROOM)
    basenames = Counter(item.path.name for item in production if not item.path.name.startswith("__"))
    yield "basenames used four times or more: " + _listed(
        (name, count) for name, count in basenames.most_common() if count > 3)
    single = [item for item in production if len(importers[item.name]) == 1 and item.path.name != "__init__.py"]
    slivers = [item for item in single if item.lines < SLIVER]
    yield (f"modules with one importer: {len(single)} ({sum(item.lines for item in single):,} lines), of which "
           f"{len(slivers)} of less than {SLIVER} lines:")
    yield from (f"  {item.lines:>4} {item.path} <- {min(importers[item.name])}" for item in slivers)


def _listed(items: Iterator[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in items) or "none"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?", default=Path(__file__).parents[1])
    asked = parser.parse_args()
    print(f"{__doc__}\n{asked.tree.resolve()}:")
    for line in report(asked.tree):
        print(line)
