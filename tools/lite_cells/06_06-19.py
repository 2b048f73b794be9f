flat = sum(rows, [])
fig, axes = figure(9.5, 5, nrows=4, ncols=2)
for ax in axes[:, 0]:
    ax.remove()
grid = axes[0, 0].get_gridspec()
first, second = fig.add_subplot(grid[:2, 0]), fig.add_subplot(grid[2:, 0])
draw_scores(first, flat, 4, 4)
first.set(title="safe, pass 1: scores, and the largest so far", ylabel="score")
second.set(title="safe, pass 2: exp(score - m) with the final m", ylabel="weight")
axes[0, 1].set(title="online: after block 1, 2, 3 and 4")
draw_weights(second, flat, 4, 4, outlines=False)
for i, ax in enumerate(axes[:, 1], 1):
    draw_weights(ax, flat, 4, i)
    (before, _, _), (m, total, out) = states[i - 1 : i + 1]
    said = f"m {m:.1f}\n× {np.exp(before - m):.2f}\ntotal {total:.2f}\nout {out:.2f}"
    ax.text(1.02, 0.5, said, transform=ax.transAxes, va="center", fontsize=9)
