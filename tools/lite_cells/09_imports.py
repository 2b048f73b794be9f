# What the cells that are text here import, and later cells use.
from pagedlab_lessons.show import show_source
