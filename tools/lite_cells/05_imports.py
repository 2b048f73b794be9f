# What the cells that are text here import, and later cells use.
from tqdm.auto import tqdm

from pagedlab.checks.prefix import ForgetsThePast
from pagedlab.lessons.plots import figure
from pagedlab.lessons.show import show_source
