"""Strict JSON: duplicate keys, deep nesting and overlong numbers are refused; NaN and Infinity become floats."""

from __future__ import annotations

import json
from typing import Any

from repro.published.untrusted.text import DamagedInput, plain

MAX_DEPTH = 32


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DamagedInput(f"the key {plain(twice, 40)!r} occurs twice in one object")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def parse(text: bytes) -> Any:
    """Parse a JSON text. NaN and Infinity become floats, which `untrusted.text.number` rejects.

    Raises:
        DamagedInput: not UTF-8, not JSON, a key twice in one object, nested deeper than MAX_DEPTH.
    """
    try:
        # strict UTF-8: latin-1 would accept any bytes and change names
        value = _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DamagedInput(f"not UTF-8 (byte {error.start + 1})") from None
    except RecursionError:
        raise DamagedInput(f"JSON nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise DamagedInput(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except ValueError:  # a number of more digits than Python converts
        raise DamagedInput("a number in it is too long") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for item in level if isinstance(item, dict | list)
                 for inner in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return
    raise DamagedInput(f"JSON nested deeper than {MAX_DEPTH} levels")
