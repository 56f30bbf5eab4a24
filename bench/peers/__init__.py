"""Other message systems, run from Python on loopback, to compare meshbus with.

A peer is a module here with two functions, each of which runs in a separate process:

    def consume(link: Link, task: Task, meter: Meter) -> None      receive until `meter.done`
    def produce(link: Link, task: Task, meter: Meter) -> int       `meter.begin()`, send, return the number of events sent

They exchange addresses and readiness over `link` (`tell` and `hear`) before anything is timed. `task` has the events:
`batches` for throughput, `stamped` for latency. The runner does the rest: processes, rounds, medians, ratios.
`python -m bench.peers` measures all of them quickly.
"""
