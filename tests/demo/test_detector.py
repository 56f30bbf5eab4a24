"""The detector finds what sums over all poses say, wherever it is stopped and goes on."""

import json

from meshbus.compute.daemon import DaemonEvent
from meshbus.demo.detector import Detector, anomalies, anomaly
from meshbus.demo.member import JUMP_EVERY, reading

POSES = [reading(number) for number in range(200)]


def _found(detector: Detector, poses: list[bytes], first: int = 0) -> list[bytes]:
    return [
        output for number, pose in enumerate(poses, first) for output in detector.process(DaemonEvent(7, number, pose))
    ]


def test_it_finds_the_jumps_there_and_back() -> None:
    found = _found(Detector(), POSES)
    jumps = range(JUMP_EVERY - 1, len(POSES), JUMP_EVERY)
    assert [json.loads(one)["n"] for one in found] == [n for jump in jumps for n in (jump, jump + 1)]
    assert found == anomalies(POSES)


def test_a_restored_detector_goes_on_where_the_other_was() -> None:
    whole = anomalies(POSES)
    for cut in (0, 1, 14, 15, 100, len(POSES)):
        first, second = Detector(), Detector()
        before = _found(first, POSES[:cut])
        second.restore(first.snapshot())
        assert before + _found(second, POSES[cut:], cut) == whole


def test_poses_without_jumps_have_no_anomalies() -> None:
    still = [b'{"n":%d,"x":1.0,"y":2.0}' % number for number in range(9)]
    straight = [b'{"n":%d,"x":%d.0,"y":0.0}' % (number, number) for number in range(9)]
    for poses in ([], POSES[:1], still, straight):
        assert _found(Detector(), poses) == anomalies(poses) == []


def test_an_anomaly_is_json() -> None:
    assert json.loads(anomaly(3, 1, 2999)) == {"n": 3, "anomaly": 1, "step_mm": 2999}
