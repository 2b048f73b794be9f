"""Widgets for the notebooks: the block grid, driven by clicks or by a running engine, and its challenges."""

from __future__ import annotations

from pagedlab.widgets.block_grid import BlockPoolWidget
from pagedlab.widgets.challenge import CHALLENGES, Challenge
from pagedlab.widgets.live_grid import LiveGrid
from pagedlab.widgets.presets import PRESETS

__all__ = ["CHALLENGES", "PRESETS", "BlockPoolWidget", "Challenge", "LiveGrid"]
