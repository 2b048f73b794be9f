# In the browser there is no model: Qwen's words were written down once. Pool and tables are the real ones.
import re

from pagedlab_lessons.broken import NeverCopies
from pagedlab_lessons.pictures import two_stories
from pagedlab_lessons.widgets.explore import explore

from pagedlab import BlockPool, BlockTable

start = "Once upon a time, a little fox met"
told = [
    " a wise owl. The fox decided to ask the owl a question and then use the owl's knowledge to answer the question.",
    " a big rabbit. The fox wanted to chase the rabbit as far as possible, while the rabbit wanted to chase the fox.",
]


def stories(table_class):
    """Two samples of one beginning: the tokens of each, and the slots that they lie in."""
    texts = [re.findall(r" ?\w+|[^\w\s]", start + rest) for rest in told]
    tables = [table_class(BlockPool(32, block_size=8))]
    tables[0].append(len(re.findall(r" ?\w+|[^\w\s]", start)))
    tables.append(tables[0].fork())
    for _ in range(18):
        for table in tables:
            table.append()
    return [(words[: t.num_tokens], t.slots(0, t.num_tokens)) for words, t in zip(texts, tables, strict=True)]


runs = {True: stories(NeverCopies), False: stories(BlockTable)}
tip = "Point at a word: its block lights up. These words were written down once; a model goes on from what it reads."
explore(lambda forget_to_copy: two_stories(runs[forget_to_copy], runs[False], 8), tip, forget_to_copy=True)
