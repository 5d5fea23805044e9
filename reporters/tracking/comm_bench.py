"""The communication benchmark as MLflow runs: one per algorithm and number of ranks, its metrics by size."""

from __future__ import annotations

import time

from repro.bench.comm.result import CommOutcome, CommPoint, WorldResult, figures
from repro.core.redact import redacted
from repro.runner.tracking_store import translated

from .metric_points import MetricPoint
from .run_view import RunView
from .server import Server

EXPERIMENT = "bench-comm"
TIMEOUT_SECONDS = 10.0


def track(outcome: CommOutcome) -> list[str]:
    """Send it to MLFLOW_TRACKING_URI, or to the default store of MLflow; return where to look at each run.

    A metric's step is the size in bytes, so that a chart over steps is time against size.

    Raises:
        TrackingError: the store does not answer or refuses.
    """
    server = Server(None, EXPERIMENT, TIMEOUT_SECONDS)
    places = []
    with translated(server.uri):
        for world in outcome.worlds:
            for name in world.algorithms:
                view = _view(outcome, world, name)
                image = server.create(view, parent=None)
                points = [item for point in world.of(name).values() for item in _metrics(point, world.world, view)]
                server.send(image, view, points, [])
                server.set_status(image, view)
                places.append(f"{redacted(server.uri)} experiment {EXPERIMENT} run {view.tags['mlflow.runName']}")
    return places


def _view(outcome: CommOutcome, world: WorldResult, name: str) -> RunView:
    now, model = int(time.time() * 1000), world.model
    params = {
        "algorithm": name, "ranks": world.world, "launcher": outcome.launcher, "cores": outcome.cores,
        "seed": outcome.seed, "bytes_per_second": world.bytes_per_second, "alpha": model.alpha, "beta": model.beta,
        "gamma": model.gamma, "load_before": outcome.load[0], "load_after": outcome.load[1],
    }
    tags = {"mlflow.runName": f"{name}, {world.world} ranks", "repro.kind": "bench comm",
            "repro.origin": outcome.origin, "repro.effective": world.effective.get(name, "")}
    return RunView(key=f"{name}/{world.world}", start_ms=now, tags=tags, status="FINISHED", end_ms=now,
                   params={key: str(value) for key, value in params.items()})


def _metrics(point: CommPoint, world: int, view: RunView) -> list[MetricPoint]:
    values = {**figures(point, world), "bound_seconds": point.bound_seconds, "model_seconds": point.model_seconds,
              "sent_bytes": point.sent_bytes}
    if point.ratio:
        values |= {"ratio_to_backend": point.ratio.value, "ratio_low": point.ratio.low, "ratio_high": point.ratio.high}
    return [MetricPoint(key, float(value), point.size, view.start_ms)
            for key, value in values.items() if value is not None]
