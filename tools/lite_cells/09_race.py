# In the browser there is no model, and a text's words are numbers. Scheduler and blocks are the real ones.
from types import SimpleNamespace

from pagedlab_lessons.checks.scheduling import ToyEngine
from pagedlab_lessons.pictures import race
from pagedlab_lessons.widgets.explore import explore

from pagedlab.recipes.trace import moments, record
from pagedlab.scheduler import Scheduler


class StaticBatch(Scheduler):
    def may_admit(self, request):
        return len(self.plan.admitted) == len(self.running) and super().may_admit(request)


class Engine(ToyEngine):
    """It takes texts and what is asked, as LLM does; a token is a word."""

    def add(self, prompt, asked):
        return super().add(len(prompt.split() if isinstance(prompt, str) else prompt), asked.max_tokens)

    def step(self):
        return super().step().chunks

    def generate(self, prompts, params):
        requests = [self.add(*asked) for asked in zip(prompts, params, strict=False)]
        while self.step():
            pass
        return [SimpleNamespace(outputs=request.sequences) for request in requests]


def run(scheduler):
    engine = Engine(scheduler, num_blocks=16, block_size=8, max_sequences=4)
    return moments(record(engine, prompts, params))


openings = ["Once upon a time", "In the old mill", "The bell rang", "On the river", "At the edge of the wood"]
names = ["cat", "dog", "fox", "hen", "bee", "owl", "cow", "pig", "ant", "deer", "jay"]
prompts = [f"{openings[i % 5]} there was a {name}" for i, name in enumerate(names)]
params = [SimpleNamespace(max_tokens=n) for n in [60] + 10 * [10]]
runs = {"Static: a batch runs to the end of its last answer": run(StaticBatch)}
runs |= {"Continuous: a finished request leaves, a waiting one is admitted": run(Scheduler)}
explore(lambda step: race(runs, step, places=4, blocks=16, size=8), step=(range(41), 40))
