"""Versions: what may be asked for, which is newer, what lies between two."""

from __future__ import annotations

import pytest

from torchparity.errors import UsageError
from torchparity.releases.versions import meets, newest_series, order, read_releases, requirement, skips


def test_words_are_releases_each_once():
    assert read_releases(["2.9,2.10", "2.9", "v2.13.0", "2.14.0rc1", " 2.11 ,"]) == (
        "2.9",
        "2.10",
        "2.13.0",
        "2.14.0rc1",
        "2.11",
    )


@pytest.mark.parametrize("word", ["2", "x", "2.9.*", "2.9.1.2", "2.9; rm", "--pre", "nan", "latest"])
def test_what_is_no_release_is_refused(word):
    with pytest.raises(UsageError, match="is no release of torch") as caught:
        read_releases([word])
    assert "2.9.1" in caught.value.hint


def test_a_series_is_any_of_its_releases_and_a_version_exactly_this():
    assert requirement("2.9") == "torch==2.9.*"
    assert requirement("2.9.1") == "torch==2.9.1"
    assert meets("2.9.1", "2.9")
    assert meets("2.13.0+cpu", "2.13")
    assert meets("2.13.0+cpu", "2.13.0")
    assert not meets("2.13.0", "2.13.0+cpu")
    assert not meets("2.10.0", "2.1")
    assert not meets("2.9.0", "2.9.1")
    assert not meets("2.14.0.dev20260101", "2.14")


def test_ten_comes_after_nine_and_a_release_after_its_candidates():
    versions = ["2.9.1", "2.10.0.dev3", "2.10.0a0+git1", "2.10.0rc2", "2.10.0+cpu", "2.10.1", "2.13"]
    backwards = versions[::-1]
    assert sorted(backwards, key=order) == versions
    assert order("/bin/python") > order("9.9")


def test_what_lies_between_two():
    assert not skips("2.9.1", "2.10.0")
    assert not skips("2.9", "2.10")
    assert not skips("2.9.0", "2.9.1")
    assert skips("2.9", "2.11")
    assert skips("2.9.0", "2.9.2")
    assert skips("1.13", "2.0")


def test_the_newest_series_leave_out_what_is_not_out():
    versions = ["2.15.0rc1", "2.14.1", "2.14.0", "2.13.0+cpu", "2.12.1", "2.9.0", "2.10.0", ""]
    assert newest_series(versions, 3) == ("2.12", "2.13", "2.14")
