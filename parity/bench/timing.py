"""How long a call takes on the GPU, without launch gaps and without help from the L2 cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Call = Callable[[], Any]
L2_BYTES = 60 * 2**20  # H200; buffers are rotated until several times this much lies between reuses


def copies_needed(bytes_per_call: int) -> int:
    """How many sets of buffers keep one call's data out of the L2 of the next."""
    return max(2, min(16, -(-4 * L2_BYTES // max(bytes_per_call, 1))))


def replayed(sets: Mapping[str, Sequence[Call]], rounds: int = 25) -> dict[str, float]:
    """Median microseconds of a call of each set, when all of a set are replayed as one CUDA graph.

    The sets take turns, so that clock and temperature are the same for all of them.  In a turn a
    graph is replayed several times without a pause: of few short kernels the start would count.
    """
    graphs = {name: capture(calls) for name, calls in sets.items()}
    times = [
        {name: _back_to_back(graphs[name], len(calls)) for name, calls in sets.items()}
        for _ in range(rounds)
    ]
    return {name: statistics.median(each[name] for each in times) for name in sets}


def _back_to_back(graph: torch.cuda.CUDAGraph, calls: int, replays: int = 5) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(1000 * start.elapsed_time(end) / (calls * replays))


def replayed_graph(graph: torch.cuda.CUDAGraph, calls: int, repeats: int) -> float:
    """Median microseconds of one of the ``calls`` that a graph holds."""
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / calls)
    return float(statistics.median(times))


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """The calls as one CUDA graph on the current stream, each called once before.

    A backward runs on the stream of its forward, so both must be a stream that can be captured:
    the caller makes the calls inside ``torch.cuda.stream(torch.cuda.Stream())``.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return graph


def host_costs(calls: Mapping[str, Call], rounds: int = 40) -> dict[str, float]:
    """Median host microseconds of issuing each call; the device keeps up on small tensors.

    The calls take turns, so that the clock and whatever else runs are the same for all of them.
    """
    for call in calls.values():
        host_block(call, 50)
    times = [{name: host_block(call, 20) for name, call in calls.items()} for _ in range(rounds)]
    return {name: statistics.median(each[name] for each in times) for name in calls}


def host_block(call: Call, repeats: int) -> float:
    """Host microseconds of issuing one call, the mean of ``repeats``."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    mean = (time.perf_counter() - start) / repeats * 1e6
    torch.cuda.synchronize()
    return mean


def peak_bytes(call: Call) -> int:
    """The most memory one call holds at once beyond what is held before it, in bytes."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del kept
    return peak


def device_events(call: Call) -> int:
    """How many kernels, copies and fills one call puts on the device."""
    call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in profile.events() or [])
