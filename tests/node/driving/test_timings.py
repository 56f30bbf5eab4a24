"""Histograms count each value once, below the edge that it reaches."""

import numpy as np

from meshbus.node.driving.timings import Histogram


def test_values_are_counted_at_their_edge() -> None:
    one_by_one, at_once = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    values = [0.5, 1.0, 1.5, 2.0, 9.0]
    for value in values:
        one_by_one.observe(value)
    at_once.observe_all(np.asarray(values[:2]))
    at_once.observe_all(np.asarray(values[2:]))
    assert one_by_one.counts == at_once.counts == [2, 2, 1]
    assert one_by_one.total == at_once.total == sum(values)


def test_nothing_is_observed_of_nothing() -> None:
    histogram = Histogram((1.0,))
    histogram.observe_all(np.empty(0))
    assert (histogram.counts, histogram.total) == ([0, 0], 0.0)
