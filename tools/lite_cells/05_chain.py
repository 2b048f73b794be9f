# In the browser there is no model's tokenizer: a token is a word here. Pool, cache and names are the real ones.
import re

from pagedlab_lessons.pictures import two_prompts
from pagedlab_lessons.widgets.explore import explore

from pagedlab import BlockPool
from pagedlab.prefix import PrefixCache, hash_chain


class Words:
    """What `load_model` gives, as far as a browser has it."""

    def __init__(self):
        self.known = []

    def encode(self, text):
        words = re.findall(r" ?\w+|[^\w\s]", text)
        self.known += [word for word in dict.fromkeys(words) if word not in self.known]
        return [self.known.index(word) for word in words]

    def decode(self, ids):
        return "".join(self.known[i] if i < len(self.known) else f" {i}" for i in ids)


model = Words()


def share(first, second):
    """Look both up in one cache, the first one first; their blocks, and the names of the full ones."""
    cache, prompts = PrefixCache(BlockPool(4096, block_size=4)), []
    for text in (first[:2000], second[:2000]):
        ids = model.encode(text)
        table = cache.match(ids)
        table.append(len(ids) - table.num_tokens)
        cache.register(table, ids)
        words = [model.decode([token]) for token in ids]
        prompts.append((words, table.block_ids, [name.hex()[:6] for name in hash_chain(ids, 4)]))
    return two_prompts(prompts, 4)


text = "You work in a library that opens at nine. Where are the {} books? Be brief and kind."
tip = "Point at a word or a block: its counterparts light up."
explore(share, tip, first=text.format("cat"), second=text.format("dog"))
