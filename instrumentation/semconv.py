"""Every name on the wire. Generated from `registry/*.yaml` by `make registry`.

Do not edit. Standard library only: everyone may import this. `ATTRIBUTES`, `SPANS`, `EVENTS` and
`METRICS` are the registry as data; the tests hold real telemetry against them, so that no name leaves a
producer that is not defined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SCHEMA_URL: Final = "https://rootwalk.dev/schemas/0.1.0"

# Identity of one launch of distributed training, the same on all ranks and hosts.
TRAINING_JOB_ID: Final = "training.job.id"
# How often the job was started again, by its launcher or by its own exec; 0 for the first start.
TRAINING_JOB_ATTEMPT: Final = "training.job.attempt"
# Global rank, 0 to world size - 1.
TRAINING_RANK: Final = "training.rank"
# Rank within its host.
TRAINING_LOCAL_RANK: Final = "training.local_rank"
# Versions that a rank runs, of PyTorch, of CUDA, and service.version where it is told; resource.
TRAINING_RELEASE: Final = "training.release"
# Number of ranks in the job.
TRAINING_WORLD_SIZE: Final = "training.world_size"
# Number of the optimiser update, counted from 0 by each rank alike.
TRAINING_STEP_NUMBER: Final = "training.step.number"
# Whether a rank's step ran to its optimiser update.
TRAINING_STEP_OUTCOME: Final = "training.step.outcome"
# Part of a training step.
TRAINING_PHASE: Final = "training.phase"
# How many phases this rank began before this one in the same step.
TRAINING_PHASE_INDEX: Final = "training.phase.index"
# Seconds for which the thread was on a CPU during the span (main thread; for collectives the rank's
# other threads).
TRAINING_THREAD_RUNNING_TIME: Final = "training.thread.running_time"
# Seconds for which the thread was runnable and not running during the span.
TRAINING_THREAD_RUNNABLE_TIME: Final = "training.thread.runnable_time"
# The part of the runnable time in which another job's or nobody's process ran on that CPU.
TRAINING_THREAD_RUNNABLE_FOREIGN_TIME: Final = "training.thread.runnable_foreign_time"
# The part of the runnable time in which the rank's own process or its children ran on that CPU.
TRAINING_THREAD_RUNNABLE_OWN_TIME: Final = "training.thread.runnable_own_time"
# The part of the runnable time in which that CPU was idle (the cgroup was throttled, or the wake-up
# was late).
TRAINING_THREAD_RUNNABLE_IDLE_TIME: Final = "training.thread.runnable_idle_time"
# Seconds for which the thread was blocked during the span.
TRAINING_THREAD_BLOCKED_TIME: Final = "training.thread.blocked_time"
# The part of the blocked time in which at least one of the rank's loader workers ran; on a step,
# that of its data_load phases.
TRAINING_THREAD_BLOCKED_LOADER_RUNNING_TIME: Final = "training.thread.blocked_loader_running_time"
# The part of the blocked time in which none of the rank's loader workers ran and at least one
# waited for a file.
TRAINING_THREAD_BLOCKED_LOADER_FILES_TIME: Final = "training.thread.blocked_loader_files_time"
# CPU seconds of the rank's child processes (loader workers) during the span.
TRAINING_LOADER_RUNNING_TIME: Final = "training.loader.running_time"
# How often PyTorch's allocator gave its cached device memory back during the span, because the
# device had no more to give.
TRAINING_ALLOCATOR_RETRIES: Final = "training.allocator.retries"
# CPU seconds that Python's garbage collector took on the main thread during the span.
TRAINING_GC_TIME: Final = "training.gc.time"
# CPU seconds that a fixed piece of work took the main thread at the end of the step; more than
# before where its CPU has become slower.
TRAINING_CPU_PROBE_TIME: Final = "training.cpu.probe_time"
# Seconds of the span in which the rank's control group was throttled by its CPU limit; sampled
# twice a second and interpolated.
TRAINING_CGROUP_THROTTLED_TIME: Final = "training.cgroup.throttled_time"
# Seconds of the span in which at least one kernel or copy ran on the rank's device; absent where
# the profile lacks some.
TRAINING_DEVICE_BUSY_TIME: Final = "training.device.busy_time"
# Seconds between the begin and the end of the phase in the device's stream, where the host has put
# marks; what the stream waits for is included.
TRAINING_DEVICE_STREAM_TIME: Final = "training.device.stream_time"
# Seconds in which the device ran nothing and nothing was launched for it, while a thread was in an
# operator and the main one in no call that waits for the device.
TRAINING_DEVICE_LAUNCH_GAP_TIME: Final = "training.device.launch_gap_time"
# Seconds in which the device ran nothing though what it ran next had been launched before; between
# two kernels of one stream, or while a stream waits for another.
TRAINING_DEVICE_QUEUED_TIME: Final = "training.device.queued_time"
# Seconds that the main thread spent in calls that wait for the device.
TRAINING_DEVICE_SYNCHRONIZE_TIME: Final = "training.device.synchronize_time"
# Seconds in which the device ran kernels of collectives and nothing else.
TRAINING_DEVICE_EXPOSED_TIME: Final = "training.device.exposed_time"
# Seconds in which the device ran at least one kernel of a collective.
TRAINING_DEVICE_COMMUNICATION_TIME: Final = "training.device.communication_time"
# Seconds of the kernels that began in the span, summed over the device's streams; absent likewise.
TRAINING_DEVICE_KERNEL_TIME: Final = "training.device.kernel_time"
# Seconds of the step's critical path in which the device computed; the eight kinds add up to the
# step.
TRAINING_DEVICE_PATH_COMPUTATION_TIME: Final = "training.device.path.computation_time"
# Seconds of the step's critical path in which the device ran kernels of collectives; the eight
# kinds add up to the step.
TRAINING_DEVICE_PATH_COLLECTIVE_TIME: Final = "training.device.path.collective_time"
# Seconds of the step's critical path in which the device copied or set memory; the eight kinds add
# up to the step.
TRAINING_DEVICE_PATH_COPY_TIME: Final = "training.device.path.copy_time"
# Seconds of the step's critical path in which the device ran nothing, for want of a launch by the
# host; the eight kinds add up to the step.
TRAINING_DEVICE_PATH_LAUNCH_GAP_TIME: Final = "training.device.path.launch_gap_time"
# Seconds of the step's critical path in which the host worked beside the device and everything
# waited for the host; the eight kinds add up to the step.
TRAINING_DEVICE_PATH_HOST_TIME: Final = "training.device.path.host_time"
# Seconds of the step's critical path in which the host loaded data; the eight kinds add up to the
# step.
TRAINING_DEVICE_PATH_INPUT_TIME: Final = "training.device.path.input_time"
# Seconds of the step's critical path in which the device ran nothing though what it ran next had
# been launched before; the eight kinds add up to the step.
TRAINING_DEVICE_PATH_QUEUED_TIME: Final = "training.device.path.queued_time"
# Seconds of the step's critical path in which the profile does not tell what was waited for; the
# eight kinds add up to the step.
TRAINING_DEVICE_PATH_UNKNOWN_TIME: Final = "training.device.path.unknown_time"
# What a part of a step's critical path is.
TRAINING_DEVICE_PATH_KIND: Final = "training.device.path.kind"
# Name of the kernel or copy, or of the outermost operator that the host was in.
TRAINING_DEVICE_OPERATION_NAME: Final = "training.device.operation.name"
# Seconds of the step's critical path in everything of this kind and name.
TRAINING_DEVICE_OPERATION_TIME: Final = "training.device.operation.time"
# How many parts of the step's critical path these seconds are.
TRAINING_DEVICE_OPERATION_COUNT: Final = "training.device.operation.count"
# Seconds of the span in which the main thread was in an operator of the framework.
TRAINING_OPERATOR_TIME: Final = "training.operator.time"
# Whether the main thread prepares the input itself, without loader workers.
TRAINING_LOADER_IS_OWN: Final = "training.loader.is_own"
# Scheduler state of a thread.
TRAINING_THREAD_STATE: Final = "training.thread.state"
# What a thread of a rank is for.
TRAINING_THREAD_ROLE: Final = "training.thread.role"
# Where the thread times on this span come from.
TRAINING_THREAD_SENSOR: Final = "training.thread.sensor"
# What a blocked thread waited for, or what held it up while it counted as running.
TRAINING_WAIT_KIND: Final = "training.wait.kind"
# What held the main thread up during the span (values of training.wait.kind); short waits are left
# out.
TRAINING_WAIT_KINDS: Final = "training.wait.kinds"
# Seconds of each of training.wait.kinds, in the same order; parts of the blocked time, but
# interrupt and memory_reclaim of the running time.
TRAINING_WAIT_TIMES: Final = "training.wait.times"
# Waits from so many seconds on are in training.wait.times, shorter ones are not; missing where the
# blocked time is not divided.
TRAINING_WAIT_MIN_TIME: Final = "training.wait.min_time"
# System call in which it waited.
TRAINING_WAIT_SYSTEM_CALL: Final = "training.wait.system_call"
# Where the other end of a socket was.
TRAINING_WAIT_PEER: Final = "training.wait.peer"
# Process of the thread that woke the waiting one (which handed it the interpreter lock, where it
# waited for that); an interrupt counts as the thread that it interrupted.
TRAINING_WAKER_PID: Final = "training.waker.pid"
# That thread.
TRAINING_WAKER_THREAD_ID: Final = "training.waker.thread.id"
# Name of that thread, redacted as all names of threads are.
TRAINING_WAKER_NAME: Final = "training.waker.name"
# Installed package that a function of a stack belongs to, the first folder below site-packages;
# absent for code from elsewhere.
TRAINING_FRAME_PACKAGE: Final = "training.frame.package"
# What ran in the thread's place.
TRAINING_AGGRESSOR_KIND: Final = "training.aggressor.kind"
# Process id (thread group id, agent's pid namespace) of what ran in the thread's place for longest.
TRAINING_AGGRESSOR_PID: Final = "training.aggressor.pid"
# Command name (at most 15 bytes) of that process.
TRAINING_AGGRESSOR_NAME: Final = "training.aggressor.name"
# Control group of that process.
TRAINING_AGGRESSOR_CGROUP: Final = "training.aggressor.cgroup"
# Seconds for which that process ran while the thread was runnable.
TRAINING_AGGRESSOR_TIME: Final = "training.aggressor.time"
# All processes that ran in the thread's place during the span, longest first, at most 8.
TRAINING_AGGRESSOR_PIDS: Final = "training.aggressor.pids"
# Command names in the order of training.aggressor.pids.
TRAINING_AGGRESSOR_NAMES: Final = "training.aggressor.names"
# Seconds in the order of training.aggressor.pids.
TRAINING_AGGRESSOR_TIMES: Final = "training.aggressor.times"
# Of the rank's own threads that ran in the thread's place, the one that ran longest.
TRAINING_AGGRESSOR_THREAD_ID: Final = "training.aggressor.thread.id"
# That thread's name.
TRAINING_AGGRESSOR_THREAD_NAME: Final = "training.aggressor.thread.name"
# Seconds for which that thread ran while the other was runnable.
TRAINING_AGGRESSOR_THREAD_TIME: Final = "training.aggressor.thread.time"
# How many of the rank's own threads ran in the thread's place, at most 8.
TRAINING_AGGRESSOR_THREADS: Final = "training.aggressor.threads"
# Operation, in PyTorch's spelling.
COLLECTIVE_OPERATION: Final = "collective.operation"
# Hash of the communicator's unique id, else of (process group name, member ranks); equal on all
# members.
COLLECTIVE_COMMUNICATOR_ID: Final = "collective.communicator.id"
# Name or description of the process group.
COLLECTIVE_COMMUNICATOR_NAME: Final = "collective.communicator.name"
# Number of member ranks.
COLLECTIVE_COMMUNICATOR_SIZE: Final = "collective.communicator.size"
# Number of the collective in its communicator, from 1 as PyTorch counts; point-to-point operations
# count apart.
COLLECTIVE_SEQUENCE: Final = "collective.sequence"
# Bytes that this rank contributes.
COLLECTIVE_SIZE: Final = "collective.size"
# Type of what is moved, as PyTorch names it.
COLLECTIVE_DATA_TYPE: Final = "collective.data_type"
# Process group backend.
COLLECTIVE_BACKEND: Final = "collective.backend"
# Global rank that a rooted operation sends from or to, or the other rank of a point-to-point
# operation.
COLLECTIVE_ROOT: Final = "collective.root"
# False where the span ends when the operation was enqueued, because the host is not told of its
# completion.
COLLECTIVE_IS_END_KNOWN: Final = "collective.is_end_known"
# Seconds for which the operation ran on this rank's device, its wait for the other members
# included.
COLLECTIVE_DEVICE_TIME: Final = "collective.device_time"
# Whether the operation is a send or a receive.
COLLECTIVE_IS_POINT_TO_POINT: Final = "collective.is_point_to_point"
# What an operation does, as its recorder calls it; operations of one type are compared with each
# other.
TRAINING_OPERATION_TYPE: Final = "training.operation.type"
# Number of the operation among those of its type on its rank in its step.
TRAINING_OPERATION_SEQUENCE: Final = "training.operation.sequence"
# Number of the micro-batch that the operation worked on, within its step and replica.
TRAINING_MICRO_BATCH: Final = "training.micro_batch"
# Pipeline stage of the rank, 0 for the first.
TRAINING_PIPELINE_STAGE: Final = "training.pipeline.stage"
# Which replica of the model the rank is part of.
TRAINING_DATA_PARALLEL_RANK: Final = "training.data_parallel.rank"
# Sort of interrupt.
TRAINING_INTERRUPT_KIND: Final = "training.interrupt.kind"
# Vector of a soft or local interrupt, or the device, without the number of its queue.
TRAINING_INTERRUPT_NAME: Final = "training.interrupt.name"
# Whether the process is a child of the rank, such as a loader worker, and not the rank itself.
TRAINING_PROCESS_IS_CHILD: Final = "training.process.is_child"
# Signal that was sent to a process, or that ended it.
TRAINING_SIGNAL_NAME: Final = "training.signal.name"
# Process that sent the signal, as the kernel numbers it; absent where the kernel itself did.
TRAINING_SIGNAL_SENDER_PID: Final = "training.signal.sender.pid"
# Its name; `kernel` where the kernel itself sent it.
TRAINING_SIGNAL_SENDER_NAME: Final = "training.signal.sender.name"
# How far a rank has come from its start.
TRAINING_PROGRESS_STAGE: Final = "training.progress.stage"
# Seconds since the rank last began or ended a step, a phase, a collective or a compilation; since
# it was first seen where it has told none.
TRAINING_PROGRESS_IDLE_TIME: Final = "training.progress.idle_time"
# The longest that this has taken before in this process, in seconds; absent before the first step
# has ended.
TRAINING_PROGRESS_USUAL_TIME: Final = "training.progress.usual_time"
# Whether PyTorch compiles a part of the model in the rank at the moment.
TRAINING_PROGRESS_IS_COMPILING: Final = "training.progress.is_compiling"
# CPU seconds of the rank's process and its children since it last made progress.
TRAINING_PROGRESS_CPU_TIME: Final = "training.progress.cpu_time"
# CPU seconds of the rank's training thread since it last made progress.
TRAINING_PROGRESS_MAIN_CPU_TIME: Final = "training.progress.main_cpu_time"
# How often the rank's training thread has gone to sleep of its own accord since it last made
# progress.
TRAINING_PROGRESS_WAKEUPS: Final = "training.progress.wakeups"
# Bytes that the rank's process and its children have read and written since it last made progress,
# by files, pipes and sockets as far as the kernel counts them.
TRAINING_PROGRESS_IO_SIZE: Final = "training.progress.io_size"
# State of a rank's training thread as the kernel tells it.
TRAINING_PROCESS_STATE: Final = "training.process.state"
# The highest number up to which every operation of the rank in this communicator is known to have
# ended; 0 for none. Below the last one that was called without a pending time, the ends of those
# between are not known, as those of NCCL are not.
COLLECTIVE_ENDED_SEQUENCE: Final = "collective.ended_sequence"
# Seconds since the rank called the oldest operation of this communicator that is known not to have
# ended; absent where all have, or where it is not known.
COLLECTIVE_PENDING_TIME: Final = "collective.pending_time"
# Global ranks of the communicator's members in its order; absent where not known.
COLLECTIVE_COMMUNICATOR_RANKS: Final = "collective.communicator.ranks"
# Whether the rank's interpreter came to its own end, with or without an exception; false where
# something ended the process under it.
TRAINING_PROCESS_RAN_EXIT_HANDLERS: Final = "training.process.ran_exit_handlers"
# Seconds before its end was seen at which the process was last seen to run; it ended at some moment
# between.
TRAINING_PROCESS_UNSEEN_TIME: Final = "training.process.unseen_time"
# Functions of a thread, the innermost first: `function (file:line)` for Python, `function
# [library]` for native code, `function [kernel]`.
TRAINING_STACK_FRAMES: Final = "training.stack.frames"
# Why the command of `rootwalk run` ended.
TRAINING_RUN_ENDED_BY: Final = "training.run.ended_by"
# What a line of the kernel's log is about.
TRAINING_KERNEL_MESSAGE_KIND: Final = "training.kernel.message.kind"
# Device that it names, such as a PCI address, a network interface or a disk.
TRAINING_KERNEL_MESSAGE_DEVICE: Final = "training.kernel.message.device"
# Number of the error, where it has one (Xid, SXid).
TRAINING_KERNEL_MESSAGE_CODE: Final = "training.kernel.message.code"
# Who is at the other end of a rank's connections.
TRAINING_TCP_PEER: Final = "training.tcp.peer"
# Number of the rank at the other end where it is on the same host; `other` beyond the first 64.
TRAINING_TCP_PEER_RANK: Final = "training.tcp.peer.rank"
# What kind of address a peer outside the job has; the address itself is not sent.
TRAINING_TCP_PEER_SCOPE: Final = "training.tcp.peer.scope"
# What held data back that was to be sent.
TRAINING_TCP_LIMIT: Final = "training.tcp.limit"
# What one of the kernel's TCP counters counts.
TRAINING_TCP_EVENT: Final = "training.tcp.event"
# What tasks waited for.
TRAINING_PRESSURE_RESOURCE: Final = "training.pressure.resource"
# How many of the tasks waited.
TRAINING_PRESSURE_EXTENT: Final = "training.pressure.extent"
# Part of a processor that was throttled for its temperature.
TRAINING_CPU_PART: Final = "training.cpu.part"
# What an allocation of memory had to wait for.
TRAINING_HOST_MEMORY_STALL: Final = "training.host.memory.stall"
# What of a rank is on NUMA nodes.
TRAINING_NUMA_PLACEMENT: Final = "training.numa.placement"
# Number of a NUMA node.
TRAINING_NUMA_NODE: Final = "training.numa.node"
# How the place of an allocation differs from what was asked for, in the kernel's words.
TRAINING_NUMA_ALLOCATION: Final = "training.numa.allocation"
# A clock of a GPU.
TRAINING_GPU_CLOCK: Final = "training.gpu.clock"
# A GPU's PCI address without its function, as the kernel's log names it.
TRAINING_GPU_PCI_ADDRESS: Final = "training.gpu.pci.address"
# Why a GPU's clock is held down.
TRAINING_GPU_THROTTLE_REASON: Final = "training.gpu.throttle.reason"
# A memory of a GPU.
TRAINING_GPU_MEMORY: Final = "training.gpu.memory"
# What is known of rows that are to be replaced.
TRAINING_GPU_REMAP_STATE: Final = "training.gpu.remap.state"
# A setting of a GPU.
TRAINING_GPU_SETTING: Final = "training.gpu.setting"
# What went wrong on an NVLink.
TRAINING_GPU_NVLINK_ERROR: Final = "training.gpu.nvlink.error"
# A metric that is not given.
TRAINING_GPU_SIGNAL: Final = "training.gpu.signal"
# NVML's error in its own words, without the prefix.
TRAINING_GPU_SIGNAL_ERROR: Final = "training.gpu.signal.error"
# What a call of a CUDA library does.
TRAINING_CUDA_CALL_KIND: Final = "training.cuda.call.kind"
# Where a call was counted; a call of one layer makes calls of the next, so layers are not added up.
TRAINING_CUDA_LAYER: Final = "training.cuda.layer"
# From where to where a copy goes, as its caller said.
TRAINING_CUDA_COPY_DIRECTION: Final = "training.cuda.copy.direction"
# Operation of NCCL: in PyTorch's spelling, and group_start and group_end.
TRAINING_NCCL_OPERATION: Final = "training.nccl.operation"
# Over what NCCL sends, in its own words, without numbers of devices.
TRAINING_NCCL_TRANSPORT: Final = "training.nccl.transport"
# Algorithm of an operation of NCCL.
TRAINING_NCCL_ALGORITHM: Final = "training.nccl.algorithm"
# Protocol of an operation of NCCL.
TRAINING_NCCL_PROTOCOL: Final = "training.nccl.protocol"
# Address of the communicator in its process, as NCCL's own log prints it.
TRAINING_NCCL_COMMUNICATOR: Final = "training.nccl.communicator"
# What befell a control group at its memory limit.
TRAINING_CGROUP_MEMORY_EVENT: Final = "training.cgroup.memory.event"
# Priority (traffic class, 0 to 7) that was paused; absent when the whole link was.
TRAINING_NIC_PRIORITY: Final = "training.nic.priority"
# Name of a network driver's counter; a fixed list of them is told.
TRAINING_NIC_EVENT: Final = "training.nic.event"
# Name of a counter of an RDMA port; a fixed list of them is told.
TRAINING_RDMA_EVENT: Final = "training.rdma.event"
# Why a thread had to look for free memory itself.
TRAINING_MEMORY_RECLAIM_KIND: Final = "training.memory.reclaim.kind"
# How long block requests took, from their creation to their end.
TRAINING_DISK_DURATION_CLASS: Final = "training.disk.duration_class"
# Name of a sensor as `rootwalk check` prints it.
ROOTWALK_SENSOR_NAME: Final = "rootwalk.sensor.name"
# Whether a sensor can be read.
ROOTWALK_SENSOR_STATUS: Final = "rootwalk.sensor.status"
# Why the sensor is not available; one word per cause.
ROOTWALK_SENSOR_REASON: Final = "rootwalk.sensor.reason"
# What the sensor reads with.
ROOTWALK_SENSOR_BACKEND: Final = "rootwalk.sensor.backend"
# Privilege that the sensor uses (0 none, 1 capabilities, 2 root).
ROOTWALK_SENSOR_TIER: Final = "rootwalk.sensor.tier"
# Name of the kernel program, as the kernel lists it.
ROOTWALK_BPF_PROGRAM_NAME: Final = "rootwalk.bpf.program.name"
# Why records were dropped.
ROOTWALK_DROP_REASON: Final = "rootwalk.drop.reason"
# Name of a file that was imported, without its folder.
ROOTWALK_IMPORT_FILE_NAME: Final = "rootwalk.import.file.name"
# Identity of a finding; the same in its events, in the store and in every verdict.
ROOTWALK_FINDING_ID: Final = "rootwalk.finding.id"
# Reason code of the verdict's contract.
ROOTWALK_FINDING_REASON: Final = "rootwalk.finding.reason"
# Layer that the cause lies in; absent where none can be named.
ROOTWALK_FINDING_LAYER: Final = "rootwalk.finding.layer"
# Who can act on it.
ROOTWALK_FINDING_OWNER: Final = "rootwalk.finding.owner"
# How sure it is; high, medium or low.
ROOTWALK_FINDING_CONFIDENCE: Final = "rootwalk.finding.confidence"
# Seconds per step that the cause takes, mean over the steps of the diagnosis.
ROOTWALK_FINDING_SHARE: Final = "rootwalk.finding.share"
# First slow step.
ROOTWALK_FINDING_FIRST_STEP: Final = "rootwalk.finding.first_step"
# Last slow step that was seen.
ROOTWALK_FINDING_LAST_STEP: Final = "rootwalk.finding.last_step"
# Finding that named another cause for the same slowdown and is closed by this one.
ROOTWALK_FINDING_REPLACES: Final = "rootwalk.finding.replaces"

# Core conventions, used unchanged.
CPU_LOGICAL_NUMBER: Final = "cpu.logical_number"
CPU_MODE: Final = "cpu.mode"
CPYTHON_GC_GENERATION: Final = "cpython.gc.generation"
DISK_IO_DIRECTION: Final = "disk.io.direction"
HOST_ID: Final = "host.id"
HOST_NAME: Final = "host.name"
ERROR_TYPE: Final = "error.type"
HW_DRIVER_VERSION: Final = "hw.driver_version"
HW_GPU_TASK: Final = "hw.gpu.task"
HW_ID: Final = "hw.id"
HW_LIMIT_TYPE: Final = "hw.limit_type"
HW_NAME: Final = "hw.name"
HW_SENSOR_LOCATION: Final = "hw.sensor_location"
HW_STATE: Final = "hw.state"
HW_TYPE: Final = "hw.type"
NETWORK_INTERFACE_NAME: Final = "network.interface.name"
NETWORK_IO_DIRECTION: Final = "network.io.direction"
NETWORK_PEER_PORT: Final = "network.peer.port"
NETWORK_TRANSPORT: Final = "network.transport"
PROCESS_CONTEXT_SWITCH_TYPE: Final = "process.context_switch.type"
PROCESS_EXECUTABLE_BUILD_ID_GNU: Final = "process.executable.build_id.gnu"
EXCEPTION_TYPE: Final = "exception.type"
PROCESS_EXIT_CODE: Final = "process.exit.code"
PROCESS_PID: Final = "process.pid"
PROFILE_FRAME_TYPE: Final = "profile.frame.type"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SYSTEM_DEVICE: Final = "system.device"
SYSTEM_FILESYSTEM_TYPE: Final = "system.filesystem.type"
SYSTEM_PAGING_DIRECTION: Final = "system.paging.direction"
SYSTEM_PAGING_FAULT_TYPE: Final = "system.paging.fault.type"
TELEMETRY_SDK_LANGUAGE: Final = "telemetry.sdk.language"
TELEMETRY_SDK_NAME: Final = "telemetry.sdk.name"
TELEMETRY_SDK_VERSION: Final = "telemetry.sdk.version"
THREAD_ID: Final = "thread.id"
THREAD_NAME: Final = "thread.name"

# Event names.
# A slowdown goes on and its cause was named; WARN, or ERROR from a tenth of a step on; trace
# context of a slow step.
EVENT_ROOTWALK_FINDING_OPENED: Final = "rootwalk.finding.opened"
# A slowdown is over, or another cause was named for it; INFO; trace context of a slow step.
EVENT_ROOTWALK_FINDING_CLOSED: Final = "rootwalk.finding.closed"
# A process of a rank was sent a signal that stops, continues or ends it.
EVENT_TRAINING_PROCESS_SIGNAL: Final = "training.process.signal"
# A rank's process has ended, or a child of it with an error.
EVENT_TRAINING_PROCESS_END: Final = "training.process.end"
# The kernel chose a process of a rank to be killed for memory.
EVENT_TRAINING_PROCESS_OOM_KILL: Final = "training.process.oom_kill"
# A rank has made no progress for some seconds, repeated while that lasts (INFO); and once more with
# an idle time of 0 when it goes on. Its use of CPU and I/O is counted from 2 s after it last made
# progress.
EVENT_TRAINING_RANK_PROGRESS: Final = "training.rank.progress"
# How far a rank that makes no progress has come in one communicator, beside each
# training.rank.progress.
EVENT_TRAINING_COLLECTIVE_PROGRESS: Final = "training.collective.progress"
# Where a thread of a rank stands that makes no progress, taken once or a few times from outside.
EVENT_TRAINING_RANK_STACK: Final = "training.rank.stack"
# What PyTorch's Flight Recorder of a rank held when the rank no longer made progress; the body is
# PyTorch's own JSON.
EVENT_TRAINING_FLIGHT_RECORDER_DUMP: Final = "training.flight_recorder.dump"
# A rank's program ends by an exception that nobody caught; its text is not told.
EVENT_TRAINING_PROCESS_EXCEPTION: Final = "training.process.exception"
# The command of `rootwalk run` has ended, and how.
EVENT_ROOTWALK_RUN_END: Final = "rootwalk.run.end"
# The kernel's log tells of a device, a link or a task in trouble; at most one in 10 s of a kind and
# device.
EVENT_TRAINING_KERNEL_MESSAGE: Final = "training.kernel.message"
# What a rank's Flight Recorder dump says of its communicators and unfinished collectives, imported;
# the body is JSON.
EVENT_TRAINING_FLIGHT_RECORD: Final = "training.flight_record"
# A file that was imported could not be read, or not to its end; the body says where and why.
EVENT_ROOTWALK_IMPORT_BROKEN_FILE: Final = "rootwalk.import.broken_file"

# Metric names.
# How long each step of the whole job took, from the end of the one before it.
METRIC_TRAINING_STEP_DURATION: Final = "training.step.duration"
# Seconds that findings have cost the job; of 257 culprits and more, some without rank and host.
METRIC_ROOTWALK_FINDING_LOST_TIME: Final = "rootwalk.finding.lost.time"
# Findings that were opened.
METRIC_ROOTWALK_FINDING_COUNT: Final = "rootwalk.finding.count"
# Findings that are open now.
METRIC_ROOTWALK_FINDING_OPEN: Final = "rootwalk.finding.open"
# Exact partition of the time of a rank's threads by scheduler state.
METRIC_TRAINING_THREAD_TIME: Final = "training.thread.time"
# Runnable time of a rank's threads by what ran in their place.
METRIC_TRAINING_THREAD_CONTENTION_TIME: Final = "training.thread.contention.time"
# Time for which the rank's control group was throttled by its CPU limit.
METRIC_TRAINING_CGROUP_CPU_THROTTLED_TIME: Final = "training.cgroup.cpu.throttled.time"
# Enforcement periods in which the rank's control group was throttled.
METRIC_TRAINING_CGROUP_CPU_THROTTLED_PERIODS: Final = "training.cgroup.cpu.throttled.periods"
# Enforcement periods of the rank's control group that have passed.
METRIC_TRAINING_CGROUP_CPU_PERIODS: Final = "training.cgroup.cpu.periods"
# CPUs that the rank's control group may use; absent where it has no limit.
METRIC_TRAINING_CGROUP_CPU_LIMIT: Final = "training.cgroup.cpu.limit"
# Time that interrupts took from a rank's threads while they ran; it is part of their running time.
METRIC_TRAINING_THREAD_INTERRUPT_TIME: Final = "training.thread.interrupt.time"
# Lines of the kernel's log that tell of a device, a link or a task in trouble.
METRIC_TRAINING_KERNEL_MESSAGES: Final = "training.kernel.messages"
# TCP bytes of a rank with its children, each byte once; sampled from the kernel's counts every 2 s.
METRIC_PROCESS_NETWORK_IO: Final = "process.network.io"
# Bytes that a rank sent again.
METRIC_TRAINING_TCP_RETRANSMITTED_IO: Final = "training.tcp.retransmitted.io"
# Segments that a rank sent again.
METRIC_TRAINING_TCP_RETRANSMITTED_SEGMENTS: Final = "training.tcp.retransmitted.segments"
# Time for which a rank's connections had data to send and something held it back.
METRIC_TRAINING_TCP_LIMITED_TIME: Final = "training.tcp.limited.time"
# Time for which a rank's connections had data to send, summed over them.
METRIC_TRAINING_TCP_BUSY_TIME: Final = "training.tcp.busy.time"
# Connections of a rank.
METRIC_TRAINING_TCP_CONNECTIONS: Final = "training.tcp.connections"
# Smoothed round-trip time of the connections that sent in the last 2 s: mean, weighted by bytes
# sent.
METRIC_TRAINING_TCP_RTT_MEAN: Final = "training.tcp.rtt.mean"
# Largest smoothed round-trip time of the connections that sent in the last 2 s.
METRIC_TRAINING_TCP_RTT_MAX: Final = "training.tcp.rtt.max"
# Smallest round-trip time that any of them has seen of late; what lies above it is queueing.
METRIC_TRAINING_TCP_RTT_FLOOR: Final = "training.tcp.rtt.floor"
# TCP's own counters of the network namespaces that ranks are in, and of the agent's.
METRIC_TRAINING_TCP_HOST_EVENTS: Final = "training.tcp.host.events"
# Time for which tasks of the host, or of the rank's control group, waited for a resource.
METRIC_TRAINING_PRESSURE_TIME: Final = "training.pressure.time"
# Clock of the CPU on which the rank's first thread is or was last.
METRIC_TRAINING_CPU_FREQUENCY: Final = "training.cpu.frequency"
# Highest clock that this CPU can have.
METRIC_TRAINING_CPU_FREQUENCY_LIMIT: Final = "training.cpu.frequency.limit"
# How often cores and packages of the host were throttled for their temperature.
METRIC_TRAINING_HOST_CPU_THROTTLES: Final = "training.host.cpu.throttles"
# Time for which cores and packages of the host were throttled for their temperature, added up.
METRIC_TRAINING_HOST_CPU_THROTTLED_TIME: Final = "training.host.cpu.throttled.time"
# CPUs that the rank's first thread may use, and the fewest that any of its other threads may.
METRIC_TRAINING_CPU_ALLOWED: Final = "training.cpu.allowed"
# Cores that the CPUs which the rank's first thread may use are hardware threads of.
METRIC_TRAINING_CPU_ALLOWED_CORES: Final = "training.cpu.allowed.cores"
# Cores of the rank that other ranks of the host may use too.
METRIC_TRAINING_CPU_ALLOWED_SHARED_CORES: Final = "training.cpu.allowed.shared_cores"
# NUMA nodes over which the CPUs and the memory that the rank may use are spread.
METRIC_TRAINING_NUMA_NODES: Final = "training.numa.nodes"
# How often a thread of the rank was moved to another CPU.
METRIC_TRAINING_THREAD_MIGRATIONS: Final = "training.thread.migrations"
# How often a thread of the rank gave its CPU up or lost it.
METRIC_TRAINING_THREAD_CONTEXT_SWITCHES: Final = "training.thread.context_switches"
# Pages of the host that were allocated on another NUMA node than was asked for.
METRIC_TRAINING_HOST_NUMA_ALLOCATIONS: Final = "training.host.numa.allocations"
# Allocations of memory on the host that had to wait.
METRIC_TRAINING_HOST_MEMORY_STALLS: Final = "training.host.memory.stalls"
# Processes of the host that the kernel killed because memory was short.
METRIC_TRAINING_HOST_OOM_KILLS: Final = "training.host.oom_kills"
# What befell the rank's control group and those above it at their memory limits.
METRIC_TRAINING_CGROUP_MEMORY_EVENTS: Final = "training.cgroup.memory.events"
# Memory that the rank's control group uses, page cache included.
METRIC_TRAINING_CGROUP_MEMORY_USAGE: Final = "training.cgroup.memory.usage"
# Memory that the rank's control group may use; absent where it has no limit.
METRIC_TRAINING_CGROUP_MEMORY_LIMIT: Final = "training.cgroup.memory.limit"
# 1 while the rank's control group stands still without memory (version 1 only).
METRIC_TRAINING_CGROUP_MEMORY_UNDER_OOM: Final = "training.cgroup.memory.under_oom"
# 1 while the rank's control group is frozen.
METRIC_TRAINING_CGROUP_FROZEN: Final = "training.cgroup.frozen"
# How often the link of a network interface went up or down.
METRIC_TRAINING_NIC_CARRIER_CHANGES: Final = "training.nic.carrier.changes"
# Frames by which one end of a link asked the other to stop sending.
METRIC_TRAINING_NIC_PAUSE_FRAMES: Final = "training.nic.pause.frames"
# Time for which a link was paused.
METRIC_TRAINING_NIC_PAUSE_TIME: Final = "training.nic.pause.time"
# Losses, errors and exceeded limits that a network driver counts.
METRIC_TRAINING_NIC_EVENTS: Final = "training.nic.events"
# Losses, errors and congestion that an RDMA port counts (port_xmit_wait in the card's clock ticks).
METRIC_TRAINING_RDMA_EVENTS: Final = "training.rdma.events"
# How often a rank's threads had to look for free memory themselves.
METRIC_TRAINING_MEMORY_RECLAIMS: Final = "training.memory.reclaims"
# Time for which a rank's threads looked for memory; part of their running and blocked time.
METRIC_TRAINING_MEMORY_RECLAIM_TIME: Final = "training.memory.reclaim.time"
# Page faults of a rank and its children that read a disk or swap, since the rank's start.
METRIC_TRAINING_MEMORY_MAJOR_FAULTS: Final = "training.memory.major_faults"
# Block requests that a rank caused and that have ended; of the host, those that no rank caused.
METRIC_TRAINING_DISK_OPERATIONS: Final = "training.disk.operations"
# Bytes of those requests.
METRIC_TRAINING_DISK_IO: Final = "training.disk.io"
# Time of those requests, added up, from their creation until the disk's driver had them.
METRIC_TRAINING_DISK_QUEUE_TIME: Final = "training.disk.queue.time"
# Time of those requests, added up, from when the disk's driver had them to their end.
METRIC_TRAINING_DISK_DEVICE_TIME: Final = "training.disk.device.time"
# Clock of a GPU; hw.id is the UUID that NVML prints, here and below.
METRIC_TRAINING_GPU_FREQUENCY: Final = "training.gpu.frequency"
# Time for which a GPU was clocked down.
METRIC_TRAINING_GPU_THROTTLED_TIME: Final = "training.gpu.throttled.time"
# Processes that compute on the GPU of a rank; the rank and its children count as one.
METRIC_TRAINING_GPU_PROCESSES: Final = "training.gpu.processes"
# GPUs of the host whose memory a GPU reaches directly, itself among them.
METRIC_TRAINING_GPU_PEERS: Final = "training.gpu.peers"
# The most that a GPU's PCI Express link could carry since the point before, by generation and
# width.
METRIC_TRAINING_GPU_PCIE_BANDWIDTH_LIMIT: Final = "training.gpu.pcie.bandwidth.limit"
# NVLinks of a GPU that are up.
METRIC_TRAINING_GPU_NVLINK_LINKS: Final = "training.gpu.nvlink.links"
# The highest that a clock of a GPU can be.
METRIC_TRAINING_GPU_FREQUENCY_LIMIT: Final = "training.gpu.frequency.limit"
# Whether a GPU's clock is held down now for a reason, 1 or 0.
METRIC_TRAINING_GPU_THROTTLE_STATE: Final = "training.gpu.throttle.state"
# The most power that a GPU may take.
METRIC_TRAINING_GPU_POWER_LIMIT: Final = "training.gpu.power.limit"
# Memory errors of a GPU since its driver was loaded by where they were.
METRIC_TRAINING_GPU_MEMORY_ERRORS: Final = "training.gpu.memory.errors"
# Rows of its memory that a GPU has replaced for good.
METRIC_TRAINING_GPU_REMAPPED_ROWS: Final = "training.gpu.remapped.rows"
# Whether a row of a GPU's memory waits for a reset to be replaced, or cannot be replaced, 1 or 0.
METRIC_TRAINING_GPU_REMAP_STATE: Final = "training.gpu.remap.state"
# What the driver asks for: 0 nothing, 1 reset the GPU, 2 restart the host; more as NVML counts.
METRIC_TRAINING_GPU_RECOVERY_ACTION: Final = "training.gpu.recovery.action"
# Whether a setting of a GPU is on, 1 or 0.
METRIC_TRAINING_GPU_SETTING: Final = "training.gpu.setting"
# Memory of its GPU that a rank and its children take.
METRIC_TRAINING_GPU_PROCESS_MEMORY: Final = "training.gpu.process.memory"
# The most that a GPU's PCI Express link could carry at its highest generation and full width.
METRIC_TRAINING_GPU_PCIE_BANDWIDTH_MAX: Final = "training.gpu.pcie.bandwidth.max"
# Generation of a GPU's PCI Express link now.
METRIC_TRAINING_GPU_PCIE_GENERATION: Final = "training.gpu.pcie.generation"
# Lanes of a GPU's PCI Express link now.
METRIC_TRAINING_GPU_PCIE_WIDTH: Final = "training.gpu.pcie.width"
# Packets that a GPU's PCI Express link had to send again.
METRIC_TRAINING_GPU_PCIE_REPLAYS: Final = "training.gpu.pcie.replays"
# Errors of all NVLinks of a GPU.
METRIC_TRAINING_GPU_NVLINK_ERRORS: Final = "training.gpu.nvlink.errors"
# Bytes that passed all NVLinks of a GPU.
METRIC_TRAINING_GPU_NVLINK_IO: Final = "training.gpu.nvlink.io"
# 1 for each metric that a GPU or its driver does not give, with NVML's error.
METRIC_TRAINING_GPU_SIGNAL_MISSING: Final = "training.gpu.signal.missing"
# Calls of CUDA libraries by a rank that have returned; inner ones of the same layer are not
# counted.
METRIC_TRAINING_CUDA_CALLS: Final = "training.cuda.calls"
# Time of a rank's threads in calls of CUDA libraries, with those that have not returned yet.
METRIC_TRAINING_CUDA_CALL_TIME: Final = "training.cuda.call.time"
# Calls of CUDA libraries that returned an error.
METRIC_TRAINING_CUDA_CALL_FAILURES: Final = "training.cuda.call.failures"
# Bytes that a rank asked CUDA to copy.
METRIC_TRAINING_CUDA_COPY_IO: Final = "training.cuda.copy.io"
# Bytes that a rank asked CUDA for.
METRIC_TRAINING_CUDA_ALLOCATED_SIZE: Final = "training.cuda.allocated.size"
# Calls of NCCL by a rank that have returned, which is not the operation's end on the device.
METRIC_TRAINING_NCCL_CALLS: Final = "training.nccl.calls"
# Operations that a rank has called in a communicator, returned or not: the number of the last.
METRIC_TRAINING_NCCL_OPERATIONS: Final = "training.nccl.operations"
# Connections to other ranks that NCCL has set up in a rank, those that it sends over.
METRIC_TRAINING_NCCL_CONNECTIONS: Final = "training.nccl.connections"
# Operations of a rank for which NCCL has told how it does them.
METRIC_TRAINING_NCCL_CHOICES: Final = "training.nccl.choices"
# Time of a rank's threads in calls of NCCL, with those that have not returned yet.
METRIC_TRAINING_NCCL_CALL_TIME: Final = "training.nccl.call.time"
# Calls of NCCL that returned an error.
METRIC_TRAINING_NCCL_CALL_FAILURES: Final = "training.nccl.call.failures"
# Bytes of the counts that a rank called NCCL with.
METRIC_TRAINING_NCCL_IO: Final = "training.nccl.io"
# 1 for the state that each sensor is in.
METRIC_ROOTWALK_SENSOR_STATE: Final = "rootwalk.sensor.state"
# CPU time of the agent's process.
METRIC_ROOTWALK_AGENT_CPU_TIME: Final = "rootwalk.agent.cpu.time"
# Resident memory of the agent's process.
METRIC_ROOTWALK_AGENT_MEMORY_USAGE: Final = "rootwalk.agent.memory.usage"
# Records that the agent has taken from the scheduler's reader.
METRIC_ROOTWALK_AGENT_EVENTS: Final = "rootwalk.agent.events"
# Spans that the agent has sent, as bytes of OTLP.
METRIC_ROOTWALK_AGENT_SENT_SIZE: Final = "rootwalk.agent.sent.size"
# CPU time of agent and kernel programs over that of the steps, each 1 s or more; last 10 s.
METRIC_ROOTWALK_AGENT_COST_RATIO: Final = "rootwalk.agent.cost.ratio"
# How many steps of detail the agent has given up to keep its budget; 0 for none.
METRIC_ROOTWALK_AGENT_DETAIL_LOWERED: Final = "rootwalk.agent.detail.lowered"
# How much the agent tells of the rank, 0 sums, 1 every stall, 2 every wait.
METRIC_ROOTWALK_AGENT_LEVEL: Final = "rootwalk.agent.level"
# Time spent in each of Rootwalk's BPF programs, by the kernel's statistics of 1 s in 10.
METRIC_ROOTWALK_BPF_RUN_TIME: Final = "rootwalk.bpf.run.time"
# Records that were dropped.
METRIC_ROOTWALK_DROPPED: Final = "rootwalk.dropped"
# Time of the host's CPUs by mode: stolen by a hypervisor, interrupts, waiting for disks.
METRIC_SYSTEM_CPU_TIME: Final = "system.cpu.time"
# CPUs of the host that are switched on.
METRIC_SYSTEM_CPU_LOGICAL_COUNT: Final = "system.cpu.logical.count"
# Threads of the rank's process.
METRIC_PROCESS_THREAD_COUNT: Final = "process.thread.count"
# Pages that the host swapped in and out.
METRIC_SYSTEM_PAGING_OPERATIONS: Final = "system.paging.operations"
# Page faults of the host; major ones waited for a disk.
METRIC_SYSTEM_PAGING_FAULTS: Final = "system.paging.faults"
# Bytes read from and written to each disk.
METRIC_SYSTEM_DISK_IO: Final = "system.disk.io"
# Requests that each disk completed.
METRIC_SYSTEM_DISK_OPERATIONS: Final = "system.disk.operations"
# Time that each disk's requests took, added up.
METRIC_SYSTEM_DISK_OPERATION_TIME: Final = "system.disk.operation_time"
# Time for which each disk was busy.
METRIC_SYSTEM_DISK_IO_TIME: Final = "system.disk.io_time"
# Bytes that passed each network interface.
METRIC_SYSTEM_NETWORK_IO: Final = "system.network.io"
# Packets that passed each network interface.
METRIC_SYSTEM_NETWORK_PACKET_COUNT: Final = "system.network.packet.count"
# Packets that were dropped at each network interface without an error.
METRIC_SYSTEM_NETWORK_PACKET_DROPPED: Final = "system.network.packet.dropped"
# Errors at each network interface.
METRIC_SYSTEM_NETWORK_ERRORS: Final = "system.network.errors"
# Memory errors of a GPU, corrected or not.
METRIC_HW_ERRORS: Final = "hw.errors"
# 1 for the state that a GPU is in, 0 for the other: ok, failed.
METRIC_HW_STATUS: Final = "hw.status"
# Temperature of a GPU or of its memory.
METRIC_HW_TEMPERATURE: Final = "hw.temperature"
# Temperature at which a GPU is clocked down or switched off.
METRIC_HW_TEMPERATURE_LIMIT: Final = "hw.temperature.limit"
# Power that a GPU takes.
METRIC_HW_POWER: Final = "hw.power"
# Energy that a GPU has taken.
METRIC_HW_ENERGY: Final = "hw.energy"
# Part of the time in which a GPU did something.
METRIC_HW_GPU_UTILIZATION: Final = "hw.gpu.utilization"
# Part of the time in which the memory of a GPU was read or written.
METRIC_HW_GPU_MEMORY_UTILIZATION: Final = "hw.gpu.memory.utilization"
# Memory of a GPU that is taken.
METRIC_HW_GPU_MEMORY_USAGE: Final = "hw.gpu.memory.usage"
# Memory that a GPU has.
METRIC_HW_GPU_MEMORY_LIMIT: Final = "hw.gpu.memory.limit"
# Bytes that passed the PCI Express link of a GPU.
METRIC_HW_GPU_IO: Final = "hw.gpu.io"
# 1 for a network interface or RDMA port that can send, 0 for one that cannot.
METRIC_HW_NETWORK_UP: Final = "hw.network.up"
# Speed of the link of a network interface or RDMA port.
METRIC_HW_NETWORK_BANDWIDTH_LIMIT: Final = "hw.network.bandwidth.limit"
# Bytes that passed each RDMA port.
METRIC_HW_NETWORK_IO: Final = "hw.network.io"
# Packets that passed each RDMA port.
METRIC_HW_NETWORK_PACKETS: Final = "hw.network.packets"


class TrainingStepOutcome(StrEnum):
    """Whether a rank's step ran to its optimiser update."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


