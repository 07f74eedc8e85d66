"""What minka decided."""

import functools
import html
import json
import pathlib

from .errors import failed_precondition


class Plan:
    """A plan: str() is its tables, json its content as docs/plan.md describes it."""

    def __init__(self, executable):
        self._executable = executable

    @functools.cached_property
    def json(self) -> dict:
        return json.loads(self._executable.plan_json())

    @property
    def step_time_us(self) -> float:
        """Predicted, in microseconds."""
        return self.json["step_time_us"]

    @property
    def peak_memory_bytes(self) -> int:
        """Of the device that needs most."""
        return self.json["peak_memory_bytes"]

    @property
    def gap(self) -> float | None:
        """0.01: by its predicted costs no other plan that was searched is faster by more than a hundredth. None: nothing is proved."""
        return self.json["gap"]

    def candidates(self) -> dict:
        """What the stages of a pipeline were searched from: {"candidates": rows of a run of layers on a mesh, with times in microseconds,
        bytes per device and why it was dropped, "refused": meshes that layers cannot be planned on}; what `minka plan --candidates` writes.

        minka.Error where nothing was searched: plans of one mesh, stages or meshes that were given, plans that were loaded.
        """
        if self.json["schedule"] == "none":
            raise failed_precondition("there are no candidates: a plan of one mesh has no stages to search for")
        return json.loads(self._executable.candidates_json())

    def save(self, path: str) -> None:
        """Writes plan.json."""
        pathlib.Path(path).write_text(self._executable.plan_json())

    def __str__(self) -> str:
        return self._executable.plan_table()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """For notebooks: the tables, whose lines are never broken."""
        return f'<pre style="white-space: pre; overflow-x: auto; line-height: 1.25">{html.escape(str(self))}</pre>'


class ClusterPlan(Plan):
    """A plan for a cluster that need not be at hand, whose name is cluster."""

    def __init__(self, planned, cluster: str, function_name: str):
        super().__init__(planned)
        self.cluster = cluster
        self._planned = planned
        self._function_name = function_name

    def explain(self, pattern: str = "", *, operation: str = "", stage: int | None = None) -> str:
        """Why the plan is as it is, as of ParallelFunction.explain. Raises Error NOT_FOUND where none matches."""
        from minka.compiled import check_question, wait_with_progress
        check_question(self._function_name, pattern, operation)
        return wait_with_progress(self._planned.start_explain(pattern, operation, stage), self._function_name)
