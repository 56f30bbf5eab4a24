"""Run one query on each gold table: `python examples/gold_tables.py tables`."""

from __future__ import annotations

import sys

import meshbus.spark

QUESTIONS = {
    "Which channels have the highest event rate?": """
        SELECT channel, max(events_per_s) AS events_per_s, max(latency_p99_us) AS latency_p99_us
        FROM gold_channel_stats GROUP BY channel ORDER BY events_per_s DESC LIMIT 10""",
    "Between which subnets are most packets dropped?": """
        SELECT hex(src) AS src, hex(dst) AS dst, sum(forwarded) AS forwarded, sum(dropped) AS dropped
        FROM gold_traffic_matrix GROUP BY src, dst ORDER BY dropped DESC LIMIT 10""",
    "Where are events missing?": """
        SELECT kind, channel, hex(origin) AS origin, missing, holes, duplicates, reordered
        FROM gold_gaps WHERE missing > 0 ORDER BY missing DESC LIMIT 10""",
    "Which packets were dropped, and why?": """
        SELECT reason, channel, hex(peer) AS peer, sum(packets) AS packets
        FROM gold_denials GROUP BY reason, channel, peer ORDER BY packets DESC LIMIT 10""",
    "Which publishers send most?": """
        SELECT hex(origin) AS origin, sum(events) AS events, sum(bytes) AS bytes
        FROM gold_top_talkers GROUP BY origin ORDER BY bytes DESC LIMIT 10""",
    "Which replicas are behind?": """
        SELECT channel, hex(recorder) AS recorder, max(behind) AS behind, max(delay_p99_us) AS delay_p99_us
        FROM gold_replication_lag GROUP BY channel, recorder ORDER BY behind DESC LIMIT 10""",
    "How many deliveries does each channel cause?": """
        SELECT channel, max(subscribers) AS subscribers, sum(deliveries) AS deliveries
        FROM gold_fan_out GROUP BY channel ORDER BY deliveries DESC LIMIT 10""",
}


def main(path: str) -> None:
    """Run all queries on the tables in a directory."""
    spark = meshbus.spark.session()
    meshbus.spark.tables(spark, path).create_views()
    for question, query in QUESTIONS.items():
        print(f"\n{question}")  # noqa: T201 - an example prints
        spark.sql(query).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
