"""The picture of a request's way: each moment marks its own station, and a click goes to each."""

import re

import pytest
from pagedlab_lessons.pictures.n13 import LANES, MOMENTS, STATIONS, draw_way


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_moment_says_what_happens_at_its_station(moment):
    drawn = draw_way(moment)
    station = STATIONS[MOMENTS.index(moment)]
    assert station.lane in LANES
    assert station.said.split(",")[0].replace("'", "&#x27;") in drawn
    assert re.findall(r'data-set="moment=([^"]+)"', drawn) == MOMENTS
    assert drawn.count('fill-opacity="0.55"') == 1


def test_an_unknown_moment_is_refused():
    with pytest.raises(ValueError, match="not in list"):
        draw_way("11 sleep")