class TrainingPhase(StrEnum):
    """Part of a training step."""

    DATA_LOAD = "data_load"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


class TrainingDevicePathKind(StrEnum):
    """What a part of a step's critical path is."""

    COMPUTATION = "computation"
    COLLECTIVE = "collective"
    COPY = "copy"
    LAUNCH_GAP = "launch_gap"
    HOST = "host"
    INPUT = "input"
    QUEUED = "queued"
    UNKNOWN = "unknown"


class TrainingThreadState(StrEnum):
    """Scheduler state of a thread."""

    RUNNING = "running"
    RUNNABLE = "runnable"
    BLOCKED = "blocked"
    BLOCKED_IO = "blocked_io"
    STOPPED = "stopped"


class TrainingThreadRole(StrEnum):
    """What a thread of a rank is for."""

    MAIN = "main"
    COLLECTIVE = "collective"
    LOADER_WORKER = "loader_worker"
    OTHER = "other"


class TrainingThreadSensor(StrEnum):
    """Where the thread times on this span come from."""

    CORE = "core"
    BCC = "bcc"
    PROC = "proc"


class TrainingWaitKind(StrEnum):
    """What a blocked thread waited for, or what held it up while it counted as running."""

    FAULT = "fault"
    INTERPRETER_LOCK = "interpreter_lock"
    LOCK = "lock"
    FILE_READ = "file_read"
    FILE_WRITE = "file_write"
    FILE_SYNC = "file_sync"
    FILE_METADATA = "file_metadata"
    PIPE_READ = "pipe_read"
    PIPE_WRITE = "pipe_write"
    SOCKET_READ = "socket_read"
    SOCKET_WRITE = "socket_write"
    DEVICE = "device"
    POLL = "poll"
    SLEEP = "sleep"
    CHILD = "child"
    MEMORY = "memory"
    STOP = "stop"
    INTERRUPT = "interrupt"
    MEMORY_RECLAIM = "memory_reclaim"
    MEMORY_RECLAIM_WAIT = "memory_reclaim_wait"
    OTHER = "other"


