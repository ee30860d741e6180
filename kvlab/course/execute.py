"""Running notebooks, each in a fresh kernel of this very Python, two at a time, stopped by Ctrl-C."""

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from kvlab.course.lesson import LessonError
from kvlab.course.seal import unexecuted

CELL_TIMEOUT_S = 120
WORKERS = 2


@dataclass(frozen=True)
class Job:
    """A notebook to run in place. `label` names it in errors, `folder` is the kernel's working directory.

    `finished` gets the seconds the run took; it is called in another thread and may raise `LessonError`.
    """

    label: str
    notebook: NotebookNode
    folder: Path
    finished: Callable[[float], None]


def run_notebooks(jobs: list[Job]) -> list[LessonError]:
    """Run the jobs' notebooks in place and return what failed, naming notebook, cell and error.

    A cell fails if it raises (unless tagged `raises-exception`), takes longer than 120 s, or writes to
    stderr: warnings and progress bars there would be flaky. A `KeyboardInterrupt` stops all kernels.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kvlab-build", daemon=True)
    thread.start()
    future = asyncio.run_coroutine_threadsafe(_execute_all(jobs), loop)
    try:
        return future.result()
    finally:
        future.cancel()
        asyncio.run_coroutine_threadsafe(_wait_for_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _execute_all(jobs: list[Job]) -> list[LessonError]:
    free = asyncio.Semaphore(WORKERS)
    failed: list[LessonError] = []

    async def one(job: Job) -> None:
        async with free:
            started_s = time.perf_counter()
            try:
                await _execute_one(job)
                job.finished(time.perf_counter() - started_s)
            except LessonError as error:
                failed.append(error)

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(one(job))
    return failed


async def _wait_for_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


async def _execute_one(job: Job) -> None:
    running = {"cell": 0}

    def starts(cell: NotebookNode, cell_index: int) -> None:
        running["cell"] = cell_index

    client = NotebookClient(
        job.notebook,
        km=AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])),
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        coalesce_streams=True,
        shutdown_kernel="immediate",
        on_cell_start=starts,
    )
    # The kernel's own stderr holds its start-up notices and, if it dies, the reason; nothing of the cells'.
    with tempfile.TemporaryDirectory(prefix="kvlab-") as own, (Path(own) / "kernel.log").open("w+") as log:
        env = dict(os.environ, IPYTHONDIR=own)
        try:
            await client.async_execute(cleanup_kc=True, env=env, cwd=str(job.folder), stderr=log)
        except CellExecutionError as error:
            raise _failure(job, running["cell"], f"{error.ename}: {error.evalue}") from error
        except CellTimeoutError as error:
            raise _failure(job, running["cell"], f"took longer than {CELL_TIMEOUT_S} s") from error
        except DeadKernelError as error:
            log.seek(0)
            last = log.read().strip()[-500:]
            raise _failure(job, running["cell"], f"the kernel died (out of memory?)\n{last}") from error
    _refuse_noise(job)


def _refuse_noise(job: Job) -> None:
    for index, cell in enumerate(job.notebook.cells):
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                what = f"wrote to stderr (a warning is an error here): {output.text.strip()}"
                raise _failure(job, index, what)
        raised = any(output.output_type == "error" for output in cell.outputs)
        if "raises-exception" in cell.metadata.get("tags", []) and not raised:
            raise _failure(job, index, "is tagged raises-exception and raised nothing")
    for problem in unexecuted(job.notebook):
        raise LessonError(f"{job.label}: {problem}")


def _failure(job: Job, index: int, what: str) -> LessonError:
    cell = job.notebook.cells[index]
    first = next((line for line in cell.source.splitlines() if line.strip()), "")
    return LessonError(f"{job.label}, cell {index + 1} (`{first.strip()}` ...): {what}")
