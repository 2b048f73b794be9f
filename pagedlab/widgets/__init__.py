"""Widgets for the notebooks: the block grid to click on, the stage on which an engine plays, the
timeline.
"""

from pagedlab.widgets.block_grid import BlockPoolWidget
from pagedlab.widgets.examples import CHALLENGES, PRESETS, Challenge
from pagedlab.widgets.stage import Stage
from pagedlab.widgets.timeline import Timeline

__all__ = ["CHALLENGES", "PRESETS", "BlockPoolWidget", "Challenge", "Stage", "Timeline"]