class TrainingWaitPeer(StrEnum):
    """Where the other end of a socket was."""

    LOCAL = "local"
    REMOTE = "remote"


class TrainingAggressorKind(StrEnum):
    """What ran in the thread's place."""

    PROCESS = "process"
    OWN = "own"
    KERNEL = "kernel"
    IDLE = "idle"


class TrainingInterruptKind(StrEnum):
    """Sort of interrupt."""

    DEVICE = "device"
    SOFT = "soft"
    LOCAL = "local"


class TrainingProgressStage(StrEnum):
    """How far a rank has come from its start."""

    STARTED = "started"
    RENDEZVOUS = "rendezvous"
    INITIALISED = "initialised"
    TRAINING = "training"


class TrainingProcessState(StrEnum):
    """State of a rank's training thread as the kernel tells it."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    DISK = "disk"
    STOPPED = "stopped"
    TRACED = "traced"
    FROZEN = "frozen"
    ZOMBIE = "zombie"


class TrainingRunEndedBy(StrEnum):
    """Why the command of `rootwalk run` ended."""

    COMMAND = "command"
    USER = "user"
    SIGNAL = "signal"


class TrainingKernelMessageKind(StrEnum):
    """What a line of the kernel's log is about."""

    GPU_ERROR = "gpu_error"
    NVLINK_ERROR = "nvlink_error"
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    HARDWARE_ERROR = "hardware_error"
    PCIE_ERROR = "pcie_error"
    IO_ERROR = "io_error"
    HUNG_TASK = "hung_task"
    LOCKUP = "lockup"
    OUT_OF_MEMORY = "out_of_memory"


