"""The kernel on columns of recorded packets returns the verdicts of the node's gateway."""

import pickle
from pathlib import Path

import numpy as np

from meshbus.spark.replay.kernelgateway import Judge
from tests.seeds import for_each_seed
from tests.spark.packets import by_kernel, read_record, recorded, said


@for_each_seed(range(4))
def test_the_kernel_on_columns_repeats_what_the_node_said(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / str(seed)
    policy = recorded(folder, np.random.default_rng(seed))
    table = read_record(folder)
    expected = [said(row) for row in table.to_pylist()]
    assert by_kernel(policy, table) == expected
    assert set(expected) == {None, 0, 1, 2, 3, 4, 5, 6}


def test_a_judge_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    policy = recorded(tmp_path, np.random.default_rng(2), 500)
    table = read_record(tmp_path)
    sent = pickle.loads(pickle.dumps(Judge(policy)))
    assert (sent.judge_batch(table)[0] == Judge(policy).judge_batch(table)[0]).all()
