"""Tests that are ranks of a real process group.

Their bodies run under torchrun only.  A plain pytest session starts torchrun itself, once for all
its workers, and every test here then reports what the ranks said about it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from filelock import FileLock
from torch import Tensor

from parity import leases
from parity.record import write_json
from parity.runner import device
from parity.triage.log import OUTSIDE
from parity.triage.results import Failure, Results, key
from parity.triage.run import Place, run

HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[2]
SIZES = (1, 2, 4)
DEADLINE = 300.0  # seconds for all ranks and tests together, some ten times what they need
PATIENCE = timedelta(seconds=60)  # for one collective, after which the other ranks give up
AS_RANK = "RANK" in os.environ and "WORLD_SIZE" in os.environ


class Group(NamedTuple):
    """One of the equal groups that the ranks form; ``index`` says which."""

    process_group: dist.ProcessGroup
    rank: int
    size: int
    index: int

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks of the group, in their order."""
        sent = self._sendable(tensor)
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(parts, sent, group=self.process_group)
        return [part.to(tensor.device) for part in parts]

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over the group, in the dtype of the tensor and whatever order the backend has."""
        total = self._sendable(tensor).clone()
        dist.all_reduce(total, group=self.process_group)
        return total.to(tensor.device)

    def _sendable(self, tensor: Tensor) -> Tensor:
        """NCCL sends from the GPU, gloo from main memory."""
        backend = dist.get_backend(self.process_group)
        return (tensor if backend == "nccl" else tensor.cpu()).contiguous()


# --- as a rank


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All ranks meet in the same test, whatever plugin shuffles the others."""
    if AS_RANK:
        items.sort(key=lambda item: item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def processes() -> Iterator[None]:
    """The group of all ranks, each with one thread: its sums are too small to share."""
    if not AS_RANK:
        yield
        return
    on_gpus = device().type == "cuda" and torch.cuda.device_count() >= world()
    if device().type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=PATIENCE)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def group_of(processes: None) -> Callable[[int], Group]:
    """``group_of(size)``: the group of this rank if all ranks form groups of that size."""
    made: dict[int, Group] = {}

    def group(size: int) -> Group:
        if size not in made:
            mine, _ = dist.new_subgroups(size)
            rank = dist.get_rank()
            made[size] = Group(mine, rank % size, size, rank // size)
        return made[size]

    return group


@pytest.fixture(params=SIZES)
def group(request: pytest.FixtureRequest, group_of: Callable[[int], Group]) -> Group | None:
    """This rank's group of each size; None in the session that only reports."""
    if world() % request.param:
        pytest.skip(f"NOT_RUN: {world()} ranks do not divide into groups of {request.param}")
    return group_of(request.param) if AS_RANK else None


def world() -> int:
    """How many ranks there are: with two GPUs or more a GPU for each, else four on one device."""
    if AS_RANK:
        return int(os.environ["WORLD_SIZE"])
    gpus = len(leases.visible_gpus()) if device().type == "cuda" else 0
    return min(max(SIZES), gpus & ~1) if gpus > 1 else max(SIZES)


# --- as the session that starts the ranks


@pytest.fixture(scope="session")
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What is wrong with each test, by its key; an empty text where nothing is."""
    if AS_RANK:
        return {}
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base
    file = shared / "ranks.json"
    with FileLock(shared / "ranks.lock"):  # the first worker runs the ranks, the others wait
        if not file.exists():
            asked = [item.nodeid for item in request.session.items if item.path.parent == HERE]
            write_json(file, sentences(launch(shared, asked)))
    found: dict[str, str] = json.loads(file.read_text("utf-8"))
    return found


def launch(shared: Path, asked: list[str]) -> Results:
    """Run the tests as ranks; nothing that is started here outlives the deadline."""
    place = Place("ranks", ROOT, ROOT, shared / "ranks", checkout=None)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world()}"]
    options = ["-q", "-p", "no:cacheprovider", str(HERE)]
    command = [sys.executable, *launcher, "-m", "pytest", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv(leases.MASK, raising=False)
        if leases.OUTER is not None:  # the ranks take all GPUs of the user, not this worker's one
            patch.setenv(leases.MASK, leases.OUTER)
        return run(place, command, DEADLINE, asked).results


def sentences(results: Results) -> dict[str, str]:
    """What the ranks said of every test, by its key; nothing of those that passed on all ranks."""
    told = {name: "\n".join(map(_line, outcome.failures)) for name, outcome in results.items()}
    # a rank that died or hung reports no message of its own, and ends what comes after it
    ends = [name for name, o in results.items() if any(not f.exact for f in o.failures)]
    because = "".join(f"\n{results[name].id}: {told[name]}" for name in ends)
    for name, outcome in results.items():
        if outcome.status in ("not_run", "skipped"):
            told[name] = f"Expected a result from every rank but got {outcome.status}.{because}"
    return told


def _line(failure: Failure) -> str:
    ranks = ", ".join(map(str, failure.ranks)) or "unknown"
    return f"{failure.exact or failure.signature} (ranks {ranks})"


@pytest.fixture(autouse=True)
def of_the_ranks(request: pytest.FixtureRequest, told: dict[str, str]) -> None:
    """Keep for this test what the ranks said, or that they said nothing."""
    name = key(request.node.nodeid)
    request.node.stash[_TOLD] = told.get(name, told.get(key(OUTSIDE)) or NOTHING)


_TOLD = pytest.StashKey[str]()
NOTHING = "Expected a result from every rank but none ran this test."


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Report what the ranks said, in place of the test's body, unless this is a rank."""
    if AS_RANK:
        return None
    if said := pyfuncitem.stash[_TOLD]:
        pytest.fail(said, pytrace=False)
    return True
