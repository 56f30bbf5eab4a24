"""The parts of the benchmark `funnel` (bench/bench_funnel.py): events on their way from a log to gold tables.

    load.py       events as a node logs them, and the logs that are filled with them
    bare.py       Spark and DuckDB on the same Parquet files, without meshbus
    flow.py       the pipeline: whole runs, the cost of one batch, the time until one event is visible
    chain.py      two nodes and a pipeline on the same cores, at the highest rate at which nothing falls behind
    nodes.py      those two nodes, in processes of their own
    sustained.py  the chain in a process of its own, of this version and of another one
    slope.py      the cost per row of each stage, and how it grows
    cluster.py    a cluster of some workers on this machine
    verdicts.py   what is committed, and whether a run met it
    capacity.py   writes the page of capacities from saved runs

They use only what the pipeline promises to programs: `Redex`, `PipelineConfig`, `run`, `stop` and `tables`. So the same
files measure other versions of meshbus: set PYTHONPATH to the `src` directory of one.
"""
