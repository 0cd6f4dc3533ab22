"""Downloads Java programs with Maven."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from outrider.testing.services.errors import ServerFailed
from outrider.testing.services.install.cache import cache_folder, locked

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>outrider</groupId>
  <artifactId>download</artifactId>
  <version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def jars(name: str) -> Path:
    """The folder of a download's jars."""
    return cache_folder() / name


def fetch(name: str, coordinates: Sequence[str], mvn: Path) -> None:
    """Download jars with their dependencies into the cache, completely or not at all."""
    with locked(name):
        if jars(name).is_dir():
            return
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="download-") as scratch:
            _download(Path(scratch), coordinates, mvn)
            Path(scratch, "jars").rename(jars(name))


def _download(scratch: Path, coordinates: Sequence[str], mvn: Path) -> None:
    dependencies = "".join(_DEPENDENCY.format(*one.split(":")) for one in coordinates)
    (scratch / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    done = subprocess.run(
        [mvn, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ServerFailed(f"mvn could not fetch {coordinates}:\n{done.stdout[-2000:]}")
