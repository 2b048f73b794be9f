"""Widgets for notebooks. Everything that a notebook needs is imported from here.

explore             a drawing with controls
guess               a question before a result
Quiz                questions with answers to choose; Question and Answer make your own
BlockPoolWidget     a block pool to click on; PRESETS and CHALLENGES are its examples and goals
Stage               an engine, played step by step
Timeline            what each request did in every step of an engine
"""

# ruff: noqa: E402, F401 - these names are the package's; their files need what is checked first

from pagedlab.extras import require

require("notebooks", "anywidget")  # the first of what all widgets need

from pagedlab_lessons.widgets.block_grid import BlockPoolWidget
from pagedlab_lessons.widgets.examples import CHALLENGES, PRESETS
from pagedlab_lessons.widgets.explore import explore
from pagedlab_lessons.widgets.guess import guess
from pagedlab_lessons.widgets.quiz import Answer, Question, Quiz
from pagedlab_lessons.widgets.stage import Stage
from pagedlab_lessons.widgets.timeline import Timeline
