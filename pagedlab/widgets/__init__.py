"""Widgets for the notebooks: the block grid, clicked or driven by a running engine, its challenges, the timeline."""

from __future__ import annotations

from pagedlab.widgets.block_grid import BlockPoolWidget
from pagedlab.widgets.engine_view import LiveGrid
from pagedlab.widgets.examples import CHALLENGES, PRESETS, Challenge
from pagedlab.widgets.timeline import Timeline

__all__ = ["CHALLENGES", "PRESETS", "BlockPoolWidget", "Challenge", "LiveGrid", "Timeline"]