class TrainingTcpPeer(StrEnum):
    """Who is at the other end of a rank's connections."""

    RANK = "rank"
    LOCAL = "local"
    OUTSIDE = "outside"


class TrainingTcpPeerScope(StrEnum):
    """What kind of address a peer outside the job has; the address itself is not sent."""

    PRIVATE = "private"
    PUBLIC = "public"


class TrainingTcpLimit(StrEnum):
    """What held data back that was to be sent."""

    RECEIVE_WINDOW = "receive_window"
    SEND_BUFFER = "send_buffer"


class TrainingTcpEvent(StrEnum):
    """What one of the kernel's TCP counters counts."""

    RETRANSMITTED_SEGMENT = "retransmitted_segment"
    LOST_RETRANSMISSION = "lost_retransmission"
    TIMEOUT = "timeout"
    ZERO_WINDOW_SENT = "zero_window_sent"
    ZERO_WINDOW_DROP = "zero_window_drop"
    LISTEN_DROP = "listen_drop"


class TrainingPressureResource(StrEnum):
    """What tasks waited for."""

    CPU = "cpu"
    IO = "io"
    MEMORY = "memory"


class TrainingPressureExtent(StrEnum):
    """How many of the tasks waited."""

    SOME = "some"
    FULL = "full"


class TrainingCpuPart(StrEnum):
    """Part of a processor that was throttled for its temperature."""

    CORE = "core"
    PACKAGE = "package"


class TrainingHostMemoryStall(StrEnum):
    """What an allocation of memory had to wait for."""

    RECLAIM = "reclaim"
    COMPACTION = "compaction"


class TrainingNumaPlacement(StrEnum):
    """What of a rank is on NUMA nodes."""

    CPU = "cpu"
    MEMORY = "memory"


