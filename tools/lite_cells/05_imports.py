# What the cells that are text here import, and later cells use.
from pagedlab_lessons.checks.prefix import ForgetsThePast
from pagedlab_lessons.plots import figure
from pagedlab_lessons.show import show_source
from tqdm.auto import tqdm
