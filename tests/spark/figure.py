"""What is in a figure: its data, and the picture that a browser draws of it, without a browser."""

from typing import Any

import vl_convert


def values(chart: Any) -> list[dict[str, Any]]:
    """Return all rows of data of a chart."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def title(chart: Any) -> str:
    """Return the question that a chart answers."""
    return str(chart.to_dict()["title"])


def picture(chart: Any) -> str:
    """Draw a chart as SVG, by the libraries that draw it in a browser; fails if they cannot."""
    spec: dict[str, Any] = chart.to_dict()
    version = ".".join(spec["$schema"].rsplit("/v", 1)[1].removesuffix(".json").split(".")[:2])
    return str(vl_convert.vegalite_to_svg(spec, vl_version=version))
