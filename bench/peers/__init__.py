"""Other message systems, driven from Python on loopback, as the measure for ours.

A peer is a module here with two functions, each run in a process of its own:

    def consume(link: Link, task: Task, meter: Meter) -> None      receive until `meter.done`
    def produce(link: Link, task: Task, meter: Meter) -> int       `meter.begin()`, send, give the number of events sent

They agree on addresses and readiness over `link` (`tell` and `hear`) before anything is timed. `task` holds the
events: `batches` for throughput, `stamped` for latency. The runner does the rest: processes, rounds, medians, ratios.
`python -m bench.peers` gives a quick look at all of them.
"""
