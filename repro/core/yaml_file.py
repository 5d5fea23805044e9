"""Read a YAML file into plain data, and keep the line of every field."""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from repro.core.errors import SuiteError

MAX_BYTES = 1 << 18
"""PyYAML reads about 300 kB a second of the worst text, so a file takes a second at most."""
MAX_DEPTH = 20
MAX_NODES = 10_000
MAX_DIGITS = 100
"""Most characters of a number."""
OTHER_BASE = re.compile(r"[-+]?0[0-7_]+|.*:.*")
"""A number of base 8 or 60 in YAML 1.1, which people read otherwise: 064 is 52 there, and 1:30 is 90."""
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

FieldPath = tuple[Hashable, ...]


class _BoundedLoader(yaml.SafeLoader):
    """Loader that rejects constructs that no suite needs, while reading, not afterwards."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self._file, self._depth, self._nodes = name, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        nested = isinstance(event, yaml.CollectionStartEvent)
        self._depth += nested
        if isinstance(event, yaml.AliasEvent):
            self._refuse("aliases (*name) are not allowed; write the value out", event)
        if self._depth > MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH} levels", event)
        if self._nodes > MAX_NODES:
            self._refuse(f"more than {MAX_NODES} values", event)
        node = super().compose_node(parent, index)
        self._depth -= nested
        return node

    def _refuse(self, problem: str, event: yaml.Event) -> None:
        raise SuiteError(problem, file=self._file, line=event.start_mark.line + 1 if event.start_mark else None)


class YamlFile:
    """Plain data of a YAML file, and the line (from 1) of every key and list item, by path."""

    def __init__(self, name: str, text: str, stored: bool = False) -> None:
        """Parse `text`; `name` is the file's name in messages.

        Args:
            stored: the file of a record, whose numbers are those that ran, whatever a reader takes them for.

        Raises:
            SuiteError: not YAML, too large or too deep, a duplicate key, an alias, or a tag that builds objects.
        """
        self.name = name
        self._stored = stored
        self.lines: dict[FieldPath, int] = {}
        if len(text.encode("utf-8", "replace")) > MAX_BYTES:
            raise SuiteError(f"larger than {MAX_BYTES} bytes, which no suite needs", file=name)
        try:
            loader = _BoundedLoader(text, name)
            root = loader.get_single_node()
            self.data: Any = self._plain(root, ()) if root is not None else None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise SuiteError(
                f"not valid YAML: {error.problem or error.context}", file=name, line=mark.line + 1 if mark else None
            ) from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise SuiteError(f"not valid YAML: {str(error).splitlines()[0]}", file=name) from error

    def line(self, path: FieldPath) -> int | None:
        """Return the line of `path`, or of its nearest parent in the file."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def _plain(self, node: yaml.Node, path: FieldPath) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN_TAGS:
            raise SuiteError(f"tags ({node.tag}) are not allowed", file=self.name, line=node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        line = node.start_mark.line + 1
        if node.tag in NUMBERS and len(node.value) > MAX_DIGITS:
            raise SuiteError(f"a number of more than {MAX_DIGITS} characters", file=self.name, line=line)
        if not self._stored and node.tag in NUMBERS and OTHER_BASE.fullmatch(node.value):
            raise SuiteError(f"{node.value}: YAML reads this as base 8 (leading zero) or 60 (colon); write a decimal "
                             "number, or text in quotes", file=self.name, line=line)
        self._check_encodable(node)
        try:
            return _value(node)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:  # !!int x, !!bool x, 2024-13-45
            what = f"{node.value[:40]!r} is not a valid {node.tag.rpartition(':')[2]}"
            raise SuiteError(f"not valid YAML: {what}", file=self.name, line=line) from error

    def _check_encodable(self, node: yaml.ScalarNode) -> None:
        """Reject lone surrogates ("\\ud800"), which can be read but not written."""
        if any("\ud800" <= sign <= "\udfff" for sign in node.value):
            line = node.start_mark.line + 1
            raise SuiteError("not valid YAML: a lone surrogate is not a character", file=self.name, line=line)

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise SuiteError("a key must be a plain word", file=self.name, line=line)
            self._check_encodable(key_node)
            key = str(key_node.value)
            if key in result:
                raise SuiteError(f"{key!r} is given twice", file=self.name, line=line, field=dotted(path))
            self.lines[(*path, key)] = line
            result[key] = self._plain(value_node, (*path, key))
        return result


def _value(node: yaml.ScalarNode) -> Any:
    value = yaml.constructor.SafeConstructor().construct_object(node)
    if isinstance(value, str) and node.tag == "tag:yaml.org,2002:str" and getattr(node, "style", None) is None:
        # YAML 1.1 reads 1.0e-3 as a number but 1e-3 as a string; a number is meant.
        if value[:1] in "+-.0123456789" and "e" in value.lower():
            with suppress(ValueError):
                return float(value)
        return value
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(node.value)  # dates and the like: as written


def read_yaml(path: Path, name: str | None = None) -> YamlFile:
    """Read `path`.

    Raises:
        SuiteError: it cannot be read or is not plain YAML.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        return YamlFile(name or str(path), raw.decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SuiteError(f"cannot be read: {reason}", file=str(path)) from error


def dotted(path: FieldPath) -> str:
    """Format a path, for example matrix.engine[1].stage."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text
