# In the browser the update is written in NumPy; the formulas are those of pagedlab_lessons.checks.softmax.
import numpy as np
from pagedlab_lessons.plots import draw_scores, draw_weights, figure

rows = [[0.5, 1.5, -0.5, 1.0], [2.0, 0.0, 1.0, -1.0], [1.0, 1.8, 0.2, -0.5], [0.4, 3.5, 0.9, 0.0]]


def online_step(m, total, out, scores, v):
    """m, total and out after one more block, whose values are all v."""
    new_m = max(m, scores.max())
    shift = new_m if new_m > -np.inf else 0.0  # who has seen nothing yet is measured from 0
    rescale, p = np.exp(m - shift), np.exp(scores - shift)
    return new_m, rescale * total + p.sum(), rescale * out + p.sum() * v


def read(rows, step=online_step):
    """(m, total, out) after each block; the values of block i are i, counted from 1."""
    states = [(-np.inf, 0.0, 0.0)]
    for i, row in enumerate(rows, 1):
        states.append(step(*states[-1], np.array(row), i))
    return states


print("block      m   rescale   total     out   out / total")
states = read(rows)
for i, ((before, _, _), (m, total, out)) in enumerate(zip(states, states[1:], strict=False), 1):
    print(f"{i:5} {m:6.2f} {np.exp(before - m):9.3f} {total:7.3f} {out:7.3f} {out / total:13.3f}")
