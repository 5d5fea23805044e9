"""`repro` called in this process: for commands whose start is not the subject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from repro.cli.json_outputs import OUTPUTS, name_of, output_schema
from repro.cli.main import cli
from repro.core.errors import ReproError

if TYPE_CHECKING:
    import jsonschema

NAMES = {name_of(output): output for output in OUTPUTS}


def called(*arguments: object) -> Result:
    """Run `repro ARGUMENTS`; what it prints as JSON is what its schema says."""
    ended = CliRunner().invoke(cli, list(map(str, arguments)))
    check_json(arguments, ended.stdout)
    return ended


def check_json(arguments: Sequence[object], printed: str) -> None:
    """Require of a command with `--json` that it prints nothing, or what the schema that it names says."""
    if "--json" in arguments and printed:
        data = json.loads(printed)
        validator(NAMES[data["$schema"]]).validate(data)


@cache
def validator(output: str) -> jsonschema.Draft202012Validator:
    import jsonschema  # only here: the checks for GPUs start commands without it

    return jsonschema.Draft202012Validator(output_schema(output))


def succeeded(*arguments: object) -> Result:
    """Run `repro ARGUMENTS`, which ends with exit code 0."""
    ended = called(*arguments)
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended


def refusal(*arguments: object, kind: type[ReproError] = ReproError) -> str:
    """Run `repro ARGUMENTS`, which are refused; return the message, which is one line."""
    ended = called(*arguments)
    assert isinstance(ended.exception, kind), (ended.output, ended.exception)
    assert "\n" not in str(ended.exception)
    return str(ended.exception)
