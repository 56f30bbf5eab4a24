"""Spark for tests: what makes it quick over few rows, wherever a test starts one."""

from meshbus.spark.run.sparksession import java_options

COMPILING = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
"""Whether Spark makes Java of a query."""


def quick_settings() -> dict[str, str]:
    """Return settings that override ours: code that is run a few times is not worth compiling well."""
    return {
        "spark.driver.extraJavaOptions": f"{java_options()} -XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        **dict(zip(COMPILING, ("false", "NO_CODEGEN"), strict=True)),
    }
