"""A workload whose data are prepared files: its numbers of samples come from the manifest and are part of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from repro.core.errors import TrialError
from repro.seams.plugin import Setting
from repro.seams.training import DataIdentity, Workload
from repro.suite.field_problem import describe_error
from repro.workloads.data import manifest, prepare
from repro.workloads.data.manifest import DataForm, Facts, Prepared


class Stated(BaseModel):
    """Facts of a manifest that define an experiment; every field is a fact of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Counts(Stated):
    """Facts of a data set whose samples are counted."""

    train_samples: int = Field(ge=1)
    eval_samples: int = Field(ge=1)


class PreparedWorkload(Workload):
    """Base of workloads that read prepared files.

    A subclass sets `form` and declares `data` with the facts of the official data set as default.
    """

    form: ClassVar[DataForm]
    from_data: ClassVar[tuple[str, ...]] = ("data",)
    data: Stated
    """Facts of the data set; those of the prepared one unless the suite states them. Data with others are refused."""

    @classmethod
    def found_here(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = manifest.find(cls.form.name)
        except TrialError:
            return {}  # `identity` says what is wrong
        if found is None:
            return {}
        return {"data": cls._stated(found.manifest.facts)}

    @classmethod
    def problem_of(cls, facts: Facts) -> str:
        """Return why no suite can use data with these facts, in one phrase; empty if one can."""
        try:
            cls._model()(**cls._stated(facts))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            if first["type"] != "greater_than_equal":
                problem, path = describe_error(error, cls._model())
                return f"no suite can use these files: {'.'.join(map(str, path))}: {problem}"
            what = "classes" if name == "classes" else "samples"
            return f"too few {what}: {name} is {first['input']}, at least {first['ctx']['ge']} are needed"
        return ""

    @classmethod
    def _stated(cls, facts: Facts) -> dict[str, Any]:
        """Return those facts that the plan holds."""
        return {name: facts.get(name) for name in cls._model().model_fields}

    @classmethod
    def _model(cls) -> type[Stated]:
        return cls.model_fields["data"].annotation  # type: ignore[return-value]

    def unsupported(self, setting: Setting) -> str | None:
        fewest = min(self.train_samples, self.eval_samples)
        if fewest < setting.processes:
            return (f"too few samples: the data have {self.train_samples} for training and {self.eval_samples} for "
                    f"evaluation, fewer than the {setting.processes} processes")
        return None

    def absent(self) -> str:
        try:
            self.prepared()
        except TrialError as error:
            return str(error)
        return ""

    def prepared(self) -> Prepared:
        """Return the prepared data of this workload; no file is read but the manifest.

        Raises:
            TrialError: there are none, or they have other counts than the plan.
        """
        found = prepare.required(self.form)
        for name, planned in self.data.model_dump().items():
            if (here := found.manifest.facts.get(name)) != planned:
                raise TrialError(f"{self.form.name}: the plan is for data with {name} {planned}, those prepared here "
                                 f"have {here}; a new plan takes the numbers of the prepared data")
        return found

    def identity(self) -> DataIdentity:
        found = self.prepared()
        prepare.check_for_run(found)
        made = found.manifest
        return DataIdentity(name=made.name, version=made.version, sha256=found.sha256, licence=made.licence,
                            train_samples=self.train_samples, eval_samples=self.eval_samples, source=made.source)


class FileWorkload(PreparedWorkload):
    """Base of workloads whose samples are counted by the manifest."""

    data: Counts

    @property
    def train_samples(self) -> int:
        return self.data.train_samples

    @property
    def eval_samples(self) -> int:
        return self.data.eval_samples
