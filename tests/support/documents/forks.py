"""Python in a process of its own, without the time that imports take: event types are registered
once per process, so blocks cannot share one."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
import types
import warnings
from pathlib import Path

_DEADLINE = 120
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["outrider.cli.app", "outrider.brokers.rabbitmq", "outrider.integrations.fastapi", "aiosqlite"]
)
_SPECIAL = set("|&;<>$`")


def can_run(line: str) -> bool:
    """Whether the line needs no shell: an empty one, an export, outrider, or a Python program."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quote that ends in a later line
        return False
    plain = not _SPECIAL.intersection("".join(words))
    return plain and words[:1] in ([], ["export"], ["outrider"], ["python"]) and "-m" not in words


def exported(lines: list[str], environment: dict[str, str]) -> dict[str, str]:
    pairs = (word.split("=", 1) for line in lines for word in shlex.split(line)[1:])
    return {**environment, **dict(pairs)}


def run_command(line: str, folder: Path, environment: dict[str, str]) -> str:
    words = shlex.split(line, comments=True)
    if words[:1] in ([], ["export"]):
        return ""
    if words[0] == "python":
        code = f"import runpy; runpy.run_path({words[1]!r}, {{}}, '__main__')"
    else:
        code = f"import outrider.cli, sys; sys.argv = {words}; outrider.cli.main()"
    return run_python(code, line, folder, environment)


def run_python(code: str, name: str, folder: Path, environment: dict[str, str]) -> str:
    """What it printed; it must end well."""
    printed = folder / ".printed"
    process = _forks.Process(target=_execute, args=(code, name, folder, environment, printed))
    process.start()
    process.join(_DEADLINE)
    if process.is_alive():
        process.kill()
        process.join()
    output = printed.read_text(errors="replace")
    assert process.exitcode == 0, f"{name} ended with {process.exitcode}\n{output}"
    return output


def _execute(
    code: str, name: str, folder: Path, environment: dict[str, str], printed: Path
) -> None:
    output = os.open(printed, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    sys.argv = [name]
    warnings.simplefilter("error")
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), vars(main))  # noqa: S102 - that is what it is for
