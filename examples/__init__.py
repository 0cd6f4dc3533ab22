"""Small, complete applications; each runs by `python -m examples.<name>`."""

from importlib.util import find_spec

for _library in ("alembic", "dateutil", "dishka", "fastapi", "prometheus_client", "uvicorn"):
    if find_spec(_library) is None:
        raise SystemExit(f"{_library} is not installed; run: pip install '.[examples]'")
