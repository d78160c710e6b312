"""What spans of a profile say of steps, in OTLP's form: seconds of host and device, and of the step's path."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from rootwalk.graph.device.reading import TIME_OF_KIND
from rootwalk.graph.importers.kineto_path import PathOperation, StepPath
from rootwalk.graph.importers.kineto_steps import Work
from rootwalk.instrumentation import semconv

__all__ = ["key_values", "operation_attributes", "path_attributes", "work_attributes"]


def path_attributes(path: StepPath) -> dict[str, float]:
    """Return the seconds of each kind."""
    return {TIME_OF_KIND[kind]: ns / 1e9 for kind, ns in path.ns_by_kind.items()}


def operation_attributes(operation: PathOperation) -> dict[str, str | int | float]:
    """Return what is told of everything of one kind and name on a path."""
    return {
        semconv.TRAINING_DEVICE_PATH_KIND: operation.kind.value,
        semconv.TRAINING_DEVICE_OPERATION_NAME: operation.name,
        semconv.TRAINING_DEVICE_OPERATION_TIME: operation.path_ns / 1e9,
        semconv.TRAINING_DEVICE_OPERATION_COUNT: operation.parts,
    }


def work_attributes(work: Work) -> dict[str, float | None]:
    """Return what host and device did in an interval."""
    idle: dict[str, float | None] = {}
    if work.idle is not None:
        idle = {
            semconv.TRAINING_DEVICE_LAUNCH_GAP_TIME: work.idle.launch_gap_ns / 1e9,
            semconv.TRAINING_DEVICE_QUEUED_TIME: work.idle.queued_ns / 1e9,
            semconv.TRAINING_DEVICE_SYNCHRONIZE_TIME: work.idle.synchronize_ns / 1e9,
            semconv.TRAINING_DEVICE_EXPOSED_TIME: work.idle.exposed_ns / 1e9,
            semconv.TRAINING_DEVICE_COMMUNICATION_TIME: work.idle.communication_ns / 1e9,
        }
    return {
        **idle,
        semconv.TRAINING_DEVICE_BUSY_TIME: None if work.busy_ns is None else work.busy_ns / 1e9,
        semconv.TRAINING_DEVICE_KERNEL_TIME: (
            None if work.kernel_ns is None else work.kernel_ns / 1e9
        ),
        semconv.TRAINING_OPERATOR_TIME: work.operator_ns / 1e9,
    }


def key_values(values: dict[str, Any]) -> list[KeyValue]:
    """Return attributes in OTLP's form, without those that are not known."""
    result = []
    for key, value in values.items():
        match value:
            case bool():
                result.append(KeyValue(key=key, value=AnyValue(bool_value=value)))
            case int():
                result.append(KeyValue(key=key, value=AnyValue(int_value=value)))
            case float():
                result.append(KeyValue(key=key, value=AnyValue(double_value=value)))
            case str():
                result.append(KeyValue(key=key, value=AnyValue(string_value=value)))
    return result