class TrainingNumaAllocation(StrEnum):
    """How the place of an allocation differs from what was asked for, in the kernel's words."""

    MISS = "numa_miss"
    FOREIGN = "numa_foreign"
    OTHER_NODE = "other_node"


class TrainingGpuClock(StrEnum):
    """A clock of a GPU."""

    SM = "sm"
    MEMORY = "memory"


class TrainingGpuThrottleReason(StrEnum):
    """Why a GPU's clock is held down."""

    THERMAL = "thermal"
    POWER = "power"
    POWER_BRAKE = "power_brake"
    SETTING = "setting"
    SYNC_BOOST = "sync_boost"


class TrainingGpuMemory(StrEnum):
    """A memory of a GPU."""

    L1 = "l1"
    L2 = "l2"
    DRAM = "dram"
    REGISTER = "register"
    SHARED = "shared"
    CBU = "cbu"
    SRAM = "sram"


class TrainingGpuRemapState(StrEnum):
    """What is known of rows that are to be replaced."""

    PENDING = "pending"
    FAILED = "failed"


class TrainingGpuSetting(StrEnum):
    """A setting of a GPU."""

    MIG = "mig"
    ECC = "ecc"
    PERSISTENCE = "persistence"


class TrainingGpuNvlinkError(StrEnum):
    """What went wrong on an NVLink."""

    REPLAY = "replay"
    RECOVERY = "recovery"
    CRC = "crc"


class TrainingCudaCallKind(StrEnum):
    """What a call of a CUDA library does."""

    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph_launch"
    COPY = "copy"
    STREAM_SYNC = "stream_sync"
    DEVICE_SYNC = "device_sync"
    EVENT_SYNC = "event_sync"
    ALLOCATE = "allocate"
    FREE = "free"
    HOST_ALLOCATE = "host_allocate"
    HOST_FREE = "host_free"
    MATMUL = "matmul"


class TrainingCudaLayer(StrEnum):
    """Where a call was counted; a call of one layer makes calls of the next, so layers are not added up."""

    LIBRARY = "library"
    RUNTIME = "runtime"
    DRIVER = "driver"


class TrainingCudaCopyDirection(StrEnum):
    """From where to where a copy goes, as its caller said."""

    HOST_TO_HOST = "host_to_host"
    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    DEVICE_TO_DEVICE = "device_to_device"
    BY_ADDRESS = "by_address"


class TrainingCgroupMemoryEvent(StrEnum):
    """What befell a control group at its memory limit."""

    HIGH = "high"
    MAX = "max"
    OOM = "oom"
    OOM_KILL = "oom_kill"


class TrainingMemoryReclaimKind(StrEnum):
    """Why a thread had to look for free memory itself."""

    DIRECT = "direct"
    CGROUP = "cgroup"
    COMPACTION = "compaction"


class TrainingDiskDurationClass(StrEnum):
    """How long block requests took, from their creation to their end."""

    UNDER_100US = "under_100us"
    UNDER_1MS = "under_1ms"
    UNDER_10MS = "under_10ms"
    UNDER_100MS = "under_100ms"
    UNDER_1S = "under_1s"
    FROM_1S = "from_1s"


