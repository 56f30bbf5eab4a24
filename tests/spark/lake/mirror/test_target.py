"""Which formats can be copied, and whose copy it is."""

import pytest

from meshbus.errors import PipelineError
from meshbus.spark.lake.mirror.delta import DeltaTarget
from meshbus.spark.lake.mirror.iceberg import IcebergTarget
from meshbus.spark.lake.mirror.target import check_owner, target_type


def test_the_formats_with_atomic_commits_have_a_class() -> None:
    assert target_type("delta") is DeltaTarget
    assert target_type("iceberg") is IcebergTarget
    with pytest.raises(KeyError):
        target_type("parquet")


def test_the_copy_of_other_tables_is_refused() -> None:
    check_owner("s3://bucket/lake", "a", "a")
    for other in ("b", "", None):
        with pytest.raises(
            PipelineError, match="s3://bucket/lake is not the copy of these tables, but of others; set mirror"
        ):
            check_owner("s3://bucket/lake", other, "a")
