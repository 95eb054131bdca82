"""What a run counts for Prometheus. Through Temporal's meter, which records nothing while a history is replayed."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import Failure, SessionUnavailable
    from agent_runs.contracts.messages import PodRef
    from agent_runs.contracts.outcome import Outcome
    from agent_runs.metrics import definitions as metrics
    from agent_runs.metrics.recorder import Recorder
    from workflows.current_details import Phase


def begun() -> None:
    """A worker has begun the run. Its start and the start of this task are times of the same server."""
    recorder = _recorder()
    recorder.count(metrics.RUNS_STARTED)
    recorder.observe(metrics.QUEUE_WAIT, _since_start())


def agent_started(pod: PodRef) -> None:
    """The agent of the first attempt was seen running."""
    if pod.created_at is not None and pod.started_at is not None:
        cluster = max((pod.started_at - pod.created_at).total_seconds(), 0.0)
        _recorder().observe(metrics.DISPATCH, _since_start() - cluster)


def retried(failure: Failure | None) -> None:
    """Another attempt follows one that has ended like this; without a failure its session was unknown."""
    _recorder().count(metrics.RETRIES, code=failure.code if failure is not None else SessionUnavailable.code)


def contradicted() -> None:
    """The status of an agent's container says otherwise than its process."""
    _recorder().count(metrics.CONTRADICTED_ENDS)


def ended(outcome: Outcome, phase: Phase, model: str) -> None:
    """The run has its outcome."""
    recorder, name = _recorder(), phase.value.replace(" ", "_")
    recorder.count(metrics.RUNS_ENDED, outcome=name)
    recorder.observe(metrics.RUN_DURATION, _since_start(), outcome=name)
    if outcome.error_code is not None:
        recorder.count(metrics.FAILED_RUNS, code=outcome.error_code)
    if (usage := outcome.usage) is not None:
        recorder.count(metrics.TOKENS, usage.input_tokens, kind="input", model=model)
        recorder.count(metrics.TOKENS, usage.cached_input_tokens, kind="cached_input", model=model)
        recorder.count(metrics.TOKENS, usage.cache_write_tokens, kind="cache_write", model=model)
        recorder.count(metrics.TOKENS, usage.output_tokens, kind="output", model=model)
    if outcome.cost_usd is not None:
        recorder.observe(metrics.COST, float(outcome.cost_usd), model=model)


def _recorder() -> Recorder:
    return Recorder(workflow.metric_meter())


def _since_start() -> float:
    """Seconds since the run's start, by Temporal's clock."""
    return (workflow.now() - workflow.info().workflow_start_time).total_seconds()