class RootwalkSensorStatus(StrEnum):
    """Whether a sensor can be read."""

    AVAILABLE = "available"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class SpanDefinition:
    """A span that a producer may send: its attributes, and those of them that must be there."""

    attributes: frozenset[str]
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class EventDefinition:
    """A log event that may be sent: its attributes, and those of them that must be there."""

    attributes: frozenset[str]
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric that a producer may send: instrument, UCUM unit, what it tells, attributes."""

    instrument: str
    unit: str
    brief: str
    attributes: frozenset[str]
    required: frozenset[str]


ATTRIBUTES: Final[dict[str, str]] = {
    "collective.backend": "string",
    "collective.communicator.id": "string",
    "collective.communicator.name": "string",
    "collective.communicator.ranks": "int[]",
    "collective.communicator.size": "int",
    "collective.data_type": "string",
    "collective.device_time": "double",
    "collective.ended_sequence": "int",
    "collective.is_end_known": "boolean",
    "collective.is_point_to_point": "boolean",
    "collective.operation": "string",
    "collective.pending_time": "double",
    "collective.root": "int",
    "collective.sequence": "int",
    "collective.size": "int",
    "cpu.logical_number": "int",
    "cpu.mode": "string",
    "cpython.gc.generation": "int",
    "disk.io.direction": "string",
    "error.type": "string",
    "exception.type": "string",
    "host.id": "string",
    "host.name": "string",
    "hw.driver_version": "string",
    "hw.gpu.task": "string",
    "hw.id": "string",
    "hw.limit_type": "string",
    "hw.name": "string",
    "hw.sensor_location": "string",
    "hw.state": "string",
    "hw.type": "string",
    "network.interface.name": "string",
    "network.io.direction": "string",
    "network.peer.port": "int",
    "network.transport": "string",
    "process.context_switch.type": "string",
    "process.executable.build_id.gnu": "string",
    "process.exit.code": "int",
    "process.pid": "int",
    "profile.frame.type": "string",
    "rootwalk.bpf.program.name": "string",
    "rootwalk.drop.reason": "string",
    "rootwalk.finding.confidence": "string",
    "rootwalk.finding.first_step": "int",
    "rootwalk.finding.id": "string",
    "rootwalk.finding.last_step": "int",
    "rootwalk.finding.layer": "string",
    "rootwalk.finding.owner": "string",
    "rootwalk.finding.reason": "string",
    "rootwalk.finding.replaces": "string",
    "rootwalk.finding.share": "double",
    "rootwalk.import.file.name": "string",
    "rootwalk.sensor.backend": "string",
    "rootwalk.sensor.name": "string",
    "rootwalk.sensor.reason": "string",
    "rootwalk.sensor.status": "string",
    "rootwalk.sensor.tier": "int",
    "service.instance.id": "string",
    "service.name": "string",
    "service.version": "string",
    "system.device": "string",
    "system.filesystem.type": "string",
    "system.paging.direction": "string",
    "system.paging.fault.type": "string",
    "telemetry.sdk.language": "string",
    "telemetry.sdk.name": "string",
    "telemetry.sdk.version": "string",
    "thread.id": "int",
    "thread.name": "string",
    "training.aggressor.cgroup": "string",
    "training.aggressor.kind": "string",
    "training.aggressor.name": "string",
    "training.aggressor.names": "string[]",
    "training.aggressor.pid": "int",
    "training.aggressor.pids": "int[]",
    "training.aggressor.thread.id": "int",
    "training.aggressor.thread.name": "string",
    "training.aggressor.thread.time": "double",
    "training.aggressor.threads": "int",
    "training.aggressor.time": "double",
    "training.aggressor.times": "double[]",
    "training.allocator.retries": "int",
    "training.cgroup.memory.event": "string",
    "training.cgroup.throttled_time": "double",
    "training.cpu.part": "string",
    "training.cpu.probe_time": "double",
    "training.cuda.call.kind": "string",
    "training.cuda.copy.direction": "string",
    "training.cuda.layer": "string",
    "training.data_parallel.rank": "int",
    "training.device.busy_time": "double",
    "training.device.communication_time": "double",
    "training.device.exposed_time": "double",
    "training.device.kernel_time": "double",
    "training.device.launch_gap_time": "double",
    "training.device.operation.count": "int",
    "training.device.operation.name": "string",
    "training.device.operation.time": "double",
    "training.device.path.collective_time": "double",
    "training.device.path.computation_time": "double",
    "training.device.path.copy_time": "double",
    "training.device.path.host_time": "double",
    "training.device.path.input_time": "double",
    "training.device.path.kind": "string",
    "training.device.path.launch_gap_time": "double",
    "training.device.path.queued_time": "double",
    "training.device.path.unknown_time": "double",
    "training.device.queued_time": "double",
    "training.device.stream_time": "double",
    "training.device.synchronize_time": "double",
    "training.disk.duration_class": "string",
    "training.frame.package": "string",
    "training.gc.time": "double",
    "training.gpu.clock": "string",
    "training.gpu.memory": "string",
    "training.gpu.nvlink.error": "string",
    "training.gpu.pci.address": "string",
    "training.gpu.remap.state": "string",
    "training.gpu.setting": "string",
    "training.gpu.signal": "string",
    "training.gpu.signal.error": "string",
    "training.gpu.throttle.reason": "string",
    "training.host.memory.stall": "string",
    "training.interrupt.kind": "string",
    "training.interrupt.name": "string",
    "training.job.attempt": "int",
    "training.job.id": "string",
    "training.kernel.message.code": "int",
    "training.kernel.message.device": "string",
    "training.kernel.message.kind": "string",
    "training.loader.is_own": "boolean",
    "training.loader.running_time": "double",
    "training.local_rank": "int",
    "training.memory.reclaim.kind": "string",
    "training.micro_batch": "int",
    "training.nccl.algorithm": "string",
    "training.nccl.communicator": "string",
    "training.nccl.operation": "string",
    "training.nccl.protocol": "string",
    "training.nccl.transport": "string",
    "training.nic.event": "string",
    "training.nic.priority": "int",
    "training.numa.allocation": "string",
    "training.numa.node": "int",
    "training.numa.placement": "string",
    "training.operation.sequence": "int",
    "training.operation.type": "string",
    "training.operator.time": "double",
    "training.phase": "string",
    "training.phase.index": "int",
    "training.pipeline.stage": "int",
    "training.pressure.extent": "string",
    "training.pressure.resource": "string",
    "training.process.is_child": "boolean",
    "training.process.ran_exit_handlers": "boolean",
    "training.process.state": "string",
    "training.process.unseen_time": "double",
    "training.progress.cpu_time": "double",
    "training.progress.idle_time": "double",
    "training.progress.io_size": "int",
    "training.progress.is_compiling": "boolean",
    "training.progress.main_cpu_time": "double",
    "training.progress.stage": "string",
    "training.progress.usual_time": "double",
    "training.progress.wakeups": "int",
    "training.rank": "int",
    "training.rdma.event": "string",
    "training.release": "string",
    "training.run.ended_by": "string",
    "training.signal.name": "string",
    "training.signal.sender.name": "string",
    "training.signal.sender.pid": "int",
    "training.stack.frames": "string[]",
    "training.step.number": "int",
    "training.step.outcome": "string",
    "training.tcp.event": "string",
    "training.tcp.limit": "string",
    "training.tcp.peer": "string",
    "training.tcp.peer.rank": "string",
    "training.tcp.peer.scope": "string",
    "training.thread.blocked_loader_files_time": "double",
    "training.thread.blocked_loader_running_time": "double",
    "training.thread.blocked_time": "double",
    "training.thread.role": "string",
    "training.thread.runnable_foreign_time": "double",
    "training.thread.runnable_idle_time": "double",
    "training.thread.runnable_own_time": "double",
    "training.thread.runnable_time": "double",
    "training.thread.running_time": "double",
    "training.thread.sensor": "string",
    "training.thread.state": "string",
    "training.wait.kind": "string",
    "training.wait.kinds": "string[]",
    "training.wait.min_time": "double",
    "training.wait.peer": "string",
    "training.wait.system_call": "string",
    "training.wait.times": "double[]",
    "training.waker.name": "string",
    "training.waker.pid": "int",
    "training.waker.thread.id": "int",
    "training.world_size": "int",
}

SPANS: Final[dict[str, SpanDefinition]] = {
    "training.step": SpanDefinition(
        attributes=frozenset({"training.step.number"}),
        required=frozenset({"training.step.number"}),
    ),
    "training.rank_step": SpanDefinition(
        attributes=frozenset(
            {
                "hw.id",
                "training.cgroup.throttled_time",
                "training.cpu.probe_time",
                "training.device.busy_time",
                "training.device.communication_time",
                "training.device.exposed_time",
                "training.device.kernel_time",
                "training.device.launch_gap_time",
                "training.device.queued_time",
                "training.device.synchronize_time",
                "training.gc.time",
                "training.loader.running_time",
                "training.operator.time",
                "training.step.number",
                "training.step.outcome",
                "training.thread.blocked_loader_files_time",
                "training.thread.blocked_loader_running_time",
                "training.thread.blocked_time",
                "training.thread.runnable_foreign_time",
                "training.thread.runnable_idle_time",
                "training.thread.runnable_own_time",
                "training.thread.runnable_time",
                "training.thread.running_time",
                "training.thread.sensor",
                "training.wait.kinds",
                "training.wait.min_time",
                "training.wait.times",
            }
        ),
        required=frozenset({"training.step.number", "training.step.outcome"}),
    ),
    "training.phase": SpanDefinition(
        attributes=frozenset(
            {
                "training.device.busy_time",
                "training.device.kernel_time",
                "training.device.stream_time",
                "training.gc.time",
                "training.loader.is_own",
                "training.operator.time",
                "training.phase",
                "training.phase.index",
                "training.step.number",
                "training.thread.blocked_loader_files_time",
                "training.thread.blocked_loader_running_time",
                "training.thread.blocked_time",
                "training.thread.runnable_foreign_time",
                "training.thread.runnable_idle_time",
                "training.thread.runnable_own_time",
                "training.thread.runnable_time",
                "training.thread.running_time",
                "training.thread.sensor",
                "training.wait.kinds",
                "training.wait.min_time",
                "training.wait.times",
            }
        ),
        required=frozenset(
            {
                "training.phase",
                "training.phase.index",
                "training.step.number",
            }
        ),
    ),
    "collective": SpanDefinition(
        attributes=frozenset(
            {
                "collective.backend",
                "collective.communicator.id",
                "collective.communicator.name",
                "collective.communicator.size",
                "collective.data_type",
                "collective.device_time",
                "collective.is_end_known",
                "collective.is_point_to_point",
                "collective.operation",
                "collective.root",
                "collective.sequence",
                "collective.size",
                "training.operation.sequence",
                "training.operation.type",
                "training.phase",
                "training.step.number",
                "training.thread.runnable_foreign_time",
                "training.thread.runnable_idle_time",
                "training.thread.runnable_own_time",
                "training.thread.runnable_time",
                "training.thread.sensor",
            }
        ),
        required=frozenset(
            {
                "collective.communicator.id",
                "collective.is_point_to_point",
                "collective.operation",
                "collective.sequence",
                "training.step.number",
            }
        ),
    ),
    "operation": SpanDefinition(
        attributes=frozenset(
            {
                "training.micro_batch",
                "training.operation.sequence",
                "training.operation.type",
                "training.phase",
                "training.step.number",
            }
        ),
        required=frozenset(
            {
                "training.operation.sequence",
                "training.operation.type",
                "training.step.number",
            }
        ),
    ),
    "training.profile": SpanDefinition(
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.device.path": SpanDefinition(
        attributes=frozenset(
            {
                "training.device.path.collective_time",
                "training.device.path.computation_time",
                "training.device.path.copy_time",
                "training.device.path.host_time",
                "training.device.path.input_time",
                "training.device.path.launch_gap_time",
                "training.device.path.queued_time",
                "training.device.path.unknown_time",
                "training.step.number",
            }
        ),
        required=frozenset(
            {
                "training.device.path.collective_time",
                "training.device.path.computation_time",
                "training.device.path.copy_time",
                "training.device.path.host_time",
                "training.device.path.input_time",
                "training.device.path.launch_gap_time",
                "training.device.path.queued_time",
                "training.device.path.unknown_time",
                "training.step.number",
            }
        ),
    ),
    "training.device.operation": SpanDefinition(
        attributes=frozenset(
            {
                "training.device.operation.count",
                "training.device.operation.name",
                "training.device.operation.time",
                "training.device.path.kind",
                "training.step.number",
            }
        ),
        required=frozenset(
            {
                "training.device.operation.count",
                "training.device.operation.name",
                "training.device.operation.time",
                "training.device.path.kind",
                "training.step.number",
            }
        ),
    ),
    "stall": SpanDefinition(
        attributes=frozenset(
            {
                "cpu.logical_number",
                "network.peer.port",
                "process.pid",
                "system.device",
                "system.filesystem.type",
                "thread.id",
                "thread.name",
                "training.aggressor.cgroup",
                "training.aggressor.kind",
                "training.aggressor.name",
                "training.aggressor.names",
                "training.aggressor.pid",
                "training.aggressor.pids",
                "training.aggressor.thread.id",
                "training.aggressor.thread.name",
                "training.aggressor.thread.time",
                "training.aggressor.threads",
                "training.aggressor.time",
                "training.aggressor.times",
                "training.phase",
                "training.step.number",
                "training.thread.role",
                "training.thread.sensor",
                "training.thread.state",
                "training.wait.kind",
                "training.wait.peer",
                "training.wait.system_call",
                "training.waker.name",
                "training.waker.pid",
                "training.waker.thread.id",
            }
        ),
        required=frozenset(
            {
                "process.pid",
                "thread.id",
                "training.step.number",
                "training.thread.role",
                "training.thread.sensor",
                "training.thread.state",
            }
        ),
    ),
    "python.gc": SpanDefinition(
        attributes=frozenset(
            {
                "cpython.gc.generation",
                "training.phase",
                "training.step.number",
                "training.thread.role",
            }
        ),
        required=frozenset(
            {
                "cpython.gc.generation",
                "training.step.number",
                "training.thread.role",
            }
        ),
    ),
    "rootwalk.finding": SpanDefinition(
        attributes=frozenset(
            {
                "host.name",
                "rootwalk.finding.confidence",
                "rootwalk.finding.first_step",
                "rootwalk.finding.id",
                "rootwalk.finding.last_step",
                "rootwalk.finding.layer",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
                "rootwalk.finding.share",
                "training.rank",
                "training.step.number",
            }
        ),
        required=frozenset(
            {
                "rootwalk.finding.confidence",
                "rootwalk.finding.first_step",
                "rootwalk.finding.id",
                "rootwalk.finding.last_step",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
                "training.step.number",
            }
        ),
    ),
    "torch.compile": SpanDefinition(
        attributes=frozenset(
            {
                "training.phase",
                "training.step.number",
                "training.thread.role",
            }
        ),
        required=frozenset({"training.step.number", "training.thread.role"}),
    ),
    "torch.allocator": SpanDefinition(
        attributes=frozenset({"training.allocator.retries", "training.step.number"}),
        required=frozenset({"training.allocator.retries", "training.step.number"}),
    ),
}

EVENTS: Final[dict[str, EventDefinition]] = {
    "rootwalk.finding.opened": EventDefinition(
        attributes=frozenset(
            {
                "host.name",
                "rootwalk.finding.confidence",
                "rootwalk.finding.first_step",
                "rootwalk.finding.id",
                "rootwalk.finding.last_step",
                "rootwalk.finding.layer",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
                "rootwalk.finding.replaces",
                "rootwalk.finding.share",
                "training.rank",
            }
        ),
        required=frozenset(
            {
                "rootwalk.finding.confidence",
                "rootwalk.finding.first_step",
                "rootwalk.finding.id",
                "rootwalk.finding.last_step",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
            }
        ),
    ),
    "rootwalk.finding.closed": EventDefinition(
        attributes=frozenset(
            {
                "host.name",
                "rootwalk.finding.confidence",
                "rootwalk.finding.first_step",
                "rootwalk.finding.id",
                "rootwalk.finding.last_step",
                "rootwalk.finding.layer",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
                "rootwalk.finding.share",
                "training.rank",
            }
        ),
        required=frozenset(
            {
                "rootwalk.finding.confidence",
                "rootwalk.finding.first_step",
                "rootwalk.finding.id",
                "rootwalk.finding.last_step",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
            }
        ),
    ),
    "training.process.signal": EventDefinition(
        attributes=frozenset(
            {
                "process.pid",
                "training.process.is_child",
                "training.signal.name",
                "training.signal.sender.name",
                "training.signal.sender.pid",
            }
        ),
        required=frozenset(
            {
                "process.pid",
                "training.process.is_child",
                "training.signal.name",
                "training.signal.sender.name",
            }
        ),
    ),
    "training.process.end": EventDefinition(
        attributes=frozenset(
            {
                "process.exit.code",
                "process.pid",
                "training.process.is_child",
                "training.process.ran_exit_handlers",
                "training.process.unseen_time",
                "training.signal.name",
            }
        ),
        required=frozenset({"process.pid", "training.process.is_child"}),
    ),
    "training.process.oom_kill": EventDefinition(
        attributes=frozenset({"process.pid", "training.process.is_child"}),
        required=frozenset({"process.pid", "training.process.is_child"}),
    ),
    "training.rank.progress": EventDefinition(
        attributes=frozenset(
            {
                "process.pid",
                "training.phase",
                "training.process.state",
                "training.progress.cpu_time",
                "training.progress.idle_time",
                "training.progress.io_size",
                "training.progress.is_compiling",
                "training.progress.main_cpu_time",
                "training.progress.stage",
                "training.progress.usual_time",
                "training.progress.wakeups",
                "training.step.number",
                "training.wait.kind",
                "training.wait.system_call",
            }
        ),
        required=frozenset({"process.pid", "training.progress.idle_time"}),
    ),
    "training.collective.progress": EventDefinition(
        attributes=frozenset(
            {
                "collective.backend",
                "collective.communicator.id",
                "collective.communicator.name",
                "collective.communicator.ranks",
                "collective.communicator.size",
                "collective.ended_sequence",
                "collective.is_point_to_point",
                "collective.operation",
                "collective.pending_time",
                "collective.root",
                "collective.sequence",
                "collective.size",
            }
        ),
        required=frozenset(
            {
                "collective.communicator.id",
                "collective.communicator.name",
                "collective.communicator.size",
                "collective.ended_sequence",
                "collective.is_point_to_point",
                "collective.operation",
                "collective.sequence",
            }
        ),
    ),
    "training.rank.stack": EventDefinition(
        attributes=frozenset(
            {
                "process.pid",
                "thread.id",
                "thread.name",
                "training.stack.frames",
                "training.thread.role",
                "training.wait.system_call",
            }
        ),
        required=frozenset(
            {
                "process.pid",
                "thread.id",
                "training.stack.frames",
                "training.thread.role",
            }
        ),
    ),
    "training.flight_recorder.dump": EventDefinition(
        attributes=frozenset({"process.pid"}),
        required=frozenset({"process.pid"}),
    ),
    "training.process.exception": EventDefinition(
        attributes=frozenset({"exception.type", "process.pid", "training.stack.frames"}),
        required=frozenset({"exception.type", "process.pid"}),
    ),
    "rootwalk.run.end": EventDefinition(
        attributes=frozenset(
            {
                "process.exit.code",
                "training.run.ended_by",
                "training.signal.name",
            }
        ),
        required=frozenset({"training.run.ended_by"}),
    ),
    "training.kernel.message": EventDefinition(
        attributes=frozenset(
            {
                "training.kernel.message.code",
                "training.kernel.message.device",
                "training.kernel.message.kind",
            }
        ),
        required=frozenset({"training.kernel.message.kind"}),
    ),
    "training.flight_record": EventDefinition(
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.import.broken_file": EventDefinition(
        attributes=frozenset({"rootwalk.import.file.name"}),
        required=frozenset({"rootwalk.import.file.name"}),
    ),
}

METRICS: Final[dict[str, MetricDefinition]] = {
    "training.step.duration": MetricDefinition(
        instrument="histogram",
        unit="s",
        brief="How long each step of the whole job took, from the end of the one before it.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.finding.lost.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Seconds that findings have cost the job; of 257 culprits and more, some without rank and host.",
        attributes=frozenset(
            {
                "host.name",
                "rootwalk.finding.layer",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
                "training.rank",
            }
        ),
        required=frozenset({"rootwalk.finding.owner", "rootwalk.finding.reason"}),
    ),
    "rootwalk.finding.count": MetricDefinition(
        instrument="counter",
        unit="{finding}",
        brief="Findings that were opened.",
        attributes=frozenset(
            {
                "host.name",
                "rootwalk.finding.layer",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
                "training.rank",
            }
        ),
        required=frozenset({"rootwalk.finding.owner", "rootwalk.finding.reason"}),
    ),
    "rootwalk.finding.open": MetricDefinition(
        instrument="updowncounter",
        unit="{finding}",
        brief="Findings that are open now.",
        attributes=frozenset(
            {
                "host.name",
                "rootwalk.finding.layer",
                "rootwalk.finding.owner",
                "rootwalk.finding.reason",
                "training.rank",
            }
        ),
        required=frozenset({"rootwalk.finding.owner", "rootwalk.finding.reason"}),
    ),
    "training.thread.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Exact partition of the time of a rank's threads by scheduler state.",
        attributes=frozenset(
            {
                "training.thread.role",
                "training.thread.sensor",
                "training.thread.state",
            }
        ),
        required=frozenset(
            {
                "training.thread.role",
                "training.thread.sensor",
                "training.thread.state",
            }
        ),
    ),
    "training.thread.contention.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Runnable time of a rank's threads by what ran in their place.",
        attributes=frozenset({"training.aggressor.kind", "training.thread.role"}),
        required=frozenset({"training.aggressor.kind", "training.thread.role"}),
    ),
    "training.cgroup.cpu.throttled.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which the rank's control group was throttled by its CPU limit.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cgroup.cpu.throttled.periods": MetricDefinition(
        instrument="counter",
        unit="{period}",
        brief="Enforcement periods in which the rank's control group was throttled.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cgroup.cpu.periods": MetricDefinition(
        instrument="counter",
        unit="{period}",
        brief="Enforcement periods of the rank's control group that have passed.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cgroup.cpu.limit": MetricDefinition(
        instrument="gauge",
        unit="{cpu}",
        brief="CPUs that the rank's control group may use; absent where it has no limit.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.thread.interrupt.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time that interrupts took from a rank's threads while they ran; it is part of their running time.",
        attributes=frozenset(
            {
                "training.interrupt.kind",
                "training.interrupt.name",
                "training.thread.role",
            }
        ),
        required=frozenset(
            {
                "training.interrupt.kind",
                "training.interrupt.name",
                "training.thread.role",
            }
        ),
    ),
    "training.kernel.messages": MetricDefinition(
        instrument="counter",
        unit="{message}",
        brief="Lines of the kernel's log that tell of a device, a link or a task in trouble.",
        attributes=frozenset({"training.kernel.message.kind"}),
        required=frozenset({"training.kernel.message.kind"}),
    ),
    "process.network.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="TCP bytes of a rank with its children, each byte once; sampled from the kernel's counts every 2 s.",
        attributes=frozenset(
            {
                "network.io.direction",
                "network.peer.port",
                "network.transport",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset(
            {
                "network.io.direction",
                "network.transport",
                "training.tcp.peer",
            }
        ),
    ),
    "training.tcp.retransmitted.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes that a rank sent again.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.peer"}),
    ),
    "training.tcp.retransmitted.segments": MetricDefinition(
        instrument="counter",
        unit="{segment}",
        brief="Segments that a rank sent again.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.peer"}),
    ),
    "training.tcp.limited.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which a rank's connections had data to send and something held it back.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.limit",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.limit", "training.tcp.peer"}),
    ),
    "training.tcp.busy.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which a rank's connections had data to send, summed over them.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.peer"}),
    ),
    "training.tcp.connections": MetricDefinition(
        instrument="gauge",
        unit="{connection}",
        brief="Connections of a rank.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.peer"}),
    ),
    "training.tcp.rtt.mean": MetricDefinition(
        instrument="gauge",
        unit="s",
        brief="Smoothed round-trip time of the connections that sent in the last 2 s: mean, weighted by bytes sent.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.peer"}),
    ),
    "training.tcp.rtt.max": MetricDefinition(
        instrument="gauge",
        unit="s",
        brief="Largest smoothed round-trip time of the connections that sent in the last 2 s.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.peer"}),
    ),
    "training.tcp.rtt.floor": MetricDefinition(
        instrument="gauge",
        unit="s",
        brief="Smallest round-trip time that any of them has seen of late; what lies above it is queueing.",
        attributes=frozenset(
            {
                "network.peer.port",
                "training.tcp.peer",
                "training.tcp.peer.rank",
                "training.tcp.peer.scope",
            }
        ),
        required=frozenset({"training.tcp.peer"}),
    ),
    "training.tcp.host.events": MetricDefinition(
        instrument="counter",
        unit="{event}",
        brief="TCP's own counters of the network namespaces that ranks are in, and of the agent's.",
        attributes=frozenset({"training.tcp.event"}),
        required=frozenset({"training.tcp.event"}),
    ),
    "training.pressure.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which tasks of the host, or of the rank's control group, waited for a resource.",
        attributes=frozenset({"training.pressure.extent", "training.pressure.resource"}),
        required=frozenset({"training.pressure.extent", "training.pressure.resource"}),
    ),
    "training.cpu.frequency": MetricDefinition(
        instrument="gauge",
        unit="Hz",
        brief="Clock of the CPU on which the rank's first thread is or was last.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cpu.frequency.limit": MetricDefinition(
        instrument="gauge",
        unit="Hz",
        brief="Highest clock that this CPU can have.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.host.cpu.throttles": MetricDefinition(
        instrument="counter",
        unit="{throttle}",
        brief="How often cores and packages of the host were throttled for their temperature.",
        attributes=frozenset({"training.cpu.part"}),
        required=frozenset({"training.cpu.part"}),
    ),
    "training.host.cpu.throttled.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which cores and packages of the host were throttled for their temperature, added up.",
        attributes=frozenset({"training.cpu.part"}),
        required=frozenset({"training.cpu.part"}),
    ),
    "training.cpu.allowed": MetricDefinition(
        instrument="gauge",
        unit="{cpu}",
        brief="CPUs that the rank's first thread may use, and the fewest that any of its other threads may.",
        attributes=frozenset({"training.thread.role"}),
        required=frozenset({"training.thread.role"}),
    ),
    "training.cpu.allowed.cores": MetricDefinition(
        instrument="gauge",
        unit="{core}",
        brief="Cores that the CPUs which the rank's first thread may use are hardware threads of.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cpu.allowed.shared_cores": MetricDefinition(
        instrument="gauge",
        unit="{core}",
        brief="Cores of the rank that other ranks of the host may use too.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.numa.nodes": MetricDefinition(
        instrument="gauge",
        unit="{node}",
        brief="NUMA nodes over which the CPUs and the memory that the rank may use are spread.",
        attributes=frozenset({"training.numa.placement"}),
        required=frozenset({"training.numa.placement"}),
    ),
    "training.thread.migrations": MetricDefinition(
        instrument="counter",
        unit="{migration}",
        brief="How often a thread of the rank was moved to another CPU.",
        attributes=frozenset({"training.thread.role"}),
        required=frozenset({"training.thread.role"}),
    ),
    "training.thread.context_switches": MetricDefinition(
        instrument="counter",
        unit="{context_switch}",
        brief="How often a thread of the rank gave its CPU up or lost it.",
        attributes=frozenset({"process.context_switch.type", "training.thread.role"}),
        required=frozenset({"process.context_switch.type", "training.thread.role"}),
    ),
    "training.host.numa.allocations": MetricDefinition(
        instrument="counter",
        unit="{page}",
        brief="Pages of the host that were allocated on another NUMA node than was asked for.",
        attributes=frozenset({"training.numa.allocation", "training.numa.node"}),
        required=frozenset({"training.numa.allocation", "training.numa.node"}),
    ),
    "training.host.memory.stalls": MetricDefinition(
        instrument="counter",
        unit="{stall}",
        brief="Allocations of memory on the host that had to wait.",
        attributes=frozenset({"training.host.memory.stall"}),
        required=frozenset({"training.host.memory.stall"}),
    ),
    "training.host.oom_kills": MetricDefinition(
        instrument="counter",
        unit="{kill}",
        brief="Processes of the host that the kernel killed because memory was short.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cgroup.memory.events": MetricDefinition(
        instrument="counter",
        unit="{event}",
        brief="What befell the rank's control group and those above it at their memory limits.",
        attributes=frozenset({"training.cgroup.memory.event"}),
        required=frozenset({"training.cgroup.memory.event"}),
    ),
    "training.cgroup.memory.usage": MetricDefinition(
        instrument="gauge",
        unit="By",
        brief="Memory that the rank's control group uses, page cache included.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cgroup.memory.limit": MetricDefinition(
        instrument="gauge",
        unit="By",
        brief="Memory that the rank's control group may use; absent where it has no limit.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cgroup.memory.under_oom": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="1 while the rank's control group stands still without memory (version 1 only).",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.cgroup.frozen": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="1 while the rank's control group is frozen.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.nic.carrier.changes": MetricDefinition(
        instrument="counter",
        unit="{change}",
        brief="How often the link of a network interface went up or down.",
        attributes=frozenset({"network.interface.name"}),
        required=frozenset({"network.interface.name"}),
    ),
    "training.nic.pause.frames": MetricDefinition(
        instrument="counter",
        unit="{frame}",
        brief="Frames by which one end of a link asked the other to stop sending.",
        attributes=frozenset(
            {
                "network.interface.name",
                "network.io.direction",
                "training.nic.priority",
            }
        ),
        required=frozenset({"network.interface.name", "network.io.direction"}),
    ),
    "training.nic.pause.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which a link was paused.",
        attributes=frozenset(
            {
                "network.interface.name",
                "network.io.direction",
                "training.nic.priority",
            }
        ),
        required=frozenset({"network.interface.name", "network.io.direction"}),
    ),
    "training.nic.events": MetricDefinition(
        instrument="counter",
        unit="{event}",
        brief="Losses, errors and exceeded limits that a network driver counts.",
        attributes=frozenset({"network.interface.name", "training.nic.event"}),
        required=frozenset({"network.interface.name", "training.nic.event"}),
    ),
    "training.rdma.events": MetricDefinition(
        instrument="counter",
        unit="{event}",
        brief="Losses, errors and congestion that an RDMA port counts (port_xmit_wait in the card's clock ticks).",
        attributes=frozenset({"hw.id", "training.rdma.event"}),
        required=frozenset({"hw.id", "training.rdma.event"}),
    ),
    "training.memory.reclaims": MetricDefinition(
        instrument="counter",
        unit="{reclaim}",
        brief="How often a rank's threads had to look for free memory themselves.",
        attributes=frozenset({"training.memory.reclaim.kind", "training.thread.role"}),
        required=frozenset({"training.memory.reclaim.kind", "training.thread.role"}),
    ),
    "training.memory.reclaim.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which a rank's threads looked for memory; part of their running and blocked time.",
        attributes=frozenset({"training.memory.reclaim.kind", "training.thread.role"}),
        required=frozenset({"training.memory.reclaim.kind", "training.thread.role"}),
    ),
    "training.memory.major_faults": MetricDefinition(
        instrument="counter",
        unit="{fault}",
        brief="Page faults of a rank and its children that read a disk or swap, since the rank's start.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "training.disk.operations": MetricDefinition(
        instrument="counter",
        unit="{operation}",
        brief="Block requests that a rank caused and that have ended; of the host, those that no rank caused.",
        attributes=frozenset(
            {
                "disk.io.direction",
                "system.device",
                "training.disk.duration_class",
            }
        ),
        required=frozenset(
            {
                "disk.io.direction",
                "system.device",
                "training.disk.duration_class",
            }
        ),
    ),
    "training.disk.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes of those requests.",
        attributes=frozenset({"disk.io.direction", "system.device"}),
        required=frozenset({"disk.io.direction", "system.device"}),
    ),
    "training.disk.queue.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time of those requests, added up, from their creation until the disk's driver had them.",
        attributes=frozenset({"disk.io.direction", "system.device"}),
        required=frozenset({"disk.io.direction", "system.device"}),
    ),
    "training.disk.device.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time of those requests, added up, from when the disk's driver had them to their end.",
        attributes=frozenset({"disk.io.direction", "system.device"}),
        required=frozenset({"disk.io.direction", "system.device"}),
    ),
    "training.gpu.frequency": MetricDefinition(
        instrument="gauge",
        unit="Hz",
        brief="Clock of a GPU; hw.id is the UUID that NVML prints, here and below.",
        attributes=frozenset({"hw.id", "training.gpu.clock"}),
        required=frozenset({"hw.id", "training.gpu.clock"}),
    ),
    "training.gpu.throttled.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which a GPU was clocked down.",
        attributes=frozenset({"hw.id", "training.gpu.throttle.reason"}),
        required=frozenset({"hw.id", "training.gpu.throttle.reason"}),
    ),
    "training.gpu.processes": MetricDefinition(
        instrument="gauge",
        unit="{process}",
        brief="Processes that compute on the GPU of a rank; the rank and its children count as one.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.peers": MetricDefinition(
        instrument="gauge",
        unit="{gpu}",
        brief="GPUs of the host whose memory a GPU reaches directly, itself among them.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.pcie.bandwidth.limit": MetricDefinition(
        instrument="gauge",
        unit="By/s",
        brief="The most that a GPU's PCI Express link could carry since the point before, by generation and width.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.nvlink.links": MetricDefinition(
        instrument="gauge",
        unit="{link}",
        brief="NVLinks of a GPU that are up.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.frequency.limit": MetricDefinition(
        instrument="gauge",
        unit="Hz",
        brief="The highest that a clock of a GPU can be.",
        attributes=frozenset({"hw.id", "training.gpu.clock"}),
        required=frozenset({"hw.id", "training.gpu.clock"}),
    ),
    "training.gpu.throttle.state": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="Whether a GPU's clock is held down now for a reason, 1 or 0.",
        attributes=frozenset({"hw.id", "training.gpu.throttle.reason"}),
        required=frozenset({"hw.id", "training.gpu.throttle.reason"}),
    ),
    "training.gpu.power.limit": MetricDefinition(
        instrument="gauge",
        unit="W",
        brief="The most power that a GPU may take.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.memory.errors": MetricDefinition(
        instrument="counter",
        unit="{error}",
        brief="Memory errors of a GPU since its driver was loaded by where they were.",
        attributes=frozenset({"error.type", "hw.id", "training.gpu.memory"}),
        required=frozenset({"error.type", "hw.id", "training.gpu.memory"}),
    ),
    "training.gpu.remapped.rows": MetricDefinition(
        instrument="gauge",
        unit="{row}",
        brief="Rows of its memory that a GPU has replaced for good.",
        attributes=frozenset({"error.type", "hw.id"}),
        required=frozenset({"error.type", "hw.id"}),
    ),
    "training.gpu.remap.state": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="Whether a row of a GPU's memory waits for a reset to be replaced, or cannot be replaced, 1 or 0.",
        attributes=frozenset({"hw.id", "training.gpu.remap.state"}),
        required=frozenset({"hw.id", "training.gpu.remap.state"}),
    ),
    "training.gpu.recovery.action": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="What the driver asks for: 0 nothing, 1 reset the GPU, 2 restart the host; more as NVML counts.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.setting": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="Whether a setting of a GPU is on, 1 or 0.",
        attributes=frozenset({"hw.id", "training.gpu.setting"}),
        required=frozenset({"hw.id", "training.gpu.setting"}),
    ),
    "training.gpu.process.memory": MetricDefinition(
        instrument="gauge",
        unit="By",
        brief="Memory of its GPU that a rank and its children take.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.pcie.bandwidth.max": MetricDefinition(
        instrument="gauge",
        unit="By/s",
        brief="The most that a GPU's PCI Express link could carry at its highest generation and full width.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.pcie.generation": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="Generation of a GPU's PCI Express link now.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.pcie.width": MetricDefinition(
        instrument="gauge",
        unit="{lane}",
        brief="Lanes of a GPU's PCI Express link now.",
        attributes=frozenset({"hw.id", "training.gpu.pci.address"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.pcie.replays": MetricDefinition(
        instrument="counter",
        unit="{replay}",
        brief="Packets that a GPU's PCI Express link had to send again.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "training.gpu.nvlink.errors": MetricDefinition(
        instrument="counter",
        unit="{error}",
        brief="Errors of all NVLinks of a GPU.",
        attributes=frozenset({"hw.id", "training.gpu.nvlink.error"}),
        required=frozenset({"hw.id", "training.gpu.nvlink.error"}),
    ),
    "training.gpu.nvlink.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes that passed all NVLinks of a GPU.",
        attributes=frozenset({"hw.id", "network.io.direction"}),
        required=frozenset({"hw.id", "network.io.direction"}),
    ),
    "training.gpu.signal.missing": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="1 for each metric that a GPU or its driver does not give, with NVML's error.",
        attributes=frozenset({"hw.id", "training.gpu.signal", "training.gpu.signal.error"}),
        required=frozenset({"hw.id", "training.gpu.signal", "training.gpu.signal.error"}),
    ),
    "training.cuda.calls": MetricDefinition(
        instrument="counter",
        unit="{call}",
        brief="Calls of CUDA libraries by a rank that have returned; inner ones of the same layer are not counted.",
        attributes=frozenset(
            {
                "training.cuda.call.kind",
                "training.cuda.copy.direction",
                "training.cuda.layer",
            }
        ),
        required=frozenset({"training.cuda.call.kind", "training.cuda.layer"}),
    ),
    "training.cuda.call.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time of a rank's threads in calls of CUDA libraries, with those that have not returned yet.",
        attributes=frozenset(
            {
                "training.cuda.call.kind",
                "training.cuda.copy.direction",
                "training.cuda.layer",
            }
        ),
        required=frozenset({"training.cuda.call.kind", "training.cuda.layer"}),
    ),
    "training.cuda.call.failures": MetricDefinition(
        instrument="counter",
        unit="{call}",
        brief="Calls of CUDA libraries that returned an error.",
        attributes=frozenset(
            {
                "training.cuda.call.kind",
                "training.cuda.copy.direction",
                "training.cuda.layer",
            }
        ),
        required=frozenset({"training.cuda.call.kind", "training.cuda.layer"}),
    ),
    "training.cuda.copy.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes that a rank asked CUDA to copy.",
        attributes=frozenset({"training.cuda.copy.direction", "training.cuda.layer"}),
        required=frozenset({"training.cuda.copy.direction", "training.cuda.layer"}),
    ),
    "training.cuda.allocated.size": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes that a rank asked CUDA for.",
        attributes=frozenset({"training.cuda.call.kind", "training.cuda.layer"}),
        required=frozenset({"training.cuda.call.kind", "training.cuda.layer"}),
    ),
    "training.nccl.calls": MetricDefinition(
        instrument="counter",
        unit="{call}",
        brief="Calls of NCCL by a rank that have returned, which is not the operation's end on the device.",
        attributes=frozenset(
            {
                "collective.communicator.id",
                "collective.communicator.size",
                "collective.data_type",
                "training.nccl.communicator",
                "training.nccl.operation",
            }
        ),
        required=frozenset({"training.nccl.operation"}),
    ),
    "training.nccl.operations": MetricDefinition(
        instrument="counter",
        unit="{operation}",
        brief="Operations that a rank has called in a communicator, returned or not: the number of the last.",
        attributes=frozenset(
            {
                "collective.communicator.id",
                "collective.communicator.size",
                "collective.is_point_to_point",
            }
        ),
        required=frozenset(
            {
                "collective.communicator.id",
                "collective.is_point_to_point",
            }
        ),
    ),
    "training.nccl.connections": MetricDefinition(
        instrument="counter",
        unit="{connection}",
        brief="Connections to other ranks that NCCL has set up in a rank, those that it sends over.",
        attributes=frozenset({"training.nccl.transport"}),
        required=frozenset({"training.nccl.transport"}),
    ),
    "training.nccl.choices": MetricDefinition(
        instrument="counter",
        unit="{operation}",
        brief="Operations of a rank for which NCCL has told how it does them.",
        attributes=frozenset(
            {
                "training.nccl.algorithm",
                "training.nccl.operation",
                "training.nccl.protocol",
            }
        ),
        required=frozenset({"training.nccl.algorithm", "training.nccl.protocol"}),
    ),
    "training.nccl.call.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time of a rank's threads in calls of NCCL, with those that have not returned yet.",
        attributes=frozenset(
            {
                "collective.communicator.id",
                "collective.communicator.size",
                "collective.data_type",
                "training.nccl.communicator",
                "training.nccl.operation",
            }
        ),
        required=frozenset({"training.nccl.operation"}),
    ),
    "training.nccl.call.failures": MetricDefinition(
        instrument="counter",
        unit="{call}",
        brief="Calls of NCCL that returned an error.",
        attributes=frozenset(
            {
                "collective.communicator.id",
                "collective.communicator.size",
                "collective.data_type",
                "training.nccl.communicator",
                "training.nccl.operation",
            }
        ),
        required=frozenset({"training.nccl.operation"}),
    ),
    "training.nccl.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes of the counts that a rank called NCCL with.",
        attributes=frozenset(
            {
                "collective.communicator.id",
                "collective.communicator.size",
                "collective.data_type",
                "training.nccl.communicator",
                "training.nccl.operation",
            }
        ),
        required=frozenset({"collective.data_type", "training.nccl.operation"}),
    ),
    "rootwalk.sensor.state": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="1 for the state that each sensor is in.",
        attributes=frozenset(
            {
                "rootwalk.sensor.backend",
                "rootwalk.sensor.name",
                "rootwalk.sensor.reason",
                "rootwalk.sensor.status",
                "rootwalk.sensor.tier",
            }
        ),
        required=frozenset(
            {
                "rootwalk.sensor.name",
                "rootwalk.sensor.status",
                "rootwalk.sensor.tier",
            }
        ),
    ),
    "rootwalk.agent.cpu.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="CPU time of the agent's process.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.agent.memory.usage": MetricDefinition(
        instrument="gauge",
        unit="By",
        brief="Resident memory of the agent's process.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.agent.events": MetricDefinition(
        instrument="counter",
        unit="{event}",
        brief="Records that the agent has taken from the scheduler's reader.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.agent.sent.size": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Spans that the agent has sent, as bytes of OTLP.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.agent.cost.ratio": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="CPU time of agent and kernel programs over that of the steps, each 1 s or more; last 10 s.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.agent.detail.lowered": MetricDefinition(
        instrument="gauge",
        unit="{rung}",
        brief="How many steps of detail the agent has given up to keep its budget; 0 for none.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.agent.level": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="How much the agent tells of the rank, 0 sums, 1 every stall, 2 every wait.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "rootwalk.bpf.run.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time spent in each of Rootwalk's BPF programs, by the kernel's statistics of 1 s in 10.",
        attributes=frozenset({"rootwalk.bpf.program.name"}),
        required=frozenset({"rootwalk.bpf.program.name"}),
    ),
    "rootwalk.dropped": MetricDefinition(
        instrument="counter",
        unit="{record}",
        brief="Records that were dropped.",
        attributes=frozenset({"rootwalk.drop.reason"}),
        required=frozenset({"rootwalk.drop.reason"}),
    ),
    "system.cpu.time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time of the host's CPUs by mode: stolen by a hypervisor, interrupts, waiting for disks.",
        attributes=frozenset({"cpu.mode"}),
        required=frozenset({"cpu.mode"}),
    ),
    "system.cpu.logical.count": MetricDefinition(
        instrument="updowncounter",
        unit="{cpu}",
        brief="CPUs of the host that are switched on.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "process.thread.count": MetricDefinition(
        instrument="updowncounter",
        unit="{thread}",
        brief="Threads of the rank's process.",
        attributes=frozenset(),
        required=frozenset(),
    ),
    "system.paging.operations": MetricDefinition(
        instrument="counter",
        unit="{operation}",
        brief="Pages that the host swapped in and out.",
        attributes=frozenset({"system.paging.direction", "system.paging.fault.type"}),
        required=frozenset({"system.paging.direction", "system.paging.fault.type"}),
    ),
    "system.paging.faults": MetricDefinition(
        instrument="counter",
        unit="{fault}",
        brief="Page faults of the host; major ones waited for a disk.",
        attributes=frozenset({"system.paging.fault.type"}),
        required=frozenset({"system.paging.fault.type"}),
    ),
    "system.disk.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes read from and written to each disk.",
        attributes=frozenset({"disk.io.direction", "system.device"}),
        required=frozenset({"disk.io.direction", "system.device"}),
    ),
    "system.disk.operations": MetricDefinition(
        instrument="counter",
        unit="{operation}",
        brief="Requests that each disk completed.",
        attributes=frozenset({"disk.io.direction", "system.device"}),
        required=frozenset({"disk.io.direction", "system.device"}),
    ),
    "system.disk.operation_time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time that each disk's requests took, added up.",
        attributes=frozenset({"disk.io.direction", "system.device"}),
        required=frozenset({"disk.io.direction", "system.device"}),
    ),
    "system.disk.io_time": MetricDefinition(
        instrument="counter",
        unit="s",
        brief="Time for which each disk was busy.",
        attributes=frozenset({"system.device"}),
        required=frozenset({"system.device"}),
    ),
    "system.network.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes that passed each network interface.",
        attributes=frozenset({"network.interface.name", "network.io.direction"}),
        required=frozenset({"network.interface.name", "network.io.direction"}),
    ),
    "system.network.packet.count": MetricDefinition(
        instrument="counter",
        unit="{packet}",
        brief="Packets that passed each network interface.",
        attributes=frozenset({"network.io.direction", "system.device"}),
        required=frozenset({"network.io.direction", "system.device"}),
    ),
    "system.network.packet.dropped": MetricDefinition(
        instrument="counter",
        unit="{packet}",
        brief="Packets that were dropped at each network interface without an error.",
        attributes=frozenset({"network.interface.name", "network.io.direction"}),
        required=frozenset({"network.interface.name", "network.io.direction"}),
    ),
    "system.network.errors": MetricDefinition(
        instrument="counter",
        unit="{error}",
        brief="Errors at each network interface.",
        attributes=frozenset({"network.interface.name", "network.io.direction"}),
        required=frozenset({"network.interface.name", "network.io.direction"}),
    ),
    "hw.errors": MetricDefinition(
        instrument="counter",
        unit="{error}",
        brief="Memory errors of a GPU, corrected or not.",
        attributes=frozenset({"error.type", "hw.id", "hw.type"}),
        required=frozenset({"error.type", "hw.id", "hw.type"}),
    ),
    "hw.status": MetricDefinition(
        instrument="updowncounter",
        unit="1",
        brief="1 for the state that a GPU is in, 0 for the other: ok, failed.",
        attributes=frozenset(
            {
                "hw.driver_version",
                "hw.id",
                "hw.name",
                "hw.state",
                "hw.type",
            }
        ),
        required=frozenset(
            {
                "hw.driver_version",
                "hw.id",
                "hw.name",
                "hw.state",
                "hw.type",
            }
        ),
    ),
    "hw.temperature": MetricDefinition(
        instrument="gauge",
        unit="Cel",
        brief="Temperature of a GPU or of its memory.",
        attributes=frozenset({"hw.id", "hw.sensor_location", "hw.type"}),
        required=frozenset({"hw.id", "hw.sensor_location", "hw.type"}),
    ),
    "hw.temperature.limit": MetricDefinition(
        instrument="gauge",
        unit="Cel",
        brief="Temperature at which a GPU is clocked down or switched off.",
        attributes=frozenset({"hw.id", "hw.limit_type", "hw.sensor_location", "hw.type"}),
        required=frozenset({"hw.id", "hw.limit_type", "hw.sensor_location", "hw.type"}),
    ),
    "hw.power": MetricDefinition(
        instrument="gauge",
        unit="W",
        brief="Power that a GPU takes.",
        attributes=frozenset({"hw.id", "hw.type"}),
        required=frozenset({"hw.id", "hw.type"}),
    ),
    "hw.energy": MetricDefinition(
        instrument="counter",
        unit="J",
        brief="Energy that a GPU has taken.",
        attributes=frozenset({"hw.id", "hw.type"}),
        required=frozenset({"hw.id", "hw.type"}),
    ),
    "hw.gpu.utilization": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="Part of the time in which a GPU did something.",
        attributes=frozenset({"hw.gpu.task", "hw.id"}),
        required=frozenset({"hw.gpu.task", "hw.id"}),
    ),
    "hw.gpu.memory.utilization": MetricDefinition(
        instrument="gauge",
        unit="1",
        brief="Part of the time in which the memory of a GPU was read or written.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "hw.gpu.memory.usage": MetricDefinition(
        instrument="updowncounter",
        unit="By",
        brief="Memory of a GPU that is taken.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "hw.gpu.memory.limit": MetricDefinition(
        instrument="updowncounter",
        unit="By",
        brief="Memory that a GPU has.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "hw.gpu.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes that passed the PCI Express link of a GPU.",
        attributes=frozenset({"hw.id", "network.io.direction"}),
        required=frozenset({"hw.id", "network.io.direction"}),
    ),
    "hw.network.up": MetricDefinition(
        instrument="updowncounter",
        unit="1",
        brief="1 for a network interface or RDMA port that can send, 0 for one that cannot.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "hw.network.bandwidth.limit": MetricDefinition(
        instrument="updowncounter",
        unit="By/s",
        brief="Speed of the link of a network interface or RDMA port.",
        attributes=frozenset({"hw.id"}),
        required=frozenset({"hw.id"}),
    ),
    "hw.network.io": MetricDefinition(
        instrument="counter",
        unit="By",
        brief="Bytes that passed each RDMA port.",
        attributes=frozenset({"hw.id", "network.io.direction"}),
        required=frozenset({"hw.id", "network.io.direction"}),
    ),
    "hw.network.packets": MetricDefinition(
        instrument="counter",
        unit="{packet}",
        brief="Packets that passed each RDMA port.",
        attributes=frozenset({"hw.id", "network.io.direction"}),
        required=frozenset({"hw.id", "network.io.direction"}),
    ),
}
