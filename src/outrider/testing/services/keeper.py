"""Finds and kills the processes of a run, even when the program that started them is gone."""

import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

try:
    import psutil
except ImportError as error:
    raise ImportError("psutil is missing: pip install 'outrider[testing]'") from error

# Every server has its folder in this variable, so that a reused pid is never taken for a server.
MARK = "OUTRIDER_SERVICES"


def processes_in(folder: Path) -> set[psutil.Process]:
    """The processes that were started for the folder, and all their children.

    PostgreSQL's backends overwrite their environment, so that they are found as children only.
    """
    found = {process for pid in psutil.pids() if (process := _marked(pid, folder))}
    for process in list(found):
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return {process for process in found if _runs(process)}


def freeze(folder: Path) -> set[psutil.Process]:
    """SIGSTOP all processes of the folder, including those that are forked meanwhile."""
    frozen: set[psutil.Process] = set()
    while fresh := processes_in(folder) - frozen:
        for process in fresh:
            with suppress(psutil.Error):
                process.suspend()
        frozen |= fresh
    return frozen


def thaw(folder: Path) -> None:
    for process in processes_in(folder):
        with suppress(psutil.Error):
            process.resume()


def kill(folder: Path, within: float = 30) -> None:
    """SIGSTOP all processes of the folder, then SIGKILL them; return when they are gone."""
    deadline = time.monotonic() + within
    while victims := freeze(folder):
        for process in victims:
            with suppress(psutil.Error):
                process.kill()
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of {folder} survive SIGKILL: {victims}")
        time.sleep(0.01)


def start_keeper(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends the run when this process ends: it waits for EOF on its stdin."""
    return subprocess.Popen(
        # -P: keeps this folder off sys.path, since it has modules named like client libraries.
        [sys.executable, "-P", __file__, str(folder), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _marked(pid: int, folder: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        mark = process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None
    return process if mark and Path(mark).is_relative_to(folder) else None


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _keep(folder: Path, parent: int) -> None:
    # Forks of the parent may keep the pipe open after its end, so its pid is checked, too.
    while os.getppid() == parent and not select.select([sys.stdin], [], [], 1)[0]:
        pass
    kill(folder)
    # A server between fork and exec did not have the variable yet.
    time.sleep(0.1)
    kill(folder)
    _release_shared_memory(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _release_shared_memory(folder: Path) -> None:
    """Remove the shared memory of a killed PostgreSQL; its pid file has the segment's id."""
    for note in folder.glob("*/data/postmaster.pid"):
        with suppress(OSError, IndexError):
            _, segment = note.read_text().splitlines()[6].split()
            subprocess.run(["ipcrm", "-m", segment], check=False)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]))
